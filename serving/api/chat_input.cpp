#include "serving/api/chat_input.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "serving/text/chat_messages.h"

namespace moesaic {
namespace {

// A role that a template does not know may vanish from the prompt without a word.
void CheckRole(Json& message, size_t number) {
  constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                      "assistant", "tool",      "function"};
  const std::string& role = message["role"].get_ref<const std::string&>();
  if (std::find(kRoles.begin(), kRoles.end(), role) == kRoles.end()) {
    const std::string name = fmt::format("messages[{}].role", number);
    throw BadParam(name, "{} must be one of {}, it is \"{}\".", name, fmt::join(kRoles, ", "),
                   Excerpt(role, 40));
  }
  // The newer name of the same thing; templates know the older one.
  if (role == "developer") message["role"] = "system";
}

Json ParseMessages(RequestFields& fields) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) throw BadParam("messages", "messages is missing.");
  try {
    Json checked = NormalizeMessages(*messages, {.arguments = MessageForm::Arguments::kAsGiven});
    for (size_t i = 0; i < checked.size(); ++i) CheckRole(checked[i], i);
    return checked;
  } catch (const MessageError& error) {
    throw BadParam(error.where(), "{}.", error.what());
  }
}

// {"function": {"name"}}, or {"name"} as the Responses API has it.
std::string ToolName(RequestFields& tool) {
  const Json* function = tool.Find("function");
  const auto name = function == nullptr
                        ? tool.String("name")
                        : RequestFields(*function, tool.Name("function.")).String("name");
  if (!name)
    throw BadParam(tool.Name("function.name"), "{} is missing.", tool.Name("function.name"));
  return *name;
}

ToolChoice ParseToolChoice(RequestFields& fields) {
  const Json* value = fields.Find("tool_choice");
  if (value == nullptr) return {};
  if (value->is_string()) return ReadToolChoice(value->get<std::string>());
  RequestFields named(*value, "tool_choice.");
  const std::string type = named.String("type").value_or("");
  if (type == "allowed_tools") {
    const Json* allowed = named.Find("allowed_tools");
    if (allowed == nullptr) throw BadParam("tool_choice", "tool_choice.allowed_tools is missing.");
    RequestFields inner(*allowed, "tool_choice.allowed_tools.");
    return ReadAllowedTools(inner);
  }
  if (type != "function") {
    throw BadParam("tool_choice.type",
                   "tool_choice.type must be \"function\" or \"allowed_tools\", it is \"{}\".",
                   Excerpt(type, 40));
  }
  return {ToolChoice::Kind::kRequired, {ToolName(named)}};
}

Json ParseTools(RequestFields& fields) {
  const Json* tools = fields.Find("tools");
  if (tools == nullptr) return nullptr;
  if (!tools->is_array()) {
    throw BadParam("tools", "tools must be an array, it is {}.", JsonTypeName(*tools));
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    RequestFields tool((*tools)[i], name + ".");
    const Json* function = tool.Find("function");
    if (function == nullptr || !function->is_object()) {
      throw BadParam(name, "{} must have an object function.", name);
    }
  }
  return *tools;
}

void SetKwarg(const char* name, Json value, ChatInput& chat) {
  if (!chat.template_kwargs.contains(name)) chat.template_kwargs[name] = std::move(value);
}

// What a client says of reasoning, in the words that templates have for it.
void ParseReasoning(RequestFields& fields, ChatInput& chat) {
  if (const auto effort = fields.String("reasoning_effort")) {
    SetReasoningEffort(*effort, "reasoning_effort", chat);
  }
  if (const Json* thinking = fields.Find("thinking")) {
    RequestFields inner(*thinking, "thinking.");
    const std::string type = inner.String("type").value_or("");
    if (type != "enabled" && type != "disabled") {
      throw BadParam("thinking.type",
                     "thinking.type must be \"enabled\" or \"disabled\", it is \"{}\".",
                     Excerpt(type, 40));
    }
    SetThinking(type == "enabled", chat);
    ParseThinkingBudget(inner, "budget_tokens", chat);
  }
  for (const char* name : {"thinking_token_budget", "reasoning_budget"}) {  // vLLM's, llama.cpp's
    ParseThinkingBudget(fields, name, chat);
  }
  chat.separate_reasoning = fields.Bool("separate_reasoning").value_or(true);
  chat.include_reasoning = fields.Bool("include_reasoning").value_or(true);
}

}  // namespace

