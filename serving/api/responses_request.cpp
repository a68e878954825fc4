#include "serving/api/responses_request.h"

#include <algorithm>
#include <array>
#include <utility>

#include "serving/api/conversation_builder.h"
#include "serving/api/request_parts.h"

namespace moesaic {
namespace {

// A string, or parts of text.
std::string ItemText(RequestFields& item, std::string_view name) {
  const Json* content = item.Find(name);
  const std::string place = item.Name(name);
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    throw BadParam(place, "{} must be a string or an array of parts, it is {}.", place,
                   JsonTypeName(*content));
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    RequestFields part((*content)[i], fmt::format("{}[{}].", place, i));
    const std::string type = part.RequiredString("type");
    constexpr std::array<std::string_view, 5> kTexts = {"input_text", "output_text", "text",
                                                        "reasoning_text", "summary_text"};
    const bool known = std::find(kTexts.begin(), kTexts.end(), type) != kTexts.end();
    if (!known && type != "refusal") {
      throw BadParam(part.Name("type"), "{} is \"{}\": only text is supported here.",
                     part.Name("type"), Excerpt(type, 40));
    }
    if (i > 0) text += '\n';
    text += part.RequiredString(known ? "text" : "refusal");
  }
  return text;
}

void ParseMessageItem(RequestFields& item, ConversationBuilder& conversation) {
  const std::string role = item.RequiredString("role");
  const std::string text = ItemText(item, "content");
  if (role == "system" || role == "developer") {
    conversation.AddSystem(text);
  } else if (role == "user") {
    conversation.AddUser(text);
  } else if (role == "assistant") {
    conversation.AddAnswer(text);
  } else {
    throw BadParam(item.Name("role"),
                   "{} must be \"user\", \"assistant\", \"system\" or \"developer\", it is \"{}\".",
                   item.Name("role"), Excerpt(role, 40));
  }
}

// `ignored` gets the types that mean nothing here.
void ParseItem(RequestFields& item, ConversationBuilder& conversation,
               std::vector<std::string>& ignored) {
  const std::string type = item.String("type").value_or("message");
  if (type == "message") {
    ParseMessageItem(item, conversation);
  } else if (type == "function_call") {
    conversation.AddCall(item.RequiredString("call_id"), item.RequiredString("name"),
                         item.String("arguments").value_or("{}"));
  } else if (type == "custom_tool_call") {
    conversation.AddCall(item.RequiredString("call_id"), item.RequiredString("name"),
                         Json{{"input", item.String("input").value_or("")}});
  } else if (type == "function_call_output" || type == "custom_tool_call_output") {
    conversation.AddResult(item.RequiredString("call_id"), ItemText(item, "output"));
  } else if (type == "reasoning") {
    std::string text = ItemText(item, "content");
    conversation.AddReasoning(text.empty() ? ItemText(item, "summary") : text);
  } else if (type == "item_reference") {
    throw BadParam(item.Name("type"),
                   "{} is \"item_reference\", but this server keeps no items; send them again.",
                   item.Name("type"));
  } else {
    ignored.push_back(fmt::format("input[].type={}", Excerpt(type, 40)));
  }
}

void ParseInput(RequestFields& fields, ConversationBuilder& conversation,
                std::vector<std::string>& ignored) {
  if (const auto instructions = fields.String("instructions"); instructions.value_or("") != "") {
    conversation.AddSystem(*instructions);
  }
  const Json* input = fields.Find("input");
  if (input == nullptr) throw BadParam("input", "input is missing.");
  if (input->is_string()) return conversation.AddUser(input->get<std::string>());
  if (!input->is_array()) {
    throw BadParam("input", "input must be a string or an array of items, it is {}.",
                   JsonTypeName(*input));
  }
  for (size_t i = 0; i < input->size(); ++i) {
    RequestFields item((*input)[i], fmt::format("input[{}].", i));
    ParseItem(item, conversation, ignored);
  }
  if (conversation.empty()) throw BadParam("input", "input has nothing to answer.");
}

// Tools that OpenAI's own machines run, or whose calls are no JSON, are left out: agents send them
// to whoever listens.
Json ParseFunctionTools(RequestFields& fields, std::vector<std::string>& ignored) {
  const Json* value = fields.Find("tools");
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    throw BadParam("tools", "tools must be an array, it is {}.", JsonTypeName(*value));
  }
  Json tools = Json::array();
  for (size_t i = 0; i < value->size(); ++i) {
    RequestFields tool((*value)[i], fmt::format("tools[{}].", i));
    const std::string type = tool.RequiredString("type");
    if (type != "function") {
      ignored.push_back(fmt::format("tools[].type={}", Excerpt(type, 40)));
      continue;
    }
    const std::string name = tool.RequiredString("name");
    tools.push_back(
        FunctionTool(name, tool.String("description").value_or(""), tool.Find("parameters")));
    if (tool.Bool("strict").value_or(false)) tools.back()["function"]["strict"] = true;
  }
  return tools;
}

