// ChatFormatOptions: how conversations become prompts, and answers are read.
//
// Plain data. AddChatFormatSettings binds settings to its fields.
#pragma once

#include <filesystem>
#include <string>

namespace moesaic {

class OptionTable;

struct ChatFormatOptions {
  std::filesystem::path chat_template;    // a file; empty: the model's own
  std::string tool_call_parser = "auto";  // auto, none, or a name that vLLM has
  std::string reasoning_parser = "auto";  // likewise
};

// `visible`: see SettingSection.
void AddChatFormatSettings(ChatFormatOptions& options, bool visible, OptionTable& table);

}  // namespace moesaic
