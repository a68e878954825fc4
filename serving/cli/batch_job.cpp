#include "serving/cli/batch_job.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/mutex.h"
#include "serving/batch/line_file.h"
#include "serving/engine/engine.h"
#include "serving/http/generation_output.h"
#include "serving/http/generation_prepare.h"
#include "serving/http/http_message.h"
#include "serving/http/json_text.h"
#include "serving/text/unicode.h"

namespace moesaic {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
constexpr double kSyncEveryS = 5;

uint64_t HashOf(std::string_view text) {
  return Hash64(std::as_bytes(std::span(text.data(), text.size())));
}

// What engine threads tell the main thread.
class Mailbox {
 public:
  struct Mail {
    int64_t line_number = 0;
    size_t choice = 0;
    OutputDelta delta;
    std::optional<Error> error;
  };

  // Only what ends is urgent, as it makes room. To wake the main thread for every other token costs
  // the threads that compute more than the token's sampling.
  void Put(Mail mail) EXCLUDES(mutex_) {
    const bool ends = mail.error.has_value() || mail.delta.finish.has_value();
    const MutexLock lock(mutex_);
    mail_.push_back(std::move(mail));
    if (!ends) return;
    urgent_ = true;
    changed_.NotifyOne();
  }
  // Waits for a tick at most.
  std::vector<Mail> Take() EXCLUDES(mutex_) {
    const auto deadline = std::chrono::steady_clock::now() + kTick;
    const MutexLock lock(mutex_);
    while (!urgent_ && changed_.WaitUntil(mutex_, deadline)) {
    }
    urgent_ = false;
    return std::exchange(mail_, {});
  }

 private:
  Mutex mutex_;
  bool urgent_ GUARDED_BY(mutex_) = false;
  CondVar changed_;
  std::vector<Mail> mail_ GUARDED_BY(mutex_);
};

class MailSink : public OutputSink {
 public:
  MailSink(std::shared_ptr<Mailbox> mailbox, int64_t line_number, size_t choice)
      : mailbox_(std::move(mailbox)), line_number_(line_number), choice_(choice) {}
  void OnDelta(OutputDelta delta) override {
    mailbox_->Put({line_number_, choice_, std::move(delta), std::nullopt});
  }
  void OnError(const Error& error) override { mailbox_->Put({line_number_, choice_, {}, error}); }

 private:
  const std::shared_ptr<Mailbox> mailbox_;  // shared: the engine may outlive a job that failed
  const int64_t line_number_;
  const size_t choice_;
};

// Of a request's prompt or messages.
int64_t PromptTokens(const Json& body, const TokenCounter& count) {
  if (body.is_string()) return count(body.get_ref<const std::string&>());
  if (body.is_number()) return 1;  // an id
  int64_t tokens = 0;
  if (body.is_array()) {
    for (const Json& item : body) tokens += PromptTokens(item, count);
  } else if (body.is_object()) {
    for (const char* name : {"prompt", "messages", "content", "text"}) {
      if (body.contains(name)) tokens += PromptTokens(body[name], count);
    }
  }
  return tokens;
}

class BatchJob {
 public:
  BatchJob(const ServedModel& model, const BatchJobOptions& options,
           const BatchCallbacks& callbacks)
      : options_(options),
        callbacks_(callbacks),
        models_({model}),
        engine_(*model.engine),
        files_(options.files, options.form) {
    progress_.lines = files_.input().requests();
  }
  // An engine that is still at it has nobody to tell: mail goes to the mailbox and is forgotten.
  ~BatchJob() { CancelAll(false); }

  BatchProgress Run() {
    LineReader reader(options_.files.input);
    double synced_s = 0;
    for (;;) {
      HeedStops();
      if (!progress_.draining) Fill(reader);
      if (open_.empty()) break;
      for (Mailbox::Mail& mail : mailbox_->Take()) Receive(std::move(mail));
      if (watch_.seconds() - synced_s > kSyncEveryS) {
        files_.output().Sync();
        synced_s = watch_.seconds();
      }
      Tell();
    }
    files_.output().Sync();
    files_.errors().Sync();
    Tell();
    return progress_;
  }

 private:
  // A line that was submitted and has not ended.
  struct OpenLine {
    std::string custom_id;
    std::string request_id;
    std::unique_ptr<GenerationOutput> output;
    std::vector<RequestId> ids;  // of its choices
    size_t ended = 0;
    bool begun = false;  // it has a token
    bool cancelled = false;
    std::optional<ApiError> error;
  };

  // The next line that is not blank; false: there is none that was there when the job began. What
  // comes later is for another run, which knows of it from the start.
  bool NextLine(LineReader& reader, std::string* text) const {
    const std::vector<uint64_t>& lines = files_.input().lines;
    while (reader.line_number() < std::ssize(lines)) {
      const bool there = reader.Next(text);
      const int64_t number = reader.line_number() + (there ? 0 : 1);
      if (!there || HashOfInputLine(*text) != lines[static_cast<size_t>(number - 1)]) {
        Fail(ErrorKind::kCorrupt,
             "{}:{}: the line has changed since the job began; the answers up to there are whole: "
             "put it back, and the same command with --resume goes on",
             options_.files.input.string(), number);
      }
      if (!IsBlankLine(*text)) return true;
    }
    return false;
  }

