// ChatInput: the part of a request that a chat template makes a prompt of. Pure; reading it throws
// ApiError (400).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "serving/api/request_fields.h"

namespace moesaic {

struct ToolChoice {
  enum class Kind { kAuto, kNone, kRequired };

  Kind kind = Kind::kAuto;
  // The tools that may be called; empty: all.
  std::vector<std::string> names;
};

struct ChatInput {
  Json messages;  // array of objects, checked; content is a string, or null beside tool calls
  Json tools;     // array or null
  Json template_kwargs = Json::object();
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  // The answer begins with a call: of this tool, where there is a name.
  bool force_call = false;
  std::string forced_tool;
  bool parallel_tool_calls = true;
  std::optional<int32_t> thinking_budget;  // tokens of reasoning, at most
  bool separate_reasoning = true;          // false: it is part of the content
  bool include_reasoning = true;
};

// messages, tools, tool_choice, parallel_tool_calls, reasoning_effort, thinking,
// thinking_token_budget, reasoning_budget, separate_reasoning, include_reasoning,
// chat_template_kwargs, add_generation_prompt, continue_final_message.
ChatInput ParseChatInput(RequestFields& fields);

// For readers of other dialects; all throw ApiError (400).
// A count of tokens; -1 and absence: no limit. Sets ChatInput::thinking_budget.
void ParseThinkingBudget(RequestFields& fields, std::string_view name, ChatInput& chat);
// "auto", "none" or "required".
ToolChoice ReadToolChoice(const std::string& word);
// {"mode", "tools": [{"type", "name" or "function": {"name"}}]}
ToolChoice ReadAllowedTools(RequestFields& fields);
// `tools`: in OpenAI's shape, or null.
void SetTools(Json tools, const ToolChoice& choice, ChatInput& chat);
// Templates call it `enable_thinking` or `thinking`; what the client says to the template comes
// first.
void SetThinking(bool thinking, ChatInput& chat);
// `param` names it in messages. "none" switches thinking off.
void SetReasoningEffort(const std::string& effort, std::string_view param, ChatInput& chat);

}  // namespace moesaic
