// OpenAiOutput: answers to completions and chat completions, in OpenAI's shapes.
#pragma once

#include <string>
#include <vector>

#include "serving/api/api_output.h"

namespace moesaic {

// {"prompt_tokens":..,"completion_tokens":..,"total_tokens":..,"prompt_tokens_details":{"cached_tokens":..}}
Json UsageJson(const Usage& usage);

class OpenAiOutput : public ApiOutput {
 public:
  OpenAiOutput(ApiOutputSpec spec, TokenSpeller spell);

  // Usage, if asked for, and [DONE].
  std::string StreamEnd() override;
  // No [DONE] follows.
  std::string StreamError(const ApiError& error) override;
  std::string FinalBody() override;

 private:
  std::string RenderProgress(size_t choice, const PromptProgress& progress) override;
  std::string Render(size_t choice, const OutputDelta& delta, bool first) override;
  Json Envelope(const char* object) const;
  Json FinishJson(size_t choice, const OutputDelta& delta) const;
  std::string StreamChat(size_t choice, const OutputDelta& delta, bool first);
  std::string StreamText(size_t choice, const OutputDelta& delta, bool first);
  std::string Chunk(size_t choice, Json choice_json, const OutputDelta* last = nullptr) const;
  Json FinalChoice(size_t choice);
  Json LogprobsOf(size_t choice, const OutputDelta& delta, bool with_prompt);
  void AppendUsage(size_t choice, Json& chunk) const;
  // Of the experts, behind a choice's last delta: into the choice, or, where all of the answer has
  // them, into what the choice is in.
  void AppendExperts(size_t choice, const OutputDelta& last, Json& choice_json, Json& answer) const;

  std::vector<OffsetCounter> offsets_;  // per choice
};

}  // namespace moesaic
