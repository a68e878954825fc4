#include "serving/api/openai_output.h"

#include <limits>
#include <utility>

#include "serving/api/sse_event.h"

namespace moesaic {
namespace {

Json StopReasonJson(const OutputDelta& delta) {
  return delta.stop_text.empty() ? Json(nullptr) : Json(delta.stop_text);
}

Json TokenIdsJson(const std::vector<GeneratedToken>& tokens) {
  Json ids = Json::array();
  for (const GeneratedToken& token : tokens) ids.push_back(token.token);
  return ids;
}

// Clients know one or the other name.
void SetReasoning(const std::string& text, Json& message) {
  message["reasoning"] = text;
  message["reasoning_content"] = text;
}

// The `delta` of a chunk.
Json DeltaOf(const ChatEvent& event) {
  using Kind = ChatEvent::Kind;
  Json delta = Json::object();
  Json call = Json::object();
  switch (event.kind) {
    case Kind::kReasoning:
      SetReasoning(event.text, delta);
      return delta;
    case Kind::kContent:
      delta["content"] = event.text;
      return delta;
    case Kind::kCallBegin:
      call["index"] = event.call;
      call["id"] = event.id;
      call["type"] = "function";
      call["function"] = Json{{"name", event.text}, {"arguments", ""}};
      break;
    case Kind::kArguments:
      call["index"] = event.call;
      call["function"] = Json{{"arguments", event.text}};
      break;
    case Kind::kCallEnd:
      return delta;
  }
  delta["tool_calls"] = Json::array({std::move(call)});
  return delta;
}

Json MessageOf(const ChatAnswer& answer) {
  const std::string content = answer.Text(AnswerItem::Kind::kContent);
  const std::string reasoning = answer.Text(AnswerItem::Kind::kReasoning);
  Json message = Json::object();
  message["role"] = "assistant";
  const bool more = answer.has_calls() || !reasoning.empty();
  message["content"] = content.empty() && more ? Json(nullptr) : Json(content);
  if (!reasoning.empty()) SetReasoning(reasoning, message);
  if (!answer.has_calls()) return message;
  Json list = Json::array();
  for (const AnswerItem& item : answer.items()) {
    if (item.kind != AnswerItem::Kind::kCall) continue;
    Json json = Json::object();
    json["id"] = item.id;
    json["type"] = "function";
    json["function"] = Json{{"name", item.name}, {"arguments", item.text}};
    list.push_back(std::move(json));
  }
  message["tool_calls"] = std::move(list);
  return message;
}

}  // namespace

Json UsageJson(const Usage& usage) {
  Json json = Json::object();
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"] = Json{{"cached_tokens", usage.cached_tokens}};
  return json;
}

OpenAiOutput::OpenAiOutput(ApiOutputSpec spec, TokenSpeller spell)
    : ApiOutput(std::move(spec), std::move(spell)), offsets_(choices()) {}

Json OpenAiOutput::Envelope(const char* object) const {
  Json json = Json::object();
  json["id"] = spec().id;
  json["object"] = object;
  json["created"] = spec().created_unix_s;
  json["model"] = spec().model;
  return json;
}

Json OpenAiOutput::LogprobsOf(size_t choice, const OutputDelta& delta, bool with_prompt) {
  if (spec().logprobs < 0) return nullptr;
  if (is_chat()) return ChatLogprobs(delta.tokens, spec().logprobs, spell());
  CompletionLogprobs logprobs(offsets_[choice], spell(), spec().logprobs);
  if (with_prompt) {
    logprobs.AddPrompt(PromptOf(choice).front(), delta.prompt_tokens,
                       spec().hidden_prompt_tokens[choice / static_cast<size_t>(spec().n)]);
  }
  for (const GeneratedToken& token : delta.tokens) logprobs.Add(token);
  return logprobs.Take();
}

Json OpenAiOutput::FinishJson(size_t choice, const OutputDelta& delta) const {
  if (!delta.finish.has_value()) return nullptr;
  const ChatAnswer& answer = StateOf(choice).answer;
  const bool stopped = *delta.finish == FinishReason::kStop || answer.satisfied();
  return answer.has_calls() && stopped ? "tool_calls" : FinishReasonName(*delta.finish);
}

void OpenAiOutput::AppendUsage(size_t choice, Json& chunk) const {
  if (spec().continuous_usage) {
    Usage usage;
    usage.prompt_tokens = static_cast<int64_t>(PromptOf(choice).size());
    usage.completion_tokens = StateOf(choice).completion_tokens;
    usage.cached_tokens = StateOf(choice).cached_tokens;
    chunk["usage"] = UsageJson(usage);
  } else if (spec().include_usage) {
    chunk["usage"] = nullptr;
  }
}

void OpenAiOutput::AppendExperts(size_t choice, const OutputDelta& last, Json& choice_json,
                                 Json& answer) const {
  if (spec().return_moesaic) choice_json["moesaic"] = ExpertUseJson(last);
  const RoutedOutput& output = spec().routed;
  const RoutedExperts* const routed = last.routed.get();
  if (output.form == RoutedOutput::Form::kBase64) {
    Json& where = choices() == 1 ? answer : choice_json;
    where["sglext"] = Json{{"routed_experts", RoutedBase64(routed, output.start)}};
  } else if (output.form == RoutedOutput::Form::kLists) {
    const auto prompt = static_cast<int64_t>(PromptOf(choice).size());
    Json& where = spec().prompts.size() == 1 ? answer : choice_json;
    where["prompt_routed_experts"] = RoutedLists(routed, output, output.start, prompt);
    choice_json["routed_experts"] =
        RoutedLists(routed, output, prompt, std::numeric_limits<int64_t>::max());
  }
}

// `last`: what ends the choice.
std::string OpenAiOutput::Chunk(size_t choice, Json choice_json, const OutputDelta* last) const {
  Json chunk = Envelope(is_chat() ? "chat.completion.chunk" : "text_completion");
  if (last != nullptr) AppendExperts(choice, *last, choice_json, chunk);
  chunk["choices"] = Json::array({std::move(choice_json)});
  AppendUsage(choice, chunk);
  return SseEvent(chunk);
}

// As llama.cpp's server tells it: in a chunk that adds nothing to the choice.
std::string OpenAiOutput::RenderProgress(size_t choice, const PromptProgress& progress) {
  Json json = Json::object();
  json["index"] = choice;
  if (is_chat()) {
    json["delta"] = Json{{"role", "assistant"}, {"content", nullptr}};
  } else {
    json["text"] = "";
  }
  json["logprobs"] = nullptr;
  json["finish_reason"] = nullptr;
  Json chunk = Envelope(is_chat() ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array({std::move(json)});
  AppendUsage(choice, chunk);
  chunk["prompt_progress"] = Json{{"total", progress.total},
                                  {"cache", progress.cached},
                                  {"processed", progress.processed},
                                  {"time_ms", progress.time_ms}};
  return SseEvent(chunk);
}

std::string OpenAiOutput::Render(size_t choice, const OutputDelta& delta, bool first) {
  return is_chat() ? StreamChat(choice, delta, first) : StreamText(choice, delta, first);
}

std::string OpenAiOutput::StreamChat(size_t choice, const OutputDelta& delta, bool first) {
  std::string out;
  if (first) {
    Json role = Json::object();
    role["index"] = choice;
    role["delta"] = Json{{"role", "assistant"}, {"content", ""}};
    role["logprobs"] = nullptr;
    role["finish_reason"] = nullptr;
    out += Chunk(choice, std::move(role));
  }
  std::vector<Json> messages;
  for (const ChatEvent& event : StateOf(choice).answer.Add(delta)) {
    if (event.kind != ChatEvent::Kind::kCallEnd) messages.push_back(DeltaOf(event));
  }
  const bool wants_tokens = spec().logprobs >= 0 || spec().return_token_ids;
  const bool has_news = delta.finish.has_value() || (wants_tokens && !delta.tokens.empty());
  if (messages.empty() && has_news) messages.push_back(Json::object());
  for (size_t i = 0; i < messages.size(); ++i) {
    // A delta's tokens go with the first of its chunks, its end with the last.
    const bool has_tokens = i == 0 && !delta.tokens.empty();
    const bool last = i + 1 == messages.size();
    Json json = Json::object();
    json["index"] = choice;
    json["delta"] = std::move(messages[i]);
    json["logprobs"] = has_tokens ? LogprobsOf(choice, delta, false) : Json(nullptr);
    json["finish_reason"] = last ? FinishJson(choice, delta) : Json(nullptr);
    if (last && delta.finish.has_value()) json["stop_reason"] = StopReasonJson(delta);
    if (spec().return_token_ids) {
      if (first && i == 0) json["prompt_token_ids"] = PromptOf(choice);
      json["token_ids"] = has_tokens ? TokenIdsJson(delta.tokens) : Json::array();
    }
    out += Chunk(choice, std::move(json), last && delta.finish.has_value() ? &delta : nullptr);
  }
  return out;
}

std::string OpenAiOutput::StreamText(size_t choice, const OutputDelta& delta, bool first) {
  const bool echo = first && spec().echo;
  const bool wants_tokens = spec().logprobs >= 0 || spec().return_token_ids;
  const bool has_news = !delta.text.empty() || delta.finish.has_value() || echo ||
                        (wants_tokens && !delta.tokens.empty());
  if (!has_news) return {};
  Json json = Json::object();
  json["index"] = choice;
  json["text"] =
      echo ? spec().prompt_texts[choice / static_cast<size_t>(spec().n)] + delta.text : delta.text;
  json["logprobs"] = LogprobsOf(choice, delta, echo);
  json["finish_reason"] = FinishJson(choice, delta);
  if (delta.finish.has_value()) json["stop_reason"] = StopReasonJson(delta);
  if (spec().return_token_ids) {
    if (first) json["prompt_token_ids"] = PromptOf(choice);
    json["token_ids"] = TokenIdsJson(delta.tokens);
  }
  return Chunk(choice, std::move(json), delta.finish.has_value() ? &delta : nullptr);
}

std::string OpenAiOutput::StreamEnd() {
  std::string out;
  if (spec().include_usage) {
    Json chunk = Envelope(is_chat() ? "chat.completion.chunk" : "text_completion");
    chunk["choices"] = Json::array();
    chunk["usage"] = UsageJson(TotalUsage());
    out += SseEvent(chunk);
  }
  return out + std::string(kSseDone);
}

std::string OpenAiOutput::StreamError(const ApiError& error) {
  return fmt::format("data: {}\n\n", ErrorBody(error));
}

Json OpenAiOutput::FinalChoice(size_t choice) {
  const OutputDelta& result = StateOf(choice).collected;
  Json json = Json::object();
  json["index"] = choice;
  if (is_chat()) {
    json["message"] = MessageOf(StateOf(choice).answer);
    json["logprobs"] = LogprobsOf(choice, result, false);
  } else {
    json["text"] = spec().echo
                       ? spec().prompt_texts[choice / static_cast<size_t>(spec().n)] + result.text
                       : result.text;
    json["logprobs"] = LogprobsOf(choice, result, spec().echo);
  }
  json["finish_reason"] = FinishJson(choice, result);
  json["stop_reason"] = StopReasonJson(result);
  if (!is_chat() && spec().prompt_logprobs >= 0) {
    json["prompt_logprobs"] = PromptLogprobs(result.prompt_tokens, spec().prompt_logprobs, spell());
  }
  if (spec().return_token_ids) {
    if (!is_chat()) json["prompt_token_ids"] = PromptOf(choice);
    json["token_ids"] = TokenIdsJson(result.tokens);
  }
  return json;
}

std::string OpenAiOutput::FinalBody() {
  Json json = Envelope(is_chat() ? "chat.completion" : "text_completion");
  Json list = Json::array();
  for (size_t i = 0; i < choices(); ++i) {
    list.push_back(FinalChoice(i));
    AppendExperts(i, StateOf(i).collected, list.back(), json);
  }
  json["choices"] = std::move(list);
  json["usage"] = UsageJson(TotalUsage());
  if (is_chat() && spec().prompt_logprobs >= 0) {
    json["prompt_logprobs"] =
        PromptLogprobs(StateOf(0).collected.prompt_tokens, spec().prompt_logprobs, spell());
  }
  if (is_chat() && spec().return_token_ids) json["prompt_token_ids"] = spec().prompts[0];
  return DumpJson(json);
}

}  // namespace moesaic
