#include "serving/http/chat_messages.h"

namespace moesaic {
namespace {

std::string JoinParts(const Json& parts, const std::string& param) {
  std::string text;
  bool first = true;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", param, i);
    if (!first) text += '\n';
    first = false;
    if (parts[i].is_string()) {
      text += parts[i].get_ref<const std::string&>();
      continue;
    }
    RequestFields part(parts[i], name + ".");
    const std::string type = part.String("type").value_or("text");
    if (type != "text") {
      throw BadParam(name + ".type", "{}.type is \"{}\"; this model takes text only.", name,
                     Excerpt(type, 40));
    }
    auto value = part.String("text");
    if (!value.has_value()) throw BadParam(name + ".text", "{}.text is missing.", name);
    text += *value;
  }
  return text;
}

void NormalizeToolCalls(Json& calls, const std::string& param) {
  if (!calls.is_array()) {
    throw BadParam(param, "{} must be an array, it is {}.", param, JsonTypeName(calls));
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", param, i);
    RequestFields fields(calls[i], name + ".");
    const Json* function = fields.Find("function");
    if (function == nullptr || !function->is_object()) {
      throw BadParam(name, "{} must have an object function.", name);
    }
    Json& arguments = calls[i]["function"]["arguments"];
    if (arguments.is_null()) {
      arguments = Json::object();
    } else if (arguments.is_string()) {
      const std::string text = arguments.get<std::string>();
      try {
        arguments = text.empty() ? Json::object() : ParseJson(text);
      } catch (const ApiError&) {
        throw BadParam(name + ".function.arguments",
                       "{}.function.arguments must be the text of a JSON object.", name);
      }
    }
    if (!arguments.is_object()) {
      throw BadParam(name + ".function.arguments", "{}.function.arguments must be a JSON object.",
                     name);
    }
  }
}

Json NormalizeMessage(const Json& message, const std::string& param) {
  RequestFields fields(message, param + ".");
  const auto role = fields.String("role");
  if (!role.has_value() || role->empty()) {
    throw BadParam(param + ".role", "{}.role is missing.", param);
  }
  Json result = message;
  const auto content = result.find("content");
  const auto tool_calls = result.find("tool_calls");
  const bool has_calls = tool_calls != result.end() && !tool_calls->is_null();
  if (content == result.end() || content->is_null()) {
    if (!has_calls) throw BadParam(param + ".content", "{}.content is missing.", param);
  } else if (content->is_array()) {
    *content = JoinParts(*content, param + ".content");
  } else if (!content->is_string()) {
    throw BadParam(param + ".content",
                   "{}.content must be a string or an array of parts, it is {}.", param,
                   JsonTypeName(*content));
  }
  if (has_calls) {
    NormalizeToolCalls(result["tool_calls"], param + ".tool_calls");
  } else if (result.contains("tool_calls")) {
    result.erase("tool_calls");
  }
  return result;
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
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) throw BadParam("messages", "messages is missing.");
  if (!messages->is_array()) {
    throw BadParam("messages", "messages must be an array, it is {}.", JsonTypeName(*messages));
  }
  if (messages->empty()) throw BadParam("messages", "messages must not be empty.");
  chat.messages = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    chat.messages.push_back(NormalizeMessage((*messages)[i], fmt::format("messages[{}]", i)));
  }
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
