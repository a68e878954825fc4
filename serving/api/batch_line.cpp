#include "serving/api/batch_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "serving/api/json_text.h"
#include "serving/api/random_id.h"
#include "serving/api/request_fields.h"

namespace moesaic {
namespace {

constexpr size_t kMaxCustomIdBytes = 4096;

std::string CustomId(RequestFields& fields) {
  std::string id = fields.String("custom_id").value_or("");
  if (id.size() > kMaxCustomIdBytes) {
    throw BadParam("custom_id", "custom_id is longer than {} bytes.", kMaxCustomIdBytes);
  }
  return id;
}

void AddDefaults(const PromptDefaults& defaults, Json& body) {
  if (!body.contains("max_tokens")) body["max_tokens"] = defaults.max_tokens;
  if (defaults.temperature >= 0 && !body.contains("temperature")) {
    body["temperature"] = defaults.temperature;
  }
}

Json UserMessage(std::string_view prompt) {
  return Json::array({Json{{"role", "user"}, {"content", std::string(prompt)}}});
}

BatchLine ParsePrompt(Json json, RequestFields& fields, int64_t line_number,
                      const PromptDefaults& defaults) {
  BatchLine line;
  line.custom_id = CustomId(fields);
  if (line.custom_id.empty()) line.custom_id = DefaultCustomId(line_number);
  json.erase("custom_id");
  // Token ids cannot go through a template.
  line.chat = defaults.chat && json["prompt"].is_string();
  if (line.chat) {
    json["messages"] = UserMessage(json["prompt"].get<std::string>());
    json.erase("prompt");
  }
  AddDefaults(defaults, json);
  line.body = DumpJson(json);
  return line;
}

size_t SkipBlanks(std::string_view text, size_t at) {
  return std::min(text.find_first_not_of(" \t\r\n", at), text.size());
}

// Behind the string that begins with the quote at `at`; npos: it has no end.
size_t EndOfString(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '"') return i + 1;
    if (text[i] == '\\') ++i;
  }
  return std::string_view::npos;
}

}  // namespace

std::string DefaultCustomId(int64_t line_number) { return fmt::format("line-{}", line_number); }

std::string FindCustomId(std::string_view line) {
  int depth = 0;
  for (size_t at = 0; at < line.size(); ++at) {
    if (line[at] == '{' || line[at] == '[') ++depth;
    if (line[at] == '}' || line[at] == ']') --depth;
    if (line[at] != '"') continue;
    const size_t end = EndOfString(line, at);
    if (end == std::string_view::npos) return "";
    const size_t colon = SkipBlanks(line, end);
    if (depth != 1 || line.substr(at, end - at) != "\"custom_id\"" || colon == line.size() ||
        line[colon] != ':') {
      at = end - 1;
      continue;
    }
    const size_t begin = SkipBlanks(line, colon + 1);
    if (begin == line.size() || line[begin] != '"') return "";
    const size_t value_end = EndOfString(line, begin);
    if (value_end == std::string_view::npos || value_end - begin > 6 * kMaxCustomIdBytes + 2) {
      return "";
    }
    try {
      const Json id = ParseJson(line.substr(begin, value_end - begin));
      if (id.is_string() && id.get_ref<const std::string&>().size() <= kMaxCustomIdBytes) {
        return id.get<std::string>();
      }
    } catch (const ApiError&) {
      // No UTF-8, or an escape that there is not.
    }
    return "";
  }
  return "";
}

BatchLine ParseBatchLine(std::string_view text, int64_t line_number,
                         const PromptDefaults& defaults) {
  const Json json = ParseJson(text);
  RequestFields fields(json);
  if (fields.Find("body") == nullptr && fields.Find("prompt") != nullptr) {
    return ParsePrompt(json, fields, line_number, defaults);
  }
  BatchLine line;
  line.custom_id = CustomId(fields);
  if (line.custom_id.empty()) throw BadParam("custom_id", "custom_id (a string) is missing.");
  const std::string method = fields.String("method").value_or("POST");
  if (method != "POST") {
    throw BadParam("method", "method must be \"POST\", it is \"{}\".", Excerpt(method, 40));
  }
  const std::string url = fields.String("url").value_or("");
  line.chat = url == "/v1/chat/completions";
  if (!line.chat && url != "/v1/completions") {
    throw BadParam("url",
                   "url must be \"/v1/chat/completions\" or \"/v1/completions\", it is \"{}\".",
                   Excerpt(url, 80));
  }
  const Json* body = fields.Find("body");
  if (body == nullptr || !body->is_object()) {
    throw BadParam("body", "body must be an object, it is {}.",
                   body == nullptr ? "missing" : JsonTypeName(*body));
  }
  line.body = DumpJson(*body);
  return line;
}

BatchLine PromptBatchLine(std::string_view prompt, int64_t line_number,
                          const PromptDefaults& defaults) {
  BatchLine line;
  line.custom_id = DefaultCustomId(line_number);
  line.chat = defaults.chat;
  Json body = Json::object();
  if (line.chat) {
    body["messages"] = UserMessage(prompt);
  } else {
    body["prompt"] = std::string(prompt);
  }
  AddDefaults(defaults, body);
  line.body = DumpJson(body);
  return line;
}

std::string BatchOutputLine(const std::string& custom_id, const std::string& request_id,
                            std::string_view body) {
  return fmt::format(
      R"({{"id":{},"custom_id":{},"response":{{"status_code":200,"request_id":{},"body":{}}},"error":null}})",
      DumpJson(MakeRandomId("batch_req_")), DumpJson(custom_id), DumpJson(request_id), body);
}

std::string BatchErrorLine(int64_t line_number, const std::string& custom_id,
                           const ApiError& error) {
  const Json id = custom_id.empty() ? Json(nullptr) : Json(custom_id);
  return fmt::format(
      R"({{"id":{},"custom_id":{},"line":{},"response":{{"status_code":{},"request_id":null,"body":{}}},"error":{{"code":{},"message":{}}}}})",
      DumpJson(MakeRandomId("batch_req_")), DumpJson(id), line_number, error.status(),
      ErrorBody(error), DumpJson(error.code().empty() ? error.type() : error.code()),
      DumpJson(error.what()));
}

bool IsBatchErrorLine(std::string_view line) {
  try {
    const Json json = ParseJson(line);
    return json.is_object() && json.contains("custom_id") && json.contains("line") &&
           json.contains("response") && json.contains("error") && json["error"].is_object();
  } catch (const ApiError&) {
    return false;
  }
}

std::string CustomIdOfOutput(std::string_view line) {
  // Members: log-probabilities may have one for each token of a prompt.
  const JsonDocument document(line, {64, size_t{1} << 24});
  RequestFields fields(document);
  std::string id = CustomId(fields);
  if (id.empty() || fields.Find("response") == nullptr) {
    throw BadParam("custom_id", "it has no custom_id or no response.");
  }
  return id;
}

}  // namespace moesaic
