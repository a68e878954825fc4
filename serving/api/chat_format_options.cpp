#include "serving/api/chat_format_options.h"

#include "core/config/setting_section.h"

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
               .help = "How the model writes calls of tools: auto (its chat template tells), none, "
                       "or one of vLLM's names: hermes, qwen3_coder, glm45, deepseek_v3, "
                       "deepseek_v31, deepseek_v32, kimi_k2, mistral, minimax_m2, openai, ..."});
  section.Add({.name = "reasoning-parser",
               .target = &options.reasoning_parser,
               .value_name = "NAME",
               .help = "How the model writes reasoning: auto (its chat template tells), none, or "
                       "one of vLLM's names: deepseek_r1, deepseek_v3, qwen3, glm45, kimi_k2, "
                       "mistral, minimax_m2, openai_gptoss."});
}

}  // namespace moesaic
