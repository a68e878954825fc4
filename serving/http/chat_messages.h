// Reads the messages, tools and template options of a chat request and brings the messages into the
// form that chat templates expect. Pure; throws ApiError (400).
#pragma once

#include "serving/http/openai_request.h"
#include "serving/http/request_fields.h"

namespace moesaic {

// messages, tools, tool_choice, chat_template_kwargs, add_generation_prompt,
// continue_final_message. Content given as parts is joined with line breaks; arguments of tool
// calls, which come as JSON text, become objects, as templates iterate over them.
ChatInput ParseChatInput(RequestFields& fields);

}  // namespace moesaic
