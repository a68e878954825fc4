#include "serving/api/ollama_request.h"

#include <utility>

#include "serving/api/conversation_builder.h"
#include "serving/api/request_parts.h"

namespace moesaic {
namespace {

// `options`, whose names are others than OpenAI's.
void ParseOptions(RequestFields& fields, ApiRequest& request) {
  const Json* value = fields.Find("options");
  if (value == nullptr) return;
  RequestFields options(*value, "options.");
  request.sampling = ParseSampling(options);
  if (const auto penalty = options.Number("repeat_penalty", 1e-3, 1e3)) {
    request.sampling.repetition_penalty = penalty;
  }
  request.stop = ParseStop(options, "stop");
  // Below 0: as many as the context has room for.
  if (const auto count = options.Int("num_predict", -2, INT32_MAX); count.value_or(-1) >= 0) {
    request.max_tokens = static_cast<int32_t>(std::max<int64_t>(*count, 1));
  }
  // Of how Ollama runs a model: this server has its own settings.
  for (const char* name : {"num_ctx", "num_batch", "num_gpu", "num_thread", "num_keep", "use_mmap",
                           "repeat_last_n", "low_vram", "main_gpu", "numa"}) {
    options.Find(name);
  }
  KeepUnknown(options, request);
}

void ParseThink(RequestFields& fields, ChatInput& chat) {
  const Json* think = fields.Find("think");
  if (think == nullptr) return;
  if (think->is_string()) return SetReasoningEffort(think->get<std::string>(), "think", chat);
  SetThinking(fields.Bool("think").value_or(true), chat);
}

void ParseOllamaCommon(RequestFields& fields, ApiRequest& request) {
  request.model = WithoutLatestTag(fields.String("model").value_or(""));
  request.stream = fields.Bool("stream").value_or(true);
  request.cut_to_context = true;
  request.max_tokens_name = "options.num_predict";
  ParseOptions(fields, request);
  const Json* format = fields.Find("format");
  if (format != nullptr && *format != Json("")) {
    if (*format == Json("json")) {
      SetAnyJsonFormat("format", request);
    } else if (format->is_object()) {
      SetJsonFormat(*format, "format", request);
    } else {
      throw BadParam("format", "format must be \"json\" or a JSON schema.");
    }
  }
  if (fields.Bool("logprobs").value_or(false)) {
    throw BadParam("logprobs", "logprobs is not supported here; /v1/chat/completions has it.");
  }
  ParseTreatment(fields, request);
}

void RefuseImages(RequestFields& fields) {
  const Json* images = fields.Find("images");
  if (images == nullptr || (images->is_array() && images->empty())) return;
  throw BadParam(fields.Name("images"), "{} is not supported: the model reads text only.",
                 fields.Name("images"));
}

// Results of tools name the tool and seldom the call: they belong to the first call of that tool
// which has none, as calls were made in that order.
class OpenCalls {
 public:
  std::string Add(std::string id, const std::string& name) {
    if (id.empty()) id = fmt::format("call_{}", ++made_);
    calls_.emplace_back(id, name);
    return id;
  }
  std::string Take(const std::string& id, const std::string& name) {
    for (auto call = calls_.begin(); call != calls_.end(); ++call) {
      if (id.empty() ? !name.empty() && call->second != name : call->first != id) continue;
      std::string taken = call->first;
      calls_.erase(call);
      return taken;
    }
    return id;
  }