ToolChoice ReadToolChoice(const std::string& word) {
  if (word == "auto") return {};
  if (word == "none") return {ToolChoice::Kind::kNone, {}};
  if (word == "required") return {ToolChoice::Kind::kRequired, {}};
  throw BadParam("tool_choice",
                 "tool_choice \"{}\" is not known; it is \"auto\", \"none\", \"required\" or an "
                 "object that names a function.",
                 Excerpt(word, 40));
}

ToolChoice ReadAllowedTools(RequestFields& fields) {
  ToolChoice choice = ReadToolChoice(fields.String("mode").value_or("auto"));
  const Json* tools = fields.Find("tools");
  if (tools == nullptr || !tools->is_array() || tools->empty()) {
    throw BadParam(fields.Name("tools"), "{} must be an array of tools.", fields.Name("tools"));
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    RequestFields tool((*tools)[i], fmt::format("{}[{}].", fields.Name("tools"), i));
    choice.names.push_back(ToolName(tool));
  }
  return choice;
}

void SetTools(Json tools, const ToolChoice& choice, ChatInput& chat) {
  chat.tools = nullptr;
  if (choice.kind == ToolChoice::Kind::kNone) return;
  const bool required = choice.kind == ToolChoice::Kind::kRequired;
  if (!tools.is_array() || tools.empty()) {
    if (required)
      throw BadParam("tool_choice", "tool_choice asks for a call, but there are no tools.");
    return;
  }
  const auto find = [&tools](const std::string& name) {
    return std::find_if(tools.begin(), tools.end(), [&name](const Json& tool) {
      return tool["function"].value("name", Json()) == Json(name);
    });
  };
  Json allowed = Json::array();
  for (const std::string& name : choice.names) {
    const auto tool = find(name);
    if (tool == tools.end()) {
      throw BadParam("tool_choice", "tool_choice names the tool \"{}\", which tools does not have.",
                     Excerpt(name, 40));
    }
    allowed.push_back(*tool);
  }
  chat.force_call = required;
  if (required && choice.names.size() == 1) {
    // The others stay in the prompt, whose beginning then remains that of other requests.
    chat.forced_tool = choice.names.front();
  } else if (!choice.names.empty()) {
    tools = std::move(allowed);
  }
  chat.tools = std::move(tools);
}

void ParseThinkingBudget(RequestFields& fields, std::string_view name, ChatInput& chat) {
  const auto budget = fields.Int(name, -1, INT32_MAX);
  if (budget.value_or(-1) >= 0) chat.thinking_budget = static_cast<int32_t>(*budget);
}

void SetThinking(bool thinking, ChatInput& chat) {
  SetKwarg("enable_thinking", thinking, chat);
  SetKwarg("thinking", thinking, chat);
}

void SetReasoningEffort(const std::string& effort, std::string_view param, ChatInput& chat) {
  constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                        "high", "xhigh",   "max"};
  if (std::find(kEfforts.begin(), kEfforts.end(), effort) == kEfforts.end()) {
    throw BadParam(param, "{} must be one of {}, it is \"{}\".", param, fmt::join(kEfforts, ", "),
                   Excerpt(effort, 40));
  }
  SetKwarg("reasoning_effort", effort, chat);
  if (effort == "none") SetThinking(false, chat);
}

ChatInput ParseChatInput(RequestFields& fields) {
  ChatInput chat;
  chat.messages = ParseMessages(fields);
  const ToolChoice choice = ParseToolChoice(fields);
  SetTools(ParseTools(fields), choice, chat);
  if (const Json* kwargs = fields.Find("chat_template_kwargs")) {
    if (!kwargs->is_object()) {
      throw BadParam("chat_template_kwargs", "chat_template_kwargs must be an object, it is {}.",
                     JsonTypeName(*kwargs));
    }
    chat.template_kwargs = *kwargs;
  }
  ParseReasoning(fields, chat);
  chat.parallel_tool_calls = fields.Bool("parallel_tool_calls").value_or(true);
  if (fields.Find("chat_template") != nullptr) {
    throw BadParam("chat_template", "A chat template in the request is not accepted.");
  }
  const auto add_generation_prompt = fields.Bool("add_generation_prompt");
  chat.continue_final_message = fields.Bool("continue_final_message").value_or(false);
  if (chat.continue_final_message && add_generation_prompt.value_or(false)) {
    throw BadParam("continue_final_message",
                   "continue_final_message and add_generation_prompt exclude each other.");
  }
  chat.add_generation_prompt = add_generation_prompt.value_or(!chat.continue_final_message);
  return chat;
}

}  // namespace moesaic
