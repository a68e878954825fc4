// Checks the messages of a conversation and brings them into the form that a template expects.
// Pure functions. Internal to ChatTemplate.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace moesaic {

// Templates disagree about what a message with tool calls looks like; ChatTemplate finds out.
struct ToolCallForm {
  bool arguments_as_text = false;  // JSON text instead of an object
  bool null_content = false;       // absent or empty content is none instead of ""
};

// Throws Error(kInvalidArgument) that names the place ("messages[3].content[1].type").
nlohmann::ordered_json NormalizeMessages(const nlohmann::ordered_json& messages,
                                         const ToolCallForm& form);
void CheckTools(const nlohmann::ordered_json& tools);

}  // namespace moesaic
