// CallOpening: the text with which a model begins a call, as data. Put behind a prompt it forces
// the call: whoever is in the middle of one goes on with it. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/chat/chat_syntax.h"

namespace moesaic {

struct OpeningText {
  std::string text;
  bool from_input = false;  // a name that the client chose: it holds no tokens of control
};

struct CallOpeningOptions {
  std::string_view tool = {};           // empty: the model chooses
  bool in_reasoning = false;            // the prompt has opened it: it is ended first
  size_t calls_before = 0;              // of the conversation, where a syntax numbers them
  std::string_view template_text = {};  // some models write one of several forms
};

// Empty: the syntax has no calls.
std::vector<OpeningText> CallOpening(const ChatSyntax& syntax, const CallOpeningOptions& options);

}  // namespace moesaic
