// Checks the messages of a conversation and brings them into the form that a template expects.
// Pure functions. Internal to ChatTemplate.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moesaic {

// Templates disagree about what a message with tool calls looks like; ChatTemplate finds out.
struct ToolCallForm {
  bool arguments_as_text = false;  // JSON text instead of an object
  // Content that is null reaches the template as none and the empty text as it is, as with Hugging
  // Face, but for templates that fail so; absent content is empty text, or none.
  bool null_for_empty = false;
  bool empty_for_null = false;
};

// Throws Error(kInvalidArgument) that names the place ("messages[3].content[1].type").
nlohmann::ordered_json NormalizeMessages(const nlohmann::ordered_json& messages,
                                         const ToolCallForm& form);
void CheckTools(const nlohmann::ordered_json& tools);

}  // namespace moesaic
