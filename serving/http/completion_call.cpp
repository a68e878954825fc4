#include "serving/http/completion_call.h"

#include <algorithm>
#include <charconv>
#include <system_error>
#include <utility>

#include "core/base/logging.h"
#include "serving/api/sse_event.h"
#include "serving/http/error_response.h"

namespace moesaic {
namespace {

// Of a request that waits for its model; who has left is held for so long at most.
constexpr std::chrono::milliseconds kLookAtDeadline{1000};

double SecondsBetween(std::chrono::steady_clock::time_point from,
                      std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

// What may wait for a slow reader. An answer in one piece is bounded by the context; a stream's
// first delta may hold the log-probabilities of a whole prompt.
size_t MailboxBytes(const std::vector<EngineRequest>& requests, bool stream, size_t limit_bytes) {
  if (!stream) return DeltaMailbox::kNoLimit;
  for (const EngineRequest& request : requests) {
    if (request.prompt_logprobs < 0) continue;
    limit_bytes += request.prompt.size() *
                   (sizeof(GeneratedToken) +
                    static_cast<size_t>(request.prompt_logprobs + 1) * sizeof(TokenLogprob));
  }
  return limit_bytes;
}

// The client's X-Request-Timeout (seconds), at most the server's; 0 of the server: none.
std::optional<std::chrono::milliseconds> TimeoutOf(const HttpRequest& request,
                                                   std::chrono::milliseconds of_server) {
  constexpr double kMaxS = 1e6;
  std::optional<std::chrono::milliseconds> timeout;
  if (of_server.count() > 0) timeout = of_server;
  const std::string_view header = request.Header("x-request-timeout");
  if (header.empty()) return timeout;
  double seconds = 0;
  const char* const end = header.data() + header.size();
  const auto [stop, failed] = std::from_chars(header.data(), end, seconds);
  if (failed != std::errc() || stop != end || !(seconds > 0 && seconds <= kMaxS)) {
    throw ApiError(400, "invalid_request_error",
                   fmt::format("X-Request-Timeout must be a number of seconds above 0, it is '{}'.",
                               Excerpt(header, 40)));
  }
  const auto own =
      std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(seconds));
  return timeout ? std::min(*timeout, own) : own;
}

}  // namespace

CompletionCall::CompletionCall(CallContext& context, ModelSource models,
                               std::shared_ptr<Exchange> exchange, ApiDialect dialect,
                               RequestOwner owner, std::function<void(int64_t)> spend)
    : context_(context),
      models_(std::move(models)),
      exchange_(std::move(exchange)),
      dialect_(dialect),
      owner_(std::move(owner)),
      spend_(std::move(spend)),
      request_id_(exchange_->request().id) {}

void CompletionCall::Start() {
  try {
    const auto timeout = TimeoutOf(exchange_->request(), context_.options.request_timeout);
    if (timeout) deadline_ = began_at_ + *timeout;
  } catch (const ApiError& error) {
    return Fail(error);
  }
  context_.run_on_worker(
      [self = shared_from_this(), body = std::move(exchange_->request().body)]() mutable {
        self->PrepareAndPost(std::move(body));
      });
}

void CompletionCall::PrepareAndPost(std::string body) {
  if (gone_.load()) return;
  // shared_ptr: std::function wants a copyable closure.
  auto submitted = std::make_shared<std::unique_ptr<Submitted>>();
  std::optional<ApiError> error;
  try {
    const RequestMemory::Lease lease = context_.request_memory.Reserve(body.size());
    *submitted = Prepare(body);
  } catch (const ModelNotLoaded& missing) {
    if (context_.MayWait(missing)) return WaitForModel(missing, std::move(body));
    error = missing;
  } catch (...) {
    error = CurrentApiError(fmt::format("request {}", request_id_));
  }
  exchange_->Post([self = shared_from_this(), submitted, error] {
    if (error.has_value()) return self->Fail(*error);
    self->OnSubmitted(std::move(*submitted));
  });
}

void CompletionCall::WaitForModel(const ModelNotLoaded& missing, std::string body) {
  exchange_->Post([self = shared_from_this(), missing] { self->BeginWait(missing); });
  context_.models->Load(missing.model(), [self = shared_from_this(), body = std::move(body)](
                                             const std::optional<ApiError>& why_not) {
    if (why_not.has_value()) {
      return self->exchange_->Post([self, why_not] { self->Fail(*why_not); });
    }
    self->context_.run_on_worker([self, body] { self->PrepareAndPost(body); });
  });
}

// Maybe again, when the model has left before the request came to it.
void CompletionCall::BeginWait(const ModelNotLoaded& missing) {
  if (done_ || submitted_ != nullptr || std::exchange(waits_, true)) return;
  if (missing.stream()) {
    ApiOutputSpec spec;  // that a stream can be kept open with, and ended
    spec.dialect = dialect_;
    spec.model = missing.model();
    spec.prompts.emplace_back();
    waiting_output_ = MakeApiOutput(std::move(spec), {});
  }
  if (deadline_) EndWaitInTime();
}

// The engine looks after deadlines once it has the request.
void CompletionCall::EndWaitInTime() {
  if (done_ || submitted_ != nullptr) return;
  if (IsLate()) return Fail(WhyCancelled());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
  exchange_->PostAfter(std::clamp(left, std::chrono::milliseconds(1), kLookAtDeadline),
                       [self = shared_from_this()] { self->EndWaitInTime(); });
}

std::unique_ptr<CompletionCall::Submitted> CompletionCall::Prepare(const std::string& body) {
  const PrepareOptions options{dialect_,  request_id_, context_.options.max_sequences,
                               deadline_, gone_,       owner_};
  const std::shared_ptr<const ModelTable> models = models_();
  PreparedRequest prepared = PrepareRequest(body, *models, options);
  context_.report_unknown_fields(prepared.unknown_fields);
  std::vector<EngineRequest>& requests = prepared.requests;

  auto result = std::make_unique<Submitted>();
  result->model = std::make_shared<const ServedModel>(*prepared.model);
  if (context_.models != nullptr)
    context_.models->Touch(prepared.model->names.front(), prepared.keep_alive);
  result->metrics = &context_.metrics.ForModel(prepared.model->names.front());
  result->stream = prepared.stream;
  result->priority = requests.front().priority;
  for (const EngineRequest& request : requests) {
    result->prompt_tokens.push_back(static_cast<int64_t>(request.prompt.size()));
  }
  result->output = MakeApiOutput(std::move(prepared.spec), std::move(prepared.spell));

  // The call is held by what it posts, and lets go of the mailbox's notice when it ends (Detach):
  // so an engine that is late with its last delta never finds a connection that is gone.
  result->mailbox = std::make_shared<DeltaMailbox>(
      MailboxBytes(requests, prepared.stream, context_.options.max_pending_output_bytes),
      [self = shared_from_this()] { self->exchange_->Post([self] { self->Drain(); }); });
  std::vector<std::shared_ptr<OutputSink>> sinks;
  for (size_t i = 0; i < requests.size(); ++i) sinks.push_back(result->mailbox->MakeSink(i));
  result->submitted_at = Clock::now();
  try {
    result->ids = prepared.model->engine->Submit(std::move(requests), std::move(sinks));
  } catch (...) {
    result->mailbox->Detach();
    throw;
  }
  return result;
}

void CompletionCall::OnSubmitted(std::unique_ptr<Submitted> submitted) {
  submitted_ = std::move(submitted);
  choices_.resize(submitted_->ids.size());
  if (gone_.load()) return Abandon("abort");
  Drain();
}

void CompletionCall::Drain() {
  if (done_ || submitted_ == nullptr) return;
  if (submitted_->mailbox->overflowed()) {
    LogWarn("request {}: the client does not read; cancelled with {} bytes of output waiting",
            request_id_, context_.options.max_pending_output_bytes);
    Abandon("abort");
    NoteForLog("slow_client");
    return exchange_->Abort();
  }
  if (stream_begun_ && !exchange_->writable()) return;  // OnWritable comes back here
  std::string out;
  for (DeltaMailbox::Mail& mail : submitted_->mailbox->Take()) {
    Observe(mail);
    ChoiceState& choice = choices_[mail.choice];
    submitted_->output->SettleFinish(mail.choice, mail.delta);
    if (mail.error.has_value() || mail.delta.finish == FinishReason::kCancelled) {
      choice.finished = true;
      ++finished_;
      FinishChoice(mail.choice, mail.error.has_value() ? "error" : "abort", Clock::now());
      if (!out.empty()) {
        BeginStream();
        exchange_->Send(out);
      }
      return Fail(mail.error.has_value() ? WhyFailed(*mail.error) : WhyCancelled());
    }
    const std::optional<FinishReason> finish = mail.delta.finish;
    if (submitted_->stream) {
      out += submitted_->output->StreamDelta(mail.choice, mail.delta);
    } else {
      submitted_->output->Collect(mail.choice, std::move(mail.delta));
    }
    if (!finish.has_value() && submitted_->output->WantsNoMore(mail.choice)) {
      submitted_->model->engine->Cancel(submitted_->ids[mail.choice]);
    }
    if (finish.has_value()) {
      choice.finished = true;
      ++finished_;
      FinishChoice(mail.choice, FinishReasonName(*finish), Clock::now());
    }
  }
  if (finished_ == choices_.size()) return Complete(out);
  if (out.empty()) return;
  BeginStream();
  exchange_->Send(out);
}

void CompletionCall::Observe(const DeltaMailbox::Mail& mail) {
  ChoiceState& choice = choices_[mail.choice];
  choice.tokens += static_cast<int64_t>(mail.delta.tokens.size());
  if (mail.delta.queue_us >= 0) choice.queue_s = static_cast<double>(mail.delta.queue_us) * 1e-6;
  for (const Clock::time_point at : mail.token_times) {
    if (choice.last_token_at.has_value()) {
      submitted_->metrics->ObserveInterToken(SecondsBetween(*choice.last_token_at, at));
    } else {
      choice.first_token_s = SecondsBetween(submitted_->submitted_at, at);
      submitted_->metrics->ObserveFirstToken(choice.first_token_s);
    }
    choice.last_token_at = at;
  }
}

void CompletionCall::FinishChoice(size_t choice, std::string_view reason, Clock::time_point at) {
  const ChoiceState& state = choices_[choice];
  ModelMetrics::Finished finished;
  finished.reason = reason;
  finished.prompt_tokens = submitted_->prompt_tokens[choice];
  finished.generation_tokens = state.tokens;
  // Until the last token, not until this thread looked; a request without tokens ends now.
  finished.total_s = SecondsBetween(submitted_->submitted_at, state.last_token_at.value_or(at));
  finished.first_token_s = state.first_token_s;
  finished.queue_s = state.queue_s;
  submitted_->metrics->ObserveFinished(finished);
}

void CompletionCall::Complete(const std::string& stream_output) {
  done_ = true;
  submitted_->mailbox->Detach();
  Spend();
  NoteForLog("ok");
  if (submitted_->stream) {
    BeginStream();
    exchange_->Send(stream_output + submitted_->output->StreamEnd());
    exchange_->FinishStream();
    return;
  }
  HttpResponse response;
  response.body = submitted_->output->FinalBody();
  exchange_->Respond(std::move(response));
}

void CompletionCall::Fail(const ApiError& error) {
  if (done_) return;
  Abandon("abort");
  NoteForLog(error.code().empty() ? error.type() : error.code());
  if (error.status() == 500) {
    LogError("request {}: {}", request_id_, error.what());
  }
  if (!stream_begun_) {
    return exchange_->Respond(ErrorResponse(error, exchange_->request().path));
  }
  exchange_->Send(Output()->StreamError(error));
  exchange_->FinishStream();
}

ApiError CompletionCall::WhyFailed(const Error& error) const {
  if (error.kind() == ErrorKind::kUnavailable && IsLate()) return WhyCancelled();
  return FromEngineError(error);
}

ApiError CompletionCall::WhyCancelled() const {
  if (!IsLate()) return Stopping();
  return ApiError(504, "timeout_error",
                  "The request did not finish within its time (the server's --request-timeout, or "
                  "its own X-Request-Timeout).",
                  {}, "request_timeout");
}

void CompletionCall::Abandon(std::string_view reason) {
  done_ = true;
  gone_.store(true);
  if (submitted_ == nullptr) return;
  submitted_->mailbox->Detach();
  Spend();
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (choices_[i].finished) continue;
    choices_[i].finished = true;
    submitted_->model->engine->Cancel(submitted_->ids[i]);
    FinishChoice(i, reason, Clock::now());
  }
}