// The same names as in chats, without the object `function` within.
ToolChoice ParseItemToolChoice(RequestFields& fields) {
  const Json* value = fields.Find("tool_choice");
  if (value == nullptr) return {};
  if (value->is_string()) return ReadToolChoice(value->get<std::string>());
  RequestFields named(*value, "tool_choice.");
  const std::string type = named.String("type").value_or("");
  if (type == "allowed_tools") return ReadAllowedTools(named);
  if (type != "function") return {};  // of a tool that was left out
  return {ToolChoice::Kind::kRequired, {named.RequiredString("name")}};
}

void ParseFormat(RequestFields& fields, ApiRequest& request) {
  const Json* value = fields.Find("text");
  if (value == nullptr) return;
  RequestFields text(*value, "text.");
  const Json* format = text.Find("format");
  if (format == nullptr) return;
  ReadResponseFormat(*format, "text.format", request);
}

// What needs a server that remembers.
void RefuseState(RequestFields& fields) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"}) {
    if (fields.Find(name) == nullptr) continue;
    throw BadParam(name,
                   "{} is not supported: this server keeps no responses. Send the whole "
                   "conversation as input.",
                   name);
  }
  if (fields.Bool("background").value_or(false)) {
    throw BadParam("background", "background is not supported: this server keeps no responses.");
  }
}

// What a response repeats of its request.
Json EchoOf(RequestFields& fields) {
  Json echo = Json::object();
  const auto repeat = [&](const char* name, const Json& otherwise) {
    const Json* value = fields.Find(name);
    echo[name] = value == nullptr ? otherwise : *value;
  };
  repeat("instructions", nullptr);
  repeat("max_output_tokens", nullptr);
  repeat("metadata", Json::object());
  repeat("parallel_tool_calls", true);
  repeat("reasoning", Json{{"effort", nullptr}, {"summary", nullptr}});
  repeat("temperature", nullptr);
  repeat("text", Json{{"format", Json{{"type", "text"}}}});
  repeat("tool_choice", "auto");
  repeat("tools", Json::array());
  repeat("top_p", nullptr);
  repeat("truncation", "disabled");
  echo["previous_response_id"] = nullptr;
  echo["store"] = false;
  return echo;
}

}  // namespace

ChatRequest ParseResponsesRequest(std::string_view body, const std::atomic<bool>* gone) {
  const JsonDocument document(body, {}, gone);
  RequestFields fields(document);
  RefuseState(fields);
  ChatRequest request;
  ChatInput& chat = request.chat;
  request.model = fields.String("model").value_or("");
  ParseTreatment(fields, request);
  request.max_tokens = ParseTokenCount(fields, "max_output_tokens", 1);
  request.max_tokens_name = "max_output_tokens";
  request.cut_to_context = true;
  request.stream = fields.Bool("stream").value_or(false);
  request.sampling = ParseSampling(fields);
  request.stop = ParseStop(fields, "stop");
  if (fields.Int("top_logprobs", 0, INT32_MAX).value_or(0) > 0) {
    throw BadParam("top_logprobs",
                   "top_logprobs is not supported here; /v1/chat/completions has it.");
  }
  ParseFormat(fields, request);
  ConversationBuilder conversation;
  ParseInput(fields, conversation, request.unknown_fields);
  chat.messages = conversation.Take();
  Json tools = ParseFunctionTools(fields, request.unknown_fields);
  SetTools(std::move(tools), ParseItemToolChoice(fields), chat);
  chat.parallel_tool_calls = fields.Bool("parallel_tool_calls").value_or(true);
  if (const Json* value = fields.Find("reasoning")) {
    RequestFields reasoning(*value, "reasoning.");
    if (const auto effort = reasoning.String("effort")) {
      SetReasoningEffort(*effort, "reasoning.effort", chat);
    }
  }
  request.response_fields = EchoOf(fields);
  // Known, and nothing to do here: nothing is stored, and clients get a stream's padding nowhere.
  for (const char* name :
       {"store", "include", "metadata", "user", "service_tier", "prompt_cache_key",
        "safety_identifier", "stream_options", "client_metadata", "prompt_cache_retention"}) {
    fields.Find(name);
  }
  KeepUnknown(fields, request);
  return request;
}

}  // namespace moesaic
