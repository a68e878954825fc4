#include "serving/api/api_output.h"

#include <utility>

#include "core/base/check.h"
#include "serving/api/delta_mailbox.h"
#include "serving/api/messages_output.h"
#include "serving/api/ollama_output.h"
#include "serving/api/openai_output.h"
#include "serving/api/responses_output.h"
#include "serving/api/sse_event.h"

namespace moesaic {

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

std::string_view ApiOutput::stream_type() const { return kSseMediaType; }

std::string ApiOutput::StreamQuiet() { return std::string(kSseComment); }

const std::vector<int32_t>& ApiOutput::PromptOf(size_t choice) const {
  return spec_.prompts[choice / static_cast<size_t>(spec_.n)];
}

void ApiOutput::Account(size_t choice, const OutputDelta& delta) {
  Choice& state = choices_[choice];
  state.completion_tokens = delta.usage.completion_tokens;
  state.cached_tokens = delta.usage.cached_tokens;
  if (spec_.replay != nullptr) {
    for (const GeneratedToken& token : delta.tokens) state.tokens.push_back(token.token);
  }
  Observe(delta);
}

void ApiOutput::Keep(size_t choice, std::optional<FinishReason> finish) {
  Choice& state = choices_[choice];
  if (spec_.replay == nullptr || finish != FinishReason::kStop || !state.answer.has_calls()) return;
  if (state.tokens.empty() || !spec_.ends_turn(state.tokens.back())) return;
  spec_.replay->Put({spec_.prompt_key, std::move(state.tokens), state.answer.items()});
}

std::string ApiOutput::StreamDelta(size_t choice, const OutputDelta& delta) {
  Account(choice, delta);
  std::string out;
  if (delta.progress.has_value()) out = RenderProgress(choice, *delta.progress);
  // The answer's beginning is still to come.
  if (delta.progress.has_value() && delta.tokens.empty() && !delta.finish.has_value()) return out;
  out += Render(choice, delta, !std::exchange(choices_[choice].begun, true));
  Keep(choice, delta.finish);
  return out;
}

void ApiOutput::Collect(size_t choice, OutputDelta delta) {
  Account(choice, delta);
  if (is_chat()) choices_[choice].answer.Add(delta);
  Keep(choice, delta.finish);
  MergeDelta(choices_[choice].collected, std::move(delta));
}

void ApiOutput::SettleFinish(size_t choice, OutputDelta& delta) const {
  if (delta.finish == FinishReason::kCancelled && WantsNoMore(choice)) {
    delta.finish = FinishReason::kStop;
  }
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

std::unique_ptr<ApiOutput> MakeApiOutput(ApiOutputSpec spec, TokenSpeller spell) {
  switch (spec.dialect) {
    case ApiDialect::kMessages:
      return std::make_unique<MessagesOutput>(std::move(spec), std::move(spell));
    case ApiDialect::kResponses:
      return std::make_unique<ResponsesOutput>(std::move(spec), std::move(spell));
    case ApiDialect::kOllamaChat:
    case ApiDialect::kOllamaGenerate:
      return std::make_unique<OllamaOutput>(std::move(spec), std::move(spell));
    case ApiDialect::kCompletions:
    case ApiDialect::kChat:
      break;
  }
  return std::make_unique<OpenAiOutput>(std::move(spec), std::move(spell));
}

}  // namespace moesaic
