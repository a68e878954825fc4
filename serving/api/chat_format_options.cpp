#include "serving/api/chat_format_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/config/setting_section.h"
#include "serving/api/chat/chat_syntax.h"

namespace moesaic {

void AddChatFormatSettings(ChatFormatOptions& options, bool visible, OptionTable& table) {
  const SettingSection section(table, "Model", visible);
  section.Add({.name = "chat-template",
               .target = &options.chat_template,
               .value_name = "FILE",
               .help = "A chat template (Jinja) to use in place of the model's own."});
  section.Add({.name = "tool-call-parser",
               .target = &options.tool_call_parser,
               .value_name = "NAME",
               .help = fmt::format(
                   "How the model writes calls of tools: auto (its chat template tells), none, or "
                   "one of vLLM's names: {}.",
                   fmt::join(ToolParserNames(), ", "))});
  section.Add(
      {.name = "reasoning-parser",
       .target = &options.reasoning_parser,
       .value_name = "NAME",
       .help = fmt::format(
           "How the model writes reasoning: auto (its chat template tells), none, or one of "
           "vLLM's names: {}.",
           fmt::join(ReasoningParserNames(), ", "))});
}

}  // namespace moesaic
