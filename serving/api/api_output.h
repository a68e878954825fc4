// ApiOutput: turns the deltas of a request's choices into the text of its response: one JSON
// document, or the events of a stream. What is common to all dialects is here; each dialect's
// writer derives from it.
//
// Pure; one object per request, used by one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/api_dialect.h"
#include "serving/api/api_error.h"
#include "serving/api/chat_answer.h"
#include "serving/api/expert_json.h"
#include "serving/api/logprobs_json.h"
#include "serving/api/replay_store.h"
#include "serving/engine/request.h"

namespace moesaic {

// What the response needs to know of its request.
struct ApiOutputSpec {
  ApiDialect dialect = ApiDialect::kCompletions;
  std::string id;     // "chatcmpl-...", "cmpl-...", "msg_..."
  std::string model;  // as the client named it
  int64_t created_unix_s = 0;
  int32_t n = 1;
  int32_t logprobs = -1;
  int32_t prompt_logprobs = -1;  // the extension's own field is wanted
  bool echo = false;             // completions
  bool include_usage = false;
  bool continuous_usage = false;
  bool return_token_ids = false;
  bool return_moesaic = false;
  RoutedOutput routed;
  Json response_fields = Json::object();  // members of the answer that only repeat the request
  // The answer was given fewer tokens than the request has, as the context has no more.
  bool cut_to_context = false;
  std::vector<std::vector<int32_t>> prompts;  // choice i belongs to prompt i / n
  std::vector<std::string> prompt_texts;      // with echo: one per prompt
  // With echo: how many of a prompt's first tokens are not part of its text (an added BOS).
  std::vector<size_t> hidden_prompt_tokens;
  std::shared_ptr<const AnswerParsing> parsing;  // of chats; null: answers are only text
  std::shared_ptr<ReplayStore> replay;           // of chats, which keeps their calls; null: none
  PromptKey prompt_key;                          // for it
  // Behind which of its tokens an answer is whole, not cut off.
  std::function<bool(int32_t token)> ends_turn;
};

class ApiOutput {
 public:
  ApiOutput(ApiOutputSpec spec, TokenSpeller spell);
  virtual ~ApiOutput() = default;
  ApiOutput(const ApiOutput&) = delete;
  ApiOutput& operator=(const ApiOutput&) = delete;

  size_t choices() const { return choices_.size(); }

  // Streaming. The media type of the stream.
  virtual std::string_view stream_type() const;
  // Events for one choice's delta; empty when there is nothing to say yet.
  std::string StreamDelta(size_t choice, const OutputDelta& delta);
  // Behind the last delta of the last choice.
  virtual std::string StreamEnd() = 0;
  // Nothing has been said for long: something that keeps the connection open.
  virtual std::string StreamQuiet();
  // Ends a stream that failed.
  virtual std::string StreamError(const ApiError& error) = 0;

  // Not streaming: all deltas of all choices, then the body.
  void Collect(size_t choice, OutputDelta delta);
  virtual std::string FinalBody() = 0;

  // The choice is complete though the engine goes on: it is to be cancelled, and that is its stop.
  bool WantsNoMore(size_t choice) const { return choices_[choice].answer.satisfied(); }
  // Of the delta that comes next: the cancelling of a choice that was complete becomes its stop.
  void SettleFinish(size_t choice, OutputDelta& delta) const;
  Usage TotalUsage() const;

 protected:
  struct Choice {
    explicit Choice(std::shared_ptr<const AnswerParsing> parsing) : answer(std::move(parsing)) {}

    ChatAnswer answer;      // of chats
    OutputDelta collected;  // text, tokens, prompt_tokens, finish, stop_text
    int64_t completion_tokens = 0;
    int64_t cached_tokens = 0;
    bool begun = false;           // a delta has come
    std::vector<int32_t> tokens;  // all; only with a ReplayStore
  };

  bool is_chat() const { return spec_.dialect != ApiDialect::kCompletions; }
  const ApiOutputSpec& spec() const { return spec_; }
  const TokenSpeller& spell() const { return spell_; }
  Choice& StateOf(size_t choice) { return choices_[choice]; }
  const Choice& StateOf(size_t choice) const { return choices_[choice]; }
  const std::vector<int32_t>& PromptOf(size_t choice) const;

 private:
  // Any delta, before it is rendered or collected.
  virtual void Observe(const OutputDelta&) {}
  // How far a choice's prompt is, where the request asked for that; it may ask only in dialects
  // that have something to say.
  virtual std::string RenderProgress(size_t /*choice*/, const PromptProgress&) { return {}; }
  // `first`: of this choice.
  virtual std::string Render(size_t choice, const OutputDelta& delta, bool first) = 0;
  void Account(size_t choice, const OutputDelta& delta);
  // Keeps what the choice has generated, if it has calls and has ended by itself.
  void Keep(size_t choice, std::optional<FinishReason> finish);

  const ApiOutputSpec spec_;
  const TokenSpeller spell_;
  std::vector<Choice> choices_;
};

// The writer of the spec's dialect.
std::unique_ptr<ApiOutput> MakeApiOutput(ApiOutputSpec spec, TokenSpeller spell);

}  // namespace moesaic
