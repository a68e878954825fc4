// CallGrammar: what follows a call that was forced: the tool's name where the model chooses it, its
// arguments, and the end of the call, in the model's syntax. Pure.
#pragma once

#include <optional>

#include "serving/api/chat_input.h"
#include "serving/api/served_model.h"
#include "serving/grammar/grammar_spec.h"

namespace moesaic {

// nullopt: syntaxes of tags, whose arguments are text. Throws ApiError (400) for a tool whose
// schema cannot be held to.
std::optional<GrammarSpec> CallGrammar(const ServedModel& model, const ChatInput& chat);

}  // namespace moesaic
