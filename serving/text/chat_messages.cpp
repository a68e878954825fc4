#include "serving/text/chat_messages.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"

namespace moesaic {
namespace {

// Arguments come from anybody: as deep, and as wide, as the JSON of a request may be.
constexpr int kMaxArgumentsDepth = 64;
constexpr size_t kMaxArgumentsMembers = 1024;
constexpr size_t kMaxQuotedBytes = 40;

[[noreturn]] void Bad(const std::string& where, const std::string& what) {
  throw MessageError(where, what);
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
      const std::string kind = type->dump(-1, ' ', false, Json::error_handler_t::replace);
      Bad(place + ".type", fmt::format("is {}: only \"text\" is supported",
                                       kind.size() > kMaxQuotedBytes ? type->type_name() : kind));
    }
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) Bad(place + ".text", "has to be a string");
    text += value->get_ref<const std::string&>();
  }
  return text;
}

// Discarded: it is no JSON. None: its shape is not sensible.
std::optional<Json> ParseArguments(const std::string& text) {
  std::vector<size_t> members;  // of the open objects and arrays
  bool refused = false;
  Json json = Json::parse(
      text,
      [&](int depth, Json::parse_event_t event, Json&) {
        using Event = Json::parse_event_t;
        if (event == Event::object_start || event == Event::array_start) {
          members.push_back(0);
          refused = refused || depth >= kMaxArgumentsDepth;
        } else if (event == Event::object_end || event == Event::array_end) {
          members.pop_back();
        } else if (event == Event::key) {
          refused = refused || ++members.back() > kMaxArgumentsMembers;
        }
        return !refused;
      },
      /*allow_exceptions=*/false);
  if (refused) return std::nullopt;
  return json;
}

Json NormalizeArguments(const Json& arguments, MessageForm::Arguments form,
                        const std::string& where) {
  using Form = MessageForm::Arguments;
  Json object = arguments;
  if (arguments.is_null()) {
    object = Json::object();
  } else if (arguments.is_string()) {
    const std::string& text = arguments.get_ref<const std::string&>();
    object = Json::object();
    if (!text.empty()) {
      std::optional<Json> parsed = ParseArguments(text);
      if (!parsed.has_value()) {
        Bad(where, "is nested too deeply or has an object of too many members");
      }
      // What a model wrote, damaged or cut off: an agent that tells it so sends it back as it came.
      // A template that wants an object gets the text as its only member.
      if (parsed->is_object()) {
        object = std::move(*parsed);
      } else {
        object["arguments"] = text;
      }
    }
  }
  if (!object.is_object()) Bad(where, "has to be an object or the JSON text of one");
  // Text stays as the model wrote it where it may.
  if (form == Form::kAsGiven || (form == Form::kText && arguments.is_string())) return arguments;
  if (form == Form::kObject) return object;
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void NormalizeToolCalls(Json& calls, const MessageForm& form, const std::string& where) {
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
    function["arguments"] = NormalizeArguments(function.value("arguments", Json()), form.arguments,
                                               function_place + ".arguments");
    if (wrapped && !calls[i].contains("type")) calls[i]["type"] = "function";
  }
}

// True when there is some.
bool NormalizeReasoning(Json& message, const std::string& where) {
  constexpr std::array<const char*, 2> kNames = {"reasoning", "reasoning_content"};
  Json reasoning;
  for (const char* name : kNames) {
    const auto found = message.find(name);
    if (found == message.end()) continue;
    if (!found->is_string() && !found->is_null()) {
      Bad(fmt::format("{}.{}", where, name), "has to be a string");
    }
    if (reasoning.is_null()) reasoning = *found;
    message.erase(found);
  }
  if (reasoning.is_null() || reasoning == Json("")) return false;
  for (const char* name : kNames) message[name] = reasoning;
  return true;
}

Json NormalizeMessage(const Json& message, const MessageForm& form, const std::string& where) {
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
  const bool has_reasoning = NormalizeReasoning(result, where);
  if (has_calls) NormalizeToolCalls(result["tool_calls"], form, where + ".tool_calls");
  Json content = result.value("content", Json());
  if (content.is_array()) {
    content = JoinParts(content, where + ".content");
  } else if (content.is_null()) {
    if (!has_calls && !has_reasoning) {
      Bad(where + ".content", "is missing: it has to be a string or text parts");
    }
    if (!has_calls || !result.contains("content") || form.empty_for_null) content = "";
  } else if (!content.is_string()) {
    Bad(where + ".content",
        fmt::format("has to be a string or text parts, not {}", content.type_name()));
  }
  const bool is_empty = content.is_null() || content == Json("");
  if (form.thinking && has_reasoning && has_calls && is_empty) {
    result["thinking"] = result["reasoning"];
  }
  if (has_calls && form.null_for_empty && is_empty) content = nullptr;
  result["content"] = std::move(content);
  return result;
}

}  // namespace

Json NormalizeMessages(const Json& messages, const MessageForm& form) {
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
