#include "serving/text/chat_messages.h"

#include <fmt/format.h>

#include <string>

#include "core/base/error.h"
#include "core/base/json.h"

namespace moesaic {
namespace {

[[noreturn]] void Bad(const std::string& where, const std::string& what) {
  Fail(ErrorKind::kInvalidArgument, "{} {}", where, what);
}

std::string JoinParts(const Json& parts, const std::string& where) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Json& part = parts[i];
    const std::string place = fmt::format("{}[{}]", where, i);
    if (i > 0) text += '\n';
    if (part.is_string()) {
      text += part.get_ref<const std::string&>();
      continue;
    }
    if (!part.is_object()) Bad(place, "is neither a string nor an object with a type and a text");
    const auto type = part.find("type");
    if (type != part.end() && *type != "text") {
      Bad(place + ".type", fmt::format("is {}: only \"text\" is supported", type->dump()));
    }
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) Bad(place + ".text", "has to be a string");
    text += value->get_ref<const std::string&>();
  }
  return text;
}

Json NormalizeArguments(const Json& arguments, bool as_text, const std::string& where) {
  Json object = arguments;
  if (arguments.is_null()) {
    object = Json::object();
  } else if (arguments.is_string()) {
    const std::string& text = arguments.get_ref<const std::string&>();
    if (as_text) return arguments;  // as the model wrote it
    object = text.empty() ? Json::object() : Json::parse(text, nullptr, /*allow_exceptions=*/false);
  }
  if (!object.is_object()) Bad(where, "has to be an object or the JSON text of one");
  if (!as_text) return object;
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void NormalizeToolCalls(Json& calls, const ToolCallForm& form, const std::string& where) {
  if (!calls.is_array()) Bad(where, "has to be an array");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = fmt::format("{}[{}]", where, i);
    if (!calls[i].is_object()) Bad(place, "has to be an object");
    const bool wrapped = calls[i].contains("function");
    Json& function = wrapped ? calls[i]["function"] : calls[i];
    const std::string function_place = wrapped ? place + ".function" : place;
    if (!function.is_object()) Bad(function_place, "has to be an object");
    const auto name = function.find("name");
    if (name == function.end() || !name->is_string()) {
      Bad(function_place + ".name", "has to be a string");
    }
    function["arguments"] = NormalizeArguments(
        function.value("arguments", Json()), form.arguments_as_text, function_place + ".arguments");
    if (wrapped && !calls[i].contains("type")) calls[i]["type"] = "function";
  }
}

Json NormalizeMessage(const Json& message, const ToolCallForm& form, const std::string& where) {
  if (!message.is_object()) Bad(where, "has to be an object with a role and a content");
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string() || role->get_ref<const std::string&>().empty()) {
    Bad(where + ".role", "has to be a string such as \"user\"");
  }
  Json result = message;
  if (result.contains("tool_calls") &&
      (result["tool_calls"].is_null() || result["tool_calls"] == Json::array())) {
    result.erase("tool_calls");
  }
  const bool has_calls = result.contains("tool_calls");
  if (has_calls) NormalizeToolCalls(result["tool_calls"], form, where + ".tool_calls");
  Json content = result.value("content", Json());
  if (content.is_array()) {
    content = JoinParts(content, where + ".content");
  } else if (content.is_null()) {
    if (!has_calls) Bad(where + ".content", "is missing: it has to be a string or text parts");
    if (!result.contains("content") || form.empty_for_null) content = "";
  } else if (!content.is_string()) {
    Bad(where + ".content",
        fmt::format("has to be a string or text parts, not {}", content.type_name()));
  }
  if (has_calls && form.null_for_empty && content == "") content = nullptr;
  result["content"] = std::move(content);
  return result;
}

}  // namespace

Json NormalizeMessages(const Json& messages, const ToolCallForm& form) {
  if (!messages.is_array()) Bad("messages", "has to be an array");
  if (messages.empty()) Bad("messages", "is empty: a conversation has at least one message");
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    result.push_back(NormalizeMessage(messages[i], form, fmt::format("messages[{}]", i)));
  }
  return result;
}

void CheckTools(const Json& tools) {
  if (tools.is_null()) return;
  if (!tools.is_array()) Bad("tools", "has to be an array");
  for (size_t i = 0; i < tools.size(); ++i) {
    if (!tools[i].is_object()) Bad(fmt::format("tools[{}]", i), "has to be an object");
  }
}

}  // namespace moesaic
