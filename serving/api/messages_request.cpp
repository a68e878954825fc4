#include "serving/api/messages_request.h"

#include <utility>

#include "serving/api/conversation_builder.h"
#include "serving/api/prompt_builder.h"
#include "serving/api/request_parts.h"

namespace moesaic {
namespace {

// Claude Code begins the system text with it. Its checksum changes from request to request, and a
// prefix that changes at its beginning is never found in the cache.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

std::string WithoutBillingHeader(std::string text) {
  if (!text.starts_with(kBillingHeader)) return text;
  const size_t end = text.find('\n');
  return end == std::string::npos ? std::string() : text.substr(end + 1);
}

std::string JoinLines(std::string text, const std::string& more) {
  if (!text.empty() && !more.empty()) text += '\n';
  return text + more;
}

// The text of a block of text, or of a document that is text.
std::string TextOf(RequestFields& block, const std::string& type) {
  if (type == "text") return block.RequiredString("text");
  if (type == "document") {
    if (const Json* value = block.Find("source")) {
      RequestFields source(*value, block.Name("source."));
      if (source.String("type") == "text") return source.String("data").value_or("");
    }
  }
  throw BadParam(block.Name("type"),
                 "{} is \"{}\": only text, and documents that are text, are supported here.",
                 block.Name("type"), Excerpt(type, 40));
}

// A string, or blocks of text. Null: no text.
std::string TextContent(const Json* content, const std::string& place) {
  if (content == nullptr) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) {
    throw BadParam(place, "{} must be a string or an array of content blocks, it is {}.", place,
                   JsonTypeName(*content));
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    RequestFields block((*content)[i], fmt::format("{}[{}].", place, i));
    text = JoinLines(std::move(text), TextOf(block, block.RequiredString("type")));
  }
  return text;
}

void ParseSystem(RequestFields& fields, ConversationBuilder& conversation) {
  const Json* system = fields.Find("system");
  if (system == nullptr) return;
  std::string text;
  if (system->is_array()) {
    for (size_t i = 0; i < system->size(); ++i) {
      RequestFields block((*system)[i], fmt::format("system[{}].", i));
      text = JoinLines(std::move(text),
                       WithoutBillingHeader(TextOf(block, block.RequiredString("type"))));
    }
  } else {
    text = WithoutBillingHeader(TextContent(system, "system"));
  }
  if (!text.empty()) conversation.AddSystem(text);
}

// A part of what the assistant has said.
void ParseAssistantBlock(RequestFields& block, ConversationBuilder& conversation) {
  const std::string type = block.RequiredString("type");
  if (type == "thinking") {
    conversation.AddReasoning(block.String("thinking").value_or(""));
  } else if (type == "tool_use") {
    const Json* input = block.Find("input");
    if (input != nullptr && !input->is_object()) {
      throw BadParam(block.Name("input"), "{} must be an object, it is {}.", block.Name("input"),
                     JsonTypeName(*input));
    }
    const std::string name = block.RequiredString("name");
    conversation.AddCall(block.String("id").value_or(""), name,
                         input == nullptr ? Json::object() : *input);
  } else if (type == "redacted_thinking" || type == "server_tool_use" ||
             type.ends_with("_tool_result")) {
    // Of tools that this server has not, and of thinking that nobody here can read.
  } else {
    conversation.AddAnswer(TextOf(block, type));
  }
}

// Results of tools, and what the user says: `text` is what has no message yet.
void ParseUserBlock(RequestFields& block, ConversationBuilder& conversation, std::string& text) {
  const std::string type = block.RequiredString("type");
  if (type != "tool_result") {
    text = JoinLines(std::move(text), TextOf(block, type));
    return;
  }
  if (!text.empty()) conversation.AddUser(std::exchange(text, {}));
  const std::string id = block.RequiredString("tool_use_id");
  conversation.AddResult(id, TextContent(block.Find("content"), block.Name("content")));
}

void ParseMessage(const Json& message, const std::string& place,
                  ConversationBuilder& conversation) {
  RequestFields fields(message, place + ".");
  const std::string role = fields.String("role").value_or("");
  const Json* content = fields.Find("content");
  const std::string content_place = place + ".content";
  if (content == nullptr) throw BadParam(content_place, "{} is missing.", content_place);
  if (role == "system") {
    const std::string text = WithoutBillingHeader(TextContent(content, content_place));
    if (!text.empty()) conversation.AddSystem(text);
    return;
  }
  if (role != "user" && role != "assistant") {
    throw BadParam(place + ".role",
                   "{}.role must be \"user\", \"assistant\" or \"system\", it is \"{}\".", place,
                   Excerpt(role, 40));
  }
  const bool user = role == "user";
  if (!content->is_array()) {
    const std::string text = TextContent(content, content_place);
    return user ? conversation.AddUser(text) : conversation.AddAnswer(text);
  }
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    RequestFields block((*content)[i], fmt::format("{}[{}].", content_place, i));
    if (user) {
      ParseUserBlock(block, conversation, text);
    } else {
      ParseAssistantBlock(block, conversation);
    }
  }
  if (!text.empty()) conversation.AddUser(text);
}

void ParseMessages(RequestFields& fields, ConversationBuilder& conversation) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) throw BadParam("messages", "messages is missing.");
  if (!messages->is_array()) {
    throw BadParam("messages", "messages must be an array, it is {}.", JsonTypeName(*messages));
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    ParseMessage((*messages)[i], fmt::format("messages[{}]", i), conversation);
  }
  if (conversation.empty()) throw BadParam("messages", "messages has nothing to answer.");
}

