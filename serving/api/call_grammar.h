// Grammars of calls of tools in a model's syntax: of one that was forced, and of those that a model
// begins by itself while a tool is `strict`. Pure; all throw ApiError (400) for a tool whose schema
// cannot be held to.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/chat_format.h"
#include "serving/api/chat_input.h"
#include "serving/grammar/grammar_spec.h"

namespace moesaic {

class Tokenizer;

// How a model writes calls.
struct CallWriting {
  const ChatFormat& format;
  const Tokenizer& tokenizer;
  std::string_view template_text;  // some models write one of several forms
};

// What follows CallOpening's text: the tool's name where the model chooses it, its arguments, the
// end of the call. nullopt: there is no tool to call.
std::optional<GrammarSpec> ForcedCallGrammar(const CallWriting& writing, const ChatInput& chat);

// A call that the model has begun: from behind `begin` to its end.
struct OpenedCallGrammar {
  std::string begin;
  bool is_control = false;  // `begin` is a token of control
  GrammarSpec spec;
};

// Of calls of any tool: arguments of a `strict` one are of its schema, those of others are free.
// Empty: no tool is strict, or how the model writes calls is not known.
std::vector<OpenedCallGrammar> OpenedCallGrammars(const CallWriting& writing,
                                                  const ChatInput& chat);

}  // namespace moesaic
