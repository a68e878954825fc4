#include "serving/api/api_output.h"

#include <utility>

#include "core/base/check.h"
#include "serving/api/delta_mailbox.h"
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

}  // namespace

Json UsageJson(const Usage& usage) {
  Json json = Json::object();
  json["prompt_tokens"] = usage.prompt_tokens;
  json["completion_tokens"] = usage.completion_tokens;
  json["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  json["prompt_tokens_details"] = Json{{"cached_tokens", usage.cached_tokens}};
  return json;
}

ApiOutput::ApiOutput(ApiOutputSpec spec, TokenSpeller spell)
    : spec_(std::move(spec)), spell_(std::move(spell)) {
  const size_t choices = spec_.prompts.size() * static_cast<size_t>(spec_.n);
  CHECK_GT(choices, 0u);
  choices_.reserve(choices);
  for (size_t i = 0; i < choices; ++i) choices_.emplace_back(spec_.parsing);
  const size_t echoed = spec_.echo ? spec_.prompts.size() : 0;
  CHECK_EQ(spec_.prompt_texts.size(), echoed);
  CHECK_EQ(spec_.hidden_prompt_tokens.size(), echoed);
}

const std::vector<int32_t>& ApiOutput::PromptOf(size_t choice) const {
  return spec_.prompts[choice / static_cast<size_t>(spec_.n)];
}

void ApiOutput::Account(size_t choice, const OutputDelta& delta) {
  Choice& state = choices_[choice];
  state.completion_tokens = delta.usage.completion_tokens;
  state.cached_tokens = delta.usage.cached_tokens;
}

Usage ApiOutput::TotalUsage() const {
  Usage usage;
  for (const auto& prompt : spec_.prompts) {
    usage.prompt_tokens += static_cast<int64_t>(prompt.size());
  }
  for (size_t i = 0; i < choices_.size(); ++i) {
    usage.completion_tokens += choices_[i].completion_tokens;
    // A prompt's choices share it: counted once, as the prompt's tokens are.
    if (i % static_cast<size_t>(spec_.n) == 0) usage.cached_tokens += choices_[i].cached_tokens;
  }
  return usage;
}

void ApiOutput::SettleFinish(size_t choice, OutputDelta& delta) const {
  if (delta.finish == FinishReason::kCancelled && WantsNoMore(choice)) {
    delta.finish = FinishReason::kStop;
  }
}

Json ApiOutput::Envelope(const char* object) const {
  Json json = Json::object();
  json["id"] = spec_.id;
  json["object"] = object;
  json["created"] = spec_.created_unix_s;
  json["model"] = spec_.model;
  return json;
}

Json ApiOutput::LogprobsOf(size_t choice, const OutputDelta& delta, bool with_prompt) {
  if (spec_.logprobs < 0) return nullptr;
  if (spec_.chat) return ChatLogprobs(delta.tokens, spec_.logprobs, spell_);
  CompletionLogprobs logprobs(choices_[choice].offsets, spell_, spec_.logprobs);
  if (with_prompt) {
    logprobs.AddPrompt(PromptOf(choice).front(), delta.prompt_tokens,
                       spec_.hidden_prompt_tokens[choice / static_cast<size_t>(spec_.n)]);
  }
  for (const GeneratedToken& token : delta.tokens) logprobs.Add(token);
  return logprobs.Take();
}

Json ApiOutput::FinishJson(size_t choice, const OutputDelta& delta) const {
  if (!delta.finish.has_value()) return nullptr;
  const ChatAnswer& answer = choices_[choice].answer;
  const bool stopped = *delta.finish == FinishReason::kStop || answer.satisfied();
  return answer.has_calls() && stopped ? "tool_calls" : FinishReasonName(*delta.finish);
}

void ApiOutput::AppendUsage(size_t choice, Json& chunk) const {
  if (spec_.continuous_usage) {
    Usage usage;
    usage.prompt_tokens = static_cast<int64_t>(PromptOf(choice).size());
    usage.completion_tokens = choices_[choice].completion_tokens;
    usage.cached_tokens = choices_[choice].cached_tokens;
    chunk["usage"] = UsageJson(usage);
  } else if (spec_.include_usage) {
    chunk["usage"] = nullptr;
  }
}

std::string ApiOutput::Chunk(size_t choice, Json choice_json) const {
  Json chunk = Envelope(spec_.chat ? "chat.completion.chunk" : "text_completion");
  chunk["choices"] = Json::array({std::move(choice_json)});
  AppendUsage(choice, chunk);
  return SseEvent(chunk);
}

std::string ApiOutput::StreamDelta(size_t choice, const OutputDelta& delta) {
  Account(choice, delta);
  const bool first = !std::exchange(choices_[choice].begun, true);
  return spec_.chat ? StreamChat(choice, delta, first) : StreamText(choice, delta, first);
}

std::string ApiOutput::StreamChat(size_t choice, const OutputDelta& delta, bool first) {
  std::string out;
  if (first) {
    Json role = Json::object();
    role["index"] = choice;
    role["delta"] = Json{{"role", "assistant"}, {"content", ""}};
    role["logprobs"] = nullptr;
    role["finish_reason"] = nullptr;
    out += Chunk(choice, std::move(role));
  }
  std::vector<Json> messages = choices_[choice].answer.Add(delta);
  const bool wants_tokens = spec_.logprobs >= 0 || spec_.return_token_ids;
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
    if (spec_.return_token_ids) {
      if (first && i == 0) json["prompt_token_ids"] = PromptOf(choice);
      json["token_ids"] = has_tokens ? TokenIdsJson(delta.tokens) : Json::array();
    }
    out += Chunk(choice, std::move(json));
  }
  return out;
}

