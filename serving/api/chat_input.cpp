#include "serving/api/chat_input.h"

#include "serving/text/chat_messages.h"

namespace moesaic {
namespace {

Json ParseMessages(RequestFields& fields) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) throw BadParam("messages", "messages is missing.");
  try {
    return NormalizeMessages(*messages, {.arguments = ToolCallForm::Arguments::kAsGiven});
  } catch (const MessageError& error) {
    throw BadParam(error.where(), "{}.", error.what());
  }
}

Json ParseTools(RequestFields& fields) {
  const Json* tools = fields.Find("tools");
  if (const Json* choice = fields.Find("tool_choice")) {
    const std::string kind = choice->is_string() ? choice->get<std::string>() : "a named function";
    if (kind == "none") return nullptr;
    if (kind != "auto") {
      throw BadParam("tool_choice",
                     "tool_choice \"{}\" is not supported, only \"auto\" and \"none\" are.",
                     Excerpt(kind, 40));
    }
  }
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
