#include "serving/jobs/batch_job.h"

#include <algorithm>
#include <atomic>
#include <map>
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
#include "serving/api/json_text.h"
#include "serving/api/prepared_request.h"
#include "serving/api/random_id.h"
#include "serving/api/request_pool.h"
#include "serving/batch/line_file.h"
#include "serving/text/unicode.h"

namespace moesaic {
namespace {

constexpr double kSyncEveryS = 5;

uint64_t HashOf(std::string_view text) {
  return Hash64(std::as_bytes(std::span(text.data(), text.size())));
}

// Of a request's prompt or messages.
int64_t PromptTokens(const Json& body, const std::function<int64_t(std::string_view text)>& count) {
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
        files_(options.files, options.form),
        pool_(*model.engine) {
    progress_.lines = files_.input().requests();
  }

  BatchProgress Run() {
    LineReader reader(options_.files.input);
    double synced_s = 0;
    for (;;) {
      HeedStops();
      if (!progress_.draining) Fill(reader);
      if (pool_.empty()) break;
      for (RequestPool::Answer& answer : pool_.Wait()) Finish(std::move(answer));
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
  // What an answer repeats of its line.
  struct LineIds {
    std::string custom_id;
    std::string request_id;
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

  void Fill(LineReader& reader) {
    std::string text;
    std::vector<std::pair<RequestPool::Key, PreparedRequest>> requests;
    int64_t sequences = pool_.sequences();
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
      open_.emplace(waiting_->line_number, std::move(waiting_->ids));
      requests.emplace_back(waiting_->line_number, std::move(waiting_->prepared));
      waiting_.reset();
    }
    for (RequestPool::Answer& refused : pool_.Submit(std::move(requests))) {
      Finish(std::move(refused));
    }
  }

  struct Waiting {
    int64_t line_number = 0;
    LineIds ids;
    PreparedRequest prepared;
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
      waiting.ids.custom_id = line.custom_id;
      CheckEndpoint(line);
      if (!seen_.insert(line.custom_id).second) {
        throw BadParam("custom_id", "custom_id is that of an earlier line.");
      }
      if (files_.Answered(line.custom_id)) {
        ++progress_.resumed;
        return std::nullopt;
      }
      waiting.ids.request_id = MakeRandomId("req-");
      waiting.prepared = PrepareRequest(line.body, models_,
                                        {line.chat ? ApiDialect::kChat : ApiDialect::kCompletions,
                                         waiting.ids.request_id, 1024, std::nullopt, gone_});
      if (waiting.prepared.stream) {
        throw BadParam("stream", "stream is not possible in a batch.");
      }
      SetSeeds(waiting);
      for (EngineRequest& request : waiting.prepared.requests) {
        request.background = options_.background;
      }
      return waiting;
    } catch (...) {
      if (waiting.ids.custom_id.empty())
        waiting.ids.custom_id = IdOfBadLine(text, waiting.line_number);
      Refuse(waiting.line_number, waiting.ids.custom_id,
             CurrentApiError(fmt::format("line {}", waiting.line_number)));
      return std::nullopt;
    }
  }

  void CheckEndpoint(const BatchLine& line) const {
    const char* const url = line.chat ? "/v1/chat/completions" : "/v1/completions";
    if (options_.endpoint.empty() || options_.endpoint == url) return;
    throw BadParam("url", "url is {}, but the batch is of {}.", url, options_.endpoint);
  }

  std::string IdOfBadLine(std::string_view text, int64_t number) const {
    return files_.input().form == BatchInputForm::kText ? DefaultCustomId(number)
                                                        : FindCustomId(text);
  }

  void SetSeeds(Waiting& waiting) const {
    const uint64_t first = HashOf(waiting.ids.custom_id) ^ options_.seed;
    std::vector<EngineRequest>& requests = waiting.prepared.requests;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (!requests[i].sampling.seed) requests[i].sampling.seed = first + i;
    }
  }

  void Refuse(int64_t line_number, const std::string& custom_id, const ApiError& error) {
    ++(error.status() < 500 ? progress_.refused : progress_.failed);
    files_.errors().Append(BatchErrorLine(line_number, custom_id, error));
  }

  void Finish(RequestPool::Answer answer) {
    const auto line = open_.find(answer.key);
    CHECK(line != open_.end());
    const LineIds ids = std::move(line->second);
    open_.erase(line);
    if (answer.error && options_.background && answer.error->status() == 503) {
      // The engine goes down, or its model is unloaded: the rest is for another time.
      ++progress_.put_back;
      progress_.draining = true;
    } else if (answer.error) {
      Refuse(answer.key, ids.custom_id, *answer.error);
    } else if (answer.cancelled) {
      ++progress_.put_back;
    } else {
      files_.output().Append(BatchOutputLine(ids.custom_id, ids.request_id, answer.body));
      progress_.prompt_tokens += answer.usage.prompt_tokens;
      ++progress_.done;
    }
  }

  void HeedStops() {
    const int stops = callbacks_.stops();
    if (stops >= 1 && !progress_.draining) {
      progress_.draining = true;
      pool_.Cancel(true);
    }
    if (stops >= 2) pool_.Cancel(false);
  }

  void Tell() {
    progress_.outstanding = pool_.sequences();
    progress_.output_tokens = pool_.output_tokens();
    progress_.seconds = watch_.seconds();
    callbacks_.on_progress(progress_);
  }

  const BatchJobOptions& options_;
  const BatchCallbacks& callbacks_;
  const ModelTable models_;
  BatchFiles files_;
  const std::atomic<bool> gone_{false};
  const Stopwatch watch_{};
  BatchProgress progress_;
  std::unordered_set<std::string> seen_;  // custom ids of the input so far
  bool input_ended_ = false;
  std::optional<Waiting> waiting_;   // read, and no room for it yet
  std::map<int64_t, LineIds> open_;  // submitted and not ended, by line number
  RequestPool pool_;
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
