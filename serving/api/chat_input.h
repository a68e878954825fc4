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
};

// messages, tools, tool_choice, chat_template_kwargs, add_generation_prompt,
// continue_final_message.
ChatInput ParseChatInput(RequestFields& fields);

}  // namespace moesaic