void CompletionCall::Spend() {
  const Usage usage = submitted_->output->TotalUsage();
  spend_(usage.prompt_tokens + usage.completion_tokens);
}

void CompletionCall::BeginStream() {
  if (stream_begun_) return;
  stream_begun_ = true;
  HttpResponse head;
  head.content_type = Output()->stream_type();
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  exchange_->StartStream(std::move(head));
}

void CompletionCall::OnQuiet() {
  // The status line waits for the first output, so that a failure before it has its own status; but
  // not for ever, as clients and proxies give up on a silent connection.
  // One that waits for its model is silent for as long as that takes to load.
  if (done_ || Output() == nullptr || (submitted_ != nullptr && !submitted_->stream)) return;
  BeginStream();
  // Of its events the first comes with the model.
  const bool comment = submitted_ == nullptr && Output()->stream_type() == kSseMediaType;
  exchange_->Send(comment ? std::string(kSseComment) : Output()->StreamQuiet());
}

ApiOutput* CompletionCall::Output() const {
  return submitted_ != nullptr ? submitted_->output.get() : waiting_output_.get();
}

void CompletionCall::OnDisconnect() {
  if (done_) return;
  NoteForLog("client_left");
  Abandon("abort");
}

void CompletionCall::OnShutdown() { Fail(Stopping()); }

void CompletionCall::NoteForLog(std::string_view outcome) {
  std::string note = fmt::format("outcome={}", outcome);
  if (submitted_ != nullptr) {
    int64_t tokens = 0;
    double first_token_s = -1;
    for (const ChoiceState& choice : choices_) {
      tokens += choice.tokens;
      if (first_token_s < 0) first_token_s = choice.first_token_s;
    }
    note += fmt::format(" model={} choices={} prompt_tokens={} completion_tokens={}",
                        submitted_->model->names.front(), choices_.size(),
                        submitted_->output->TotalUsage().prompt_tokens, tokens);
    if (submitted_->priority != 0) note += fmt::format(" priority={}", submitted_->priority);
    if (first_token_s >= 0) note += fmt::format(" first_token_ms={:.1f}", first_token_s * 1e3);
  }
  exchange_->SetLogNote(std::move(note));
}

}  // namespace moesaic