  // Together: a pass that begins with the first of many lines would read experts for it alone.
  void Fill(LineReader& reader) {
    std::string text;
    std::vector<Waiting> lines;
    int64_t sequences = outstanding_;
    while (!input_ended_) {
      if (!waiting_) {
        // Lines that are answered or bad may be many.
        if (callbacks_.stops() > 0) break;
        if (!NextLine(reader, &text)) {
          input_ended_ = true;
          break;
        }
        waiting_ = Prepare(text, reader);
        if (!waiting_) continue;
      }
      const auto count = static_cast<int64_t>(waiting_->prepared.requests.size());
      if (sequences > 0 && sequences + count > options_.max_outstanding) break;
      sequences += count;
      lines.push_back(std::move(*waiting_));
      waiting_.reset();
    }
    Submit(lines);
  }

  struct Waiting {
    int64_t line_number = 0;
    std::string custom_id;
    std::string request_id;
    PreparedGeneration prepared;
  };

  // Null: the line is answered already, or bad.
  std::optional<Waiting> Prepare(const std::string& text, const LineReader& reader) {
    Waiting waiting;
    waiting.line_number = reader.line_number();
    try {
      if (reader.too_long()) {
        throw ApiError(400, "invalid_request_error",
                       fmt::format("The line is longer than {} bytes.", LineReader::kMaxLineBytes));
      }
      if (files_.input().form == BatchInputForm::kText && !IsValidUtf8(text)) {
        throw ApiError(400, "invalid_request_error", "The prompt is not UTF-8.");
      }
      const BatchLine line = files_.input().form == BatchInputForm::kText
                                 ? PromptBatchLine(text, waiting.line_number, options_.prompts)
                                 : ParseBatchLine(text, waiting.line_number, options_.prompts);
      waiting.custom_id = line.custom_id;
      if (!seen_.insert(line.custom_id).second) {
        throw BadParam("custom_id", "custom_id is that of an earlier line.");
      }
      if (files_.Answered(line.custom_id)) {
        ++progress_.resumed;
        return std::nullopt;
      }
      waiting.request_id = MakeRandomId("req-");
      waiting.prepared = PrepareGeneration(
          line.body, models_, {line.chat, waiting.request_id, 1024, std::nullopt, gone_});
      if (waiting.prepared.stream) {
        throw BadParam("stream", "stream is not possible in a batch.");
      }
      SetSeeds(waiting);
      return waiting;
    } catch (...) {
      if (waiting.custom_id.empty()) waiting.custom_id = IdOfBadLine(text, waiting.line_number);
      Refuse(waiting, CurrentApiError(fmt::format("line {}", waiting.line_number)));
      return std::nullopt;
    }
  }

  std::string IdOfBadLine(std::string_view text, int64_t number) const {
    return files_.input().form == BatchInputForm::kText ? DefaultCustomId(number)
                                                        : FindCustomId(text);
  }