ToolChoice ParseToolChoice(RequestFields& fields, ChatInput& chat) {
  const Json* value = fields.Find("tool_choice");
  if (value == nullptr) return {};
  RequestFields inner(*value, "tool_choice.");
  const std::string type = inner.String("type").value_or("");
  chat.parallel_tool_calls = !inner.Bool("disable_parallel_tool_use").value_or(false);
  if (type == "auto") return {};
  if (type == "none") return {ToolChoice::Kind::kNone, {}};
  if (type == "any") return {ToolChoice::Kind::kRequired, {}};
  if (type == "tool") {
    return {ToolChoice::Kind::kRequired, {inner.String("name").value_or("")}};
  }
  throw BadParam("tool_choice.type",
                 "tool_choice.type must be \"auto\", \"any\", \"tool\" or \"none\", it is \"{}\".",
                 Excerpt(type, 40));
}

// Tools of types that Anthropic's own machines run, or whose schema only its models know, are left
// out: the model cannot know them.
Json ParseClientTools(RequestFields& fields) {
  const Json* value = fields.Find("tools");
  if (value == nullptr) return nullptr;
  if (!value->is_array()) {
    throw BadParam("tools", "tools must be an array, it is {}.", JsonTypeName(*value));
  }
  Json tools = Json::array();
  for (size_t i = 0; i < value->size(); ++i) {
    RequestFields tool((*value)[i], fmt::format("tools[{}].", i));
    if (tool.String("type").value_or("custom") != "custom") continue;
    const std::string name = tool.RequiredString("name");
    const Json* schema = tool.Find("input_schema");
    if (schema == nullptr || !schema->is_object()) {
      throw BadParam(tool.Name("input_schema"), "{} must be an object (a JSON schema).",
                     tool.Name("input_schema"));
    }
    tools.push_back(FunctionTool(name, tool.String("description").value_or(""), schema));
    if (tool.Bool("strict").value_or(false)) tools.back()["function"]["strict"] = true;
  }
  return tools;
}

void ParseThinking(RequestFields& fields, ChatRequest& request) {
  ChatInput& chat = request.chat;
  if (const Json* value = fields.Find("thinking")) {
    RequestFields thinking(*value, "thinking.");
    const std::string type = thinking.String("type").value_or("");
    if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "between_tools") {
      throw BadParam("thinking.type",
                     "thinking.type must be \"enabled\", \"disabled\", \"adaptive\" or "
                     "\"between_tools\", it is \"{}\".",
                     Excerpt(type, 40));
    }
    // What the model does by itself is right for the other two.
    if (type == "enabled" || type == "disabled") SetThinking(type == "enabled", chat);
    if (type == "enabled") ParseThinkingBudget(thinking, "budget_tokens", chat);
    if (thinking.String("display") == "omitted") chat.include_reasoning = false;
  }
  if (const Json* value = fields.Find("output_config")) {
    RequestFields output(*value, "output_config.");
    if (const auto effort = output.String("effort")) {
      SetReasoningEffort(*effort, "output_config.effort", chat);
    }
    if (const Json* format = output.Find("format")) {
      ReadResponseFormat(*format, "output_config.format", request);
    }
  }
}

ChatRequest ReadMessages(std::string_view body, bool count_only, const std::atomic<bool>* gone) {
  const JsonDocument document(body, {}, gone);
  RequestFields fields(document);
  ChatRequest request;
  ChatInput& chat = request.chat;
  request.model = fields.String("model").value_or("");
  ParseTreatment(fields, request);
  request.max_tokens = ParseTokenCount(fields, "max_tokens", 1);
  if (!request.max_tokens && !count_only) throw BadParam("max_tokens", "max_tokens is missing.");
  // Agents ask for as many as their usual model may have.
  request.cut_to_context = true;
  request.stream = fields.Bool("stream").value_or(false);
  request.sampling = ParseSampling(fields);
  request.stop = ParseStop(fields, "stop_sequences");
  ConversationBuilder conversation;
  ParseSystem(fields, conversation);
  ParseMessages(fields, conversation);
  chat.continue_final_message = conversation.EndsInAnswer();
  chat.add_generation_prompt = !chat.continue_final_message;
  chat.messages = conversation.Take();
  const ToolChoice choice = ParseToolChoice(fields, chat);
  SetTools(ParseClientTools(fields), choice, chat);
  ParseThinking(fields, request);
  // Known, and nothing to do here.
  for (const char* name : {"metadata", "cache_control", "context_management", "service_tier",
                           "container", "mcp_servers", "inference_geo", "speed", "diagnostics"}) {
    fields.Find(name);
  }
  KeepUnknown(fields, request);
  return request;
}

}  // namespace

ChatRequest ParseMessagesRequest(std::string_view body, const std::atomic<bool>* gone) {
  return ReadMessages(body, false, gone);
}

ChatRequest ParseCountTokensRequest(std::string_view body, const std::atomic<bool>* gone) {
  return ReadMessages(body, true, gone);
}

std::string CountMessageTokens(const ModelTable& models, std::string_view body,
                               const std::atomic<bool>& gone) {
  const ChatRequest request = ParseCountTokensRequest(body, &gone);
  const ServedModel& model = models.Get(request.model);
  if (gone.load()) throw ClientLeft();
  return DumpJson(Json{{"input_tokens", EncodeChat(model, request.chat, false).size()}});
}

}  // namespace moesaic
