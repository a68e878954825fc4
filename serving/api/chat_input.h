// ChatInput: the part of a request that a chat template makes a prompt of. Pure; reading it throws
// ApiError (400).
#pragma once

#include "core/base/json.h"
#include "serving/api/request_fields.h"

namespace moesaic {

struct ChatInput {
  Json messages;  // array of objects, checked; content is a string, or null beside tool calls
  Json tools;     // array or null
  Json template_kwargs = Json::object();
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool parallel_tool_calls = true;
  bool separate_reasoning = true;  // false: it is part of the content
  bool include_reasoning = true;
};

// messages, tools, tool_choice, parallel_tool_calls, reasoning_effort, thinking,
// separate_reasoning, include_reasoning, chat_template_kwargs, add_generation_prompt,
// continue_final_message.
ChatInput ParseChatInput(RequestFields& fields);

}  // namespace moesaic
