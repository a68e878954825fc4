#include "serving/api/chat_input.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>

#include "serving/text/chat_messages.h"

namespace moesaic {
namespace {

Json ParseMessages(RequestFields& fields) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) throw BadParam("messages", "messages is missing.");
  try {
    return NormalizeMessages(*messages, {.arguments = MessageForm::Arguments::kAsGiven});
  } catch (const MessageError& error) {
    throw BadParam(error.where(), "{}.", error.what());
  }
}

// True when calls are wanted, where there are tools.
bool ParseToolChoice(RequestFields& fields) {
  const Json* choice = fields.Find("tool_choice");
  if (choice == nullptr) return true;
  std::string kind;
  if (choice->is_string()) {
    kind = choice->get<std::string>();
    if (kind == "none" || kind == "auto") return kind == "auto";
  } else {
    RequestFields named(*choice, "tool_choice.");
    kind = named.String("type").value_or("");
  }
  if (kind != "required" && kind != "function" && kind != "allowed_tools") {
    throw BadParam("tool_choice",
                   "tool_choice \"{}\" is not known; it is \"auto\" or \"none\" here.",
                   Excerpt(kind, 40));
  }
  throw BadParam("tool_choice",
                 "tool_choice \"{}\" needs a grammar that forces the call, and this server has no "
                 "grammars; \"auto\" and \"none\" work.",
                 kind);
}

Json ParseTools(RequestFields& fields) {
  const Json* tools = fields.Find("tools");
  if (!ParseToolChoice(fields)) return nullptr;
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
  return tools->empty() ? Json(nullptr) : *tools;
}

// What a client says of reasoning, in the words that templates have for it. What it says to the
// template itself comes first.
void ParseReasoning(RequestFields& fields, ChatInput& chat) {
  constexpr std::array<std::string_view, 7> kEfforts = {"none", "minimal", "low", "medium",
                                                        "high", "xhigh",   "max"};
  const auto set = [&chat](const char* name, Json value) {
    if (!chat.template_kwargs.contains(name)) chat.template_kwargs[name] = std::move(value);
  };
  const auto set_thinking = [&](bool thinking) {
    set("enable_thinking", thinking);
    set("thinking", thinking);
  };
  if (const auto effort = fields.String("reasoning_effort")) {
    if (std::find(kEfforts.begin(), kEfforts.end(), *effort) == kEfforts.end()) {
      throw BadParam("reasoning_effort", "reasoning_effort must be one of {}, it is \"{}\".",
                     fmt::join(kEfforts, ", "), Excerpt(*effort, 40));
    }
    set("reasoning_effort", *effort);
    if (*effort == "none") set_thinking(false);
  }
  if (const Json* thinking = fields.Find("thinking")) {
    RequestFields inner(*thinking, "thinking.");
    const std::string type = inner.String("type").value_or("");
    if (type != "enabled" && type != "disabled") {
      throw BadParam("thinking.type",
                     "thinking.type must be \"enabled\" or \"disabled\", it is \"{}\".",
                     Excerpt(type, 40));
    }
    set_thinking(type == "enabled");
  }
  chat.separate_reasoning = fields.Bool("separate_reasoning").value_or(true);
  chat.include_reasoning = fields.Bool("include_reasoning").value_or(true);
}

}  // namespace

ChatInput ParseChatInput(RequestFields& fields) {
  ChatInput chat;
  chat.messages = ParseMessages(fields);
  chat.tools = ParseTools(fields);
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