  void SetSeeds(Waiting& waiting) const {
    const uint64_t first = HashOf(waiting.custom_id) ^ options_.seed;
    std::vector<EngineRequest>& requests = waiting.prepared.requests;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!requests[i].sampling.seed) requests[i].sampling.seed = first + i;
    }
  }

  void Refuse(const Waiting& waiting, const ApiError& error) {
    ++(error.status() < 500 ? progress_.refused : progress_.failed);
    files_.errors().Append(BatchErrorLine(waiting.line_number, waiting.custom_id, error));
  }

  void Submit(std::span<Waiting> lines) {
    if (lines.empty()) return;
    std::vector<EngineRequest> requests;
    std::vector<std::shared_ptr<OutputSink>> sinks;
    for (const Waiting& line : lines) {
      for (size_t i = 0; i < line.prepared.requests.size(); ++i) {
        requests.push_back(line.prepared.requests[i]);
        sinks.push_back(std::make_shared<MailSink>(mailbox_, line.line_number, i));
      }
    }
    std::vector<RequestId> ids;
    try {
      ids = engine_.Submit(std::move(requests), std::move(sinks));
    } catch (...) {
      // None of them was taken.
      if (lines.size() == 1) {
        Refuse(lines.front(), CurrentApiError(fmt::format("line {}", lines.front().line_number)));
      } else {
        for (size_t i = 0; i < lines.size(); ++i) Submit(lines.subspan(i, 1));
      }
      return;
    }
    auto next = ids.cbegin();
    for (Waiting& waiting : lines) {
      OpenLine line;
      line.ids.assign(next, next + std::ssize(waiting.prepared.requests));
      next += std::ssize(line.ids);
      line.custom_id = std::move(waiting.custom_id);
      line.request_id = std::move(waiting.request_id);
      line.output = std::make_unique<GenerationOutput>(std::move(waiting.prepared.spec),
                                                       std::move(waiting.prepared.spell));
      outstanding_ += std::ssize(line.ids);
      open_.emplace(waiting.line_number, std::move(line));
    }
  }

  void Receive(Mailbox::Mail mail) {
    const auto found = open_.find(mail.line_number);
    CHECK(found != open_.end());
    OpenLine& line = found->second;
    progress_.output_tokens += static_cast<int64_t>(mail.delta.tokens.size());
    line.begun = line.begun || !mail.delta.tokens.empty();
    const bool ends = mail.error.has_value() || mail.delta.finish.has_value();
    if (mail.error) {
      if (!line.error) line.error = FromEngineError(*mail.error);
      for (const RequestId id : line.ids) engine_.Cancel(id);
    } else {
      if (mail.delta.finish == FinishReason::kCancelled) line.cancelled = true;
      line.output->Collect(mail.choice, std::move(mail.delta));
    }
    if (!ends) return;
    --outstanding_;
    if (++line.ended < line.ids.size()) return;
    Finish(mail.line_number, line);
    open_.erase(found);
  }

  void Finish(int64_t line_number, OpenLine& line) {
    if (line.error) {
      ++(line.error->status() < 500 ? progress_.refused : progress_.failed);
      files_.errors().Append(BatchErrorLine(line_number, line.custom_id, *line.error));
    } else if (line.cancelled) {
      ++progress_.put_back;
    } else {
      files_.output().Append(
          BatchOutputLine(line.custom_id, line.request_id, line.output->FinalBody()));
      progress_.prompt_tokens += line.output->TotalUsage().prompt_tokens;
      ++progress_.done;
    }
  }

  void HeedStops() {
    const int stops = callbacks_.stops();
    if (stops >= 1 && !progress_.draining) {
      progress_.draining = true;
      CancelAll(true);
    }
    if (stops >= 2) CancelAll(false);
  }

  void CancelAll(bool keep_begun) {
    for (const auto& [number, line] : open_) {
      if (keep_begun && line.begun) continue;
      for (const RequestId id : line.ids) engine_.Cancel(id);
    }
  }

  void Tell() {
    progress_.outstanding = outstanding_;
    progress_.seconds = watch_.seconds();
    callbacks_.on_progress(progress_);
  }

  const BatchJobOptions& options_;
  const BatchCallbacks& callbacks_;
  const ModelTable models_;
  Engine& engine_;
  BatchFiles files_;
  const std::atomic<bool> gone_{false};
  const Stopwatch watch_{};
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  BatchProgress progress_;
  std::unordered_set<std::string> seen_;  // custom ids of the input so far
  bool input_ended_ = false;
  std::optional<Waiting> waiting_;    // read, and no room for it yet
  std::map<int64_t, OpenLine> open_;  // by line number
  int64_t outstanding_ = 0;           // sequences
};

}  // namespace

Workload ReadBatchWorkload(const BatchJobOptions& options, const MessageCounter& count_tokens,
                           int64_t template_tokens) {
  constexpr size_t kCounted = 1000;
  constexpr int64_t kMostTokens = int64_t{1} << 24;
  LineReader reader(options.files.input);
  Workload workload;
  workload.source = options.files.input.string();
  std::string text;
  while (reader.Next(&text)) {
    if (IsBlankLine(text)) continue;
    if (workload.requests.size() >= kCounted) {
      workload.requests.push_back(workload.requests[workload.requests.size() % kCounted]);
      continue;
    }
    RequestLengths request;
    request.generated_tokens = options.prompts.max_tokens;
    bool chat = options.prompts.chat;
    try {
      const BatchLine line = ParseBatchLine(text, 1, options.prompts);
      const Json body = ParseJson(line.body);
      chat = line.chat;
      request.prompt_tokens =
          PromptTokens(body, [&](std::string_view part) { return count_tokens(part, chat); });
      for (const char* name : {"max_tokens", "max_completion_tokens"}) {
        if (body.contains(name) && body[name].is_number_integer()) {
          request.generated_tokens = body[name].get<int64_t>();
        }
      }
    } catch (const ApiError&) {
      // A plain prompt, or a line that will be refused.
      request.prompt_tokens = count_tokens(text, chat);
    }
    request.prompt_tokens += chat ? template_tokens : 0;
    request.prompt_tokens = std::clamp<int64_t>(request.prompt_tokens, 1, kMostTokens);
    request.generated_tokens = std::clamp<int64_t>(request.generated_tokens, 1, kMostTokens);
    workload.requests.push_back(request);
  }
  return workload;
}

BatchProgress RunBatchJob(const ServedModel& model, const BatchJobOptions& options,
                          const BatchCallbacks& callbacks) {
  return BatchJob(model, options, callbacks).Run();
}

}  // namespace moesaic