 private:
  std::vector<std::pair<std::string, std::string>> calls_;  // id, tool
  size_t made_ = 0;
};

void ParseToolCalls(RequestFields& message, OpenCalls& open, ConversationBuilder& conversation) {
  const Json* calls = message.Find("tool_calls");
  if (calls == nullptr) return;
  const std::string place = message.Name("tool_calls");
  if (!calls->is_array()) {
    throw BadParam(place, "{} must be an array, it is {}.", place, JsonTypeName(*calls));
  }
  for (size_t i = 0; i < calls->size(); ++i) {
    RequestFields call((*calls)[i], fmt::format("{}[{}].", place, i));
    const Json* value = call.Find("function");
    if (value == nullptr) {
      throw BadParam(call.Name("function"), "{} is missing.", call.Name("function"));
    }
    RequestFields function(*value, call.Name("function."));
    const std::string name = function.RequiredString("name");
    const Json* arguments = function.Find("arguments");
    if (arguments != nullptr && !arguments->is_object()) {
      throw BadParam(function.Name("arguments"), "{} must be an object, it is {}.",
                     function.Name("arguments"), JsonTypeName(*arguments));
    }
    conversation.AddCall(open.Add(call.String("id").value_or(""), name), name,
                         arguments == nullptr ? Json::object() : *arguments);
  }
}

void ParseOllamaMessage(RequestFields& message, OpenCalls& open,
                        ConversationBuilder& conversation) {
  const std::string role = message.String("role").value_or("");
  const std::string text = message.String("content").value_or("");
  RefuseImages(message);
  if (role == "system") {
    conversation.AddSystem(text);
  } else if (role == "user") {
    conversation.AddUser(text);
  } else if (role == "assistant") {
    conversation.AddReasoning(message.String("thinking").value_or(""));
    conversation.AddAnswer(text);
    ParseToolCalls(message, open, conversation);
  } else if (role == "tool") {
    const std::string id = open.Take(message.String("tool_call_id").value_or(""),
                                     message.String("tool_name").value_or(""));
    conversation.AddResult(id, text);
  } else {
    throw BadParam(message.Name("role"),
                   "{} must be \"system\", \"user\", \"assistant\" or \"tool\", it is \"{}\".",
                   message.Name("role"), Excerpt(role, 40));
  }
}

Json ParseOllamaTools(RequestFields& fields) {
  const Json* tools = fields.Find("tools");
  if (tools == nullptr) return nullptr;
  if (!tools->is_array()) {
    throw BadParam("tools", "tools must be an array, it is {}.", JsonTypeName(*tools));
  }
  for (size_t i = 0; i < tools->size(); ++i) {
    RequestFields tool((*tools)[i], fmt::format("tools[{}].", i));
    const Json* function = tool.Find("function");
    if (function == nullptr || !function->is_object()) {
      throw BadParam(tool.Name("function"), "{} must be an object.", tool.Name("function"));
    }
  }
  return *tools;
}

}  // namespace

std::string WithoutLatestTag(std::string name) {
  constexpr std::string_view kTag = ":latest";
  if (name.ends_with(kTag)) name.resize(name.size() - kTag.size());
  return name;
}

ChatRequest ParseOllamaChatRequest(std::string_view body, const std::atomic<bool>* gone) {
  const JsonDocument document(body, {}, gone);
  RequestFields fields(document);
  ChatRequest request;
  ParseOllamaCommon(fields, request);
  const Json* messages = fields.Find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    throw BadParam("messages", "messages must be an array with at least one message.");
  }
  ConversationBuilder conversation;
  OpenCalls open;
  for (size_t i = 0; i < messages->size(); ++i) {
    RequestFields message((*messages)[i], fmt::format("messages[{}].", i));
    ParseOllamaMessage(message, open, conversation);
  }
  request.chat.continue_final_message = conversation.EndsInAnswer();
  request.chat.add_generation_prompt = !request.chat.continue_final_message;
  request.chat.messages = conversation.Take();
  SetTools(ParseOllamaTools(fields), {}, request.chat);
  ParseThink(fields, request.chat);
  KeepUnknown(fields, request);
  return request;
}

std::variant<CompletionRequest, ChatRequest> ParseOllamaGenerateRequest(
    std::string_view body, const std::atomic<bool>* gone) {
  const JsonDocument document(body, {}, gone);
  RequestFields fields(document);
  ChatRequest request;
  ParseOllamaCommon(fields, request);
  for (const char* name : {"suffix", "template", "context"}) {
    const Json* value = fields.Find(name);
    if (value == nullptr || value->empty() || *value == Json("")) continue;
    throw BadParam(name, "{} is not supported.", name);
  }
  RefuseImages(fields);
  const std::string prompt = fields.String("prompt").value_or("");
  const std::string system = fields.String("system").value_or("");
  if (prompt.empty()) throw BadParam("prompt", "prompt must be a text that is not empty.");
  if (fields.Bool("raw").value_or(false)) {
    CompletionRequest raw;
    static_cast<ApiRequest&>(raw) = std::move(request);
    raw.prompts = {prompt};
    fields.Find("think");
    KeepUnknown(fields, raw);
    return raw;
  }
  ConversationBuilder conversation;
  if (!system.empty()) conversation.AddSystem(system);
  conversation.AddUser(prompt);
  request.chat.messages = conversation.Take();
  ParseThink(fields, request.chat);
  KeepUnknown(fields, request);
  return request;
}

}  // namespace moesaic
