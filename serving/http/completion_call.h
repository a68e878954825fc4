// CompletionCall: one POST that generates, in any dialect, from its body to its last byte.
//
// The body is parsed and tokenised on a worker thread, submitted to the engine, and the output
// written on the connection's strand as it arrives. Unless said otherwise functions run on the
// strand.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "serving/api/api_error.h"
#include "serving/api/api_output.h"
#include "serving/api/delta_mailbox.h"
#include "serving/api/prepared_request.h"
#include "serving/api/served_model.h"
#include "serving/http/call_context.h"
#include "serving/http/exchange.h"
#include "serving/http/serving_metrics.h"

namespace moesaic {

class CompletionCall : public Call, public std::enable_shared_from_this<CompletionCall> {
 public:
  // `spend` is told the tokens of prompts and answers when the call has ended.
  CompletionCall(CallContext& context, ModelSource models, std::shared_ptr<Exchange> exchange,
                 ApiDialect dialect, RequestOwner owner, std::function<void(int64_t tokens)> spend);

  void Start();
  void OnWritable() override { Drain(); }
  void OnQuiet() override;
  void OnDisconnect() override;
  void OnShutdown() override;

 private:
  using Clock = std::chrono::steady_clock;

  // Everything that is known once the request is submitted. Made on a worker, then used on the
  // strand.
  struct Submitted {
    // A copy, so that the call keeps this engine and no other; shared with nobody.
    std::shared_ptr<const ServedModel> model;
    ModelMetrics* metrics = nullptr;
    std::unique_ptr<ApiOutput> output;
    std::shared_ptr<DeltaMailbox> mailbox;
    std::vector<RequestId> ids;
    std::vector<int64_t> prompt_tokens;  // per choice
    bool stream = false;
    int32_t priority = 0;
    Clock::time_point submitted_at;
  };
  struct ChoiceState {
    bool finished = false;
    int64_t tokens = 0;
    double queue_s = -1;
    double first_token_s = -1;
    std::optional<Clock::time_point> last_token_at;
  };

  // Worker thread.
  void PrepareAndPost(std::string body);
  std::unique_ptr<Submitted> Prepare(const std::string& body);
  // Has the model loaded; then everything begins again.
  void WaitForModel(const ModelNotLoaded& missing, std::string body);

  void BeginWait(const ModelNotLoaded& missing);
  void EndWaitInTime();
  void OnSubmitted(std::unique_ptr<Submitted> submitted);
  void Drain();
  void Observe(const DeltaMailbox::Mail& mail);
  void FinishChoice(size_t choice, std::string_view reason, Clock::time_point at);
  void Complete(const std::string& stream_output);
  void Fail(const ApiError& error);
  ApiError WhyFailed(const Error& error) const;
  ApiError WhyCancelled() const;
  bool IsLate() const { return deadline_.has_value() && Clock::now() >= *deadline_; }
  void Spend();
  // Cancels what still runs; its output is dropped from now on.
  void Abandon(std::string_view reason);
  // The writer of what is sent; null: nothing can be yet.
  ApiOutput* Output() const;
  void BeginStream();
  void NoteForLog(std::string_view outcome);

  CallContext& context_;
  const ModelSource models_;
  const std::shared_ptr<Exchange> exchange_;
  const ApiDialect dialect_;
  const RequestOwner owner_;
  const std::function<void(int64_t)> spend_;
  const std::string request_id_;
  const Clock::time_point began_at_ = Clock::now();
  std::optional<Clock::time_point> deadline_;  // set by Start
  std::atomic<bool> gone_{false};              // the client has left, or the call was ended early

  bool waits_ = false;                         // for its model
  std::unique_ptr<ApiOutput> waiting_output_;  // of a stream that does
  std::unique_ptr<Submitted> submitted_;
  std::vector<ChoiceState> choices_;
  size_t finished_ = 0;
  bool stream_begun_ = false;
  bool done_ = false;
};

}  // namespace moesaic
