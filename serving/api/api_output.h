// ApiOutput: turns the deltas of a request's choices into the text of its response: one JSON
// object, or SSE events. Pure; one object per request, used by one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serving/api/api_error.h"
#include "serving/api/chat_answer.h"
#include "serving/api/logprobs_json.h"
#include "serving/engine/request.h"

namespace moesaic {

// {"prompt_tokens":..,"completion_tokens":..,"total_tokens":..,"prompt_tokens_details":{"cached_tokens":..}}
Json UsageJson(const Usage& usage);

// What the response needs to know of its request.
struct ApiOutputSpec {
  bool chat = false;
  std::string id;     // "chatcmpl-...", "cmpl-..."
  std::string model;  // as the client named it
  int64_t created_unix_s = 0;
  int32_t n = 1;
  int32_t logprobs = -1;
  int32_t prompt_logprobs = -1;  // the extension's own field is wanted
  bool echo = false;             // completions
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  std::vector<std::vector<int32_t>> prompts;  // choice i belongs to prompt i / n
  std::vector<std::string> prompt_texts;      // with echo: one per prompt
  // With echo: how many of a prompt's first tokens are not part of its text (an added BOS).
  std::vector<size_t> hidden_prompt_tokens;
  std::shared_ptr<const AnswerParsing> parsing;  // of chats; null: answers are only text
};

class ApiOutput {
 public:
  ApiOutput(ApiOutputSpec spec, TokenSpeller spell);

  size_t choices() const { return choices_.size(); }

  // Streaming. Events for one choice's delta; empty when there is nothing to say yet.
  std::string StreamDelta(size_t choice, const OutputDelta& delta);
  // Behind the last delta of the last choice: usage, if asked for, and [DONE].
  std::string StreamEnd();
  // Ends a stream that failed; no [DONE] follows.
  static std::string StreamError(const ApiError& error);

  // Not streaming: all deltas of all choices, then the body.
  void Collect(size_t choice, OutputDelta delta);
  std::string FinalBody();

  // The choice is complete though the engine goes on: it is to be cancelled, and that is its stop.
  bool WantsNoMore(size_t choice) const { return choices_[choice].answer.satisfied(); }
  // Of the delta that comes next: the cancelling of a choice that was complete becomes its stop.
  void SettleFinish(size_t choice, OutputDelta& delta) const;
  Usage TotalUsage() const;

 private:
  struct Choice {
    explicit Choice(std::shared_ptr<const AnswerParsing> parsing) : answer(std::move(parsing)) {}

    ChatAnswer answer;      // of chats
    OutputDelta collected;  // text, tokens, prompt_tokens, finish, stop_text
    int64_t completion_tokens = 0;
    int64_t cached_tokens = 0;
    bool begun = false;  // the first chunk (role, echo) has gone out
    OffsetCounter offsets;
  };

  const std::vector<int32_t>& PromptOf(size_t choice) const;
  void Account(size_t choice, const OutputDelta& delta);
  Json Envelope(const char* object) const;
  Json FinishJson(size_t choice, const OutputDelta& delta) const;
  std::string StreamChat(size_t choice, const OutputDelta& delta, bool first);
  std::string StreamText(size_t choice, const OutputDelta& delta, bool first);
  std::string Chunk(size_t choice, Json choice_json) const;
  Json FinalChoice(size_t choice);
  Json LogprobsOf(size_t choice, const OutputDelta& delta, bool with_prompt);
  void AppendUsage(size_t choice, Json& chunk) const;

  ApiOutputSpec spec_;
  TokenSpeller spell_;
  std::vector<Choice> choices_;
};

}  // namespace moesaic