std::string ApiOutput::StreamText(size_t choice, const OutputDelta& delta, bool first) {
  const bool echo = first && spec_.echo;
  const bool wants_tokens = spec_.logprobs >= 0 || spec_.return_token_ids;
  const bool has_news = !delta.text.empty() || delta.finish.has_value() || echo ||
                        (wants_tokens && !delta.tokens.empty());
  if (!has_news) return {};
  Json json = Json::object();
  json["index"] = choice;
  json["text"] =
      echo ? spec_.prompt_texts[choice / static_cast<size_t>(spec_.n)] + delta.text : delta.text;
  json["logprobs"] = LogprobsOf(choice, delta, echo);
  json["finish_reason"] = FinishJson(choice, delta);
  if (delta.finish.has_value()) json["stop_reason"] = StopReasonJson(delta);
  if (spec_.return_token_ids) {
    if (first) json["prompt_token_ids"] = PromptOf(choice);
    json["token_ids"] = TokenIdsJson(delta.tokens);
  }
  return Chunk(choice, std::move(json));
}

std::string ApiOutput::StreamEnd() {
  std::string out;
  if (spec_.include_usage) {
    Json chunk = Envelope(spec_.chat ? "chat.completion.chunk" : "text_completion");
    chunk["choices"] = Json::array();
    chunk["usage"] = UsageJson(TotalUsage());
    out += SseEvent(chunk);
  }
  return out + std::string(kSseDone);
}

std::string ApiOutput::StreamError(const ApiError& error) {
  return fmt::format("data: {}\n\n", ErrorBody(error));
}

void ApiOutput::Collect(size_t choice, OutputDelta delta) {
  Account(choice, delta);
  if (spec_.chat) choices_[choice].answer.Add(delta);
  MergeDelta(choices_[choice].collected, std::move(delta));
}

Json ApiOutput::FinalChoice(size_t choice) {
  const OutputDelta& result = choices_[choice].collected;
  Json json = Json::object();
  json["index"] = choice;
  if (spec_.chat) {
    json["message"] = choices_[choice].answer.Message();
    json["logprobs"] = LogprobsOf(choice, result, false);
  } else {
    json["text"] = spec_.echo
                       ? spec_.prompt_texts[choice / static_cast<size_t>(spec_.n)] + result.text
                       : result.text;
    json["logprobs"] = LogprobsOf(choice, result, spec_.echo);
  }
  json["finish_reason"] = FinishJson(choice, result);
  json["stop_reason"] = StopReasonJson(result);
  if (!spec_.chat && spec_.prompt_logprobs >= 0) {
    json["prompt_logprobs"] = PromptLogprobs(result.prompt_tokens, spec_.prompt_logprobs, spell_);
  }
  if (spec_.return_token_ids) {
    if (!spec_.chat) json["prompt_token_ids"] = PromptOf(choice);
    json["token_ids"] = TokenIdsJson(result.tokens);
  }
  return json;
}

std::string ApiOutput::FinalBody() {
  Json json = Envelope(spec_.chat ? "chat.completion" : "text_completion");
  Json list = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) list.push_back(FinalChoice(i));
  json["choices"] = std::move(list);
  json["usage"] = UsageJson(TotalUsage());
  if (spec_.chat && spec_.prompt_logprobs >= 0) {
    json["prompt_logprobs"] =
        PromptLogprobs(choices_[0].collected.prompt_tokens, spec_.prompt_logprobs, spell_);
  }
  if (spec_.chat && spec_.return_token_ids) json["prompt_token_ids"] = spec_.prompts[0];
  return DumpJson(json);
}

}  // namespace moesaic
