// How the answer to a chat is read, and steered, by the way in which the model writes: its syntax
// of reasoning and calls (ChatFormat). Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "serving/api/chat_answer.h"
#include "serving/api/chat_input.h"
#include "serving/api/served_model.h"
#include "serving/text/jinja/marked_text.h"

namespace moesaic {

struct ThinkingLimit;

// Null: the answer is text as it comes.
std::shared_ptr<AnswerParsing> ParsingOf(const ServedModel& model, const ChatInput& chat,
                                         const jinja::MarkedText& prompt);

// Puts the beginning of a call behind the prompt, and into what the answer is. `parsing` may be
// null. Throws ApiError (400) where the model's syntax of calls is not known.
void ForceCall(const ServedModel& model, const ChatInput& chat, jinja::MarkedText& prompt,
               AnswerParsing* parsing);

// Calls of the messages so far.
size_t CountCalls(const Json& messages);

// Null: how the model thinks is not known.
std::shared_ptr<const ThinkingLimit> ThinkingLimitOf(const ServedModel& model, int32_t max_tokens,
                                                     const jinja::MarkedText& prompt);

}  // namespace moesaic
