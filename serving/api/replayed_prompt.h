// ReplayedPrompt: the tokens of a conversation in which the model's own turns are what it generated
// (replay_store.h), wherever they mean the same as what the client has sent back. Pure but for the
// store; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/api/chat_input.h"
#include "serving/api/served_model.h"
#include "serving/text/jinja/marked_text.h"

namespace moesaic {

// `prompt`: of the messages, through the model's template. Without turns that are known, and for
// models without a store, these are EncodeMarked's tokens.
std::vector<int32_t> EncodeReplayed(const ServedModel& model, const ChatInput& chat,
                                    const jinja::MarkedText& prompt, bool add_special_tokens);

}  // namespace moesaic
