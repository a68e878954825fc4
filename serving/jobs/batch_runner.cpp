#include "serving/jobs/batch_runner.h"

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/logging.h"
#include "serving/api/api_error.h"
#include "serving/api/random_id.h"
#include "serving/jobs/batch_job.h"

namespace moesaic {
namespace {

constexpr auto kRetryAfter = std::chrono::seconds(30);  // a full disk, say
constexpr auto kLookForOld = std::chrono::hours(1);

bool HasLines(const std::filesystem::path& file) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(file, error);
  return !error && bytes > 0;
}

}  // namespace

void BatchRunner::Start(ModelOf model_of) {
  model_of_ = std::move(model_of);
  thread_ = std::thread([this] { Run(); });
}

void BatchRunner::Wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  wake_.NotifyAll();
}

void BatchRunner::Stop() {
  stopping_.store(true);
  Wake();
  if (thread_.joinable()) thread_.join();
}

void BatchRunner::Run() {
  std::set<std::string> put_off;  // until the next wait is over: others have their turn
  while (!Stopping()) {
    auto again = std::chrono::steady_clock::now() + kLookForOld;
    try {
      store_.RemoveOld();
      if (const auto batch = store_.NextBatch(put_off)) {
        if (!Advance(*batch)) put_off.insert(batch->id);
        continue;
      }
      if (!put_off.empty()) again = std::chrono::steady_clock::now() + kRetryAfter;
    } catch (const std::exception& error) {
      LogError("batches: {}; tried again in {} s", error.what(), kRetryAfter.count());
      again = std::chrono::steady_clock::now() + kRetryAfter;
    }
    put_off.clear();
    const MutexLock lock(mutex_);
    while (!woken_ && !Stopping() && wake_.WaitUntil(mutex_, again)) {
    }
    woken_ = false;
  }
}

bool BatchRunner::Advance(const StoredBatch& batch) {
  if (batch.status == BatchStatus::kFinalizing) {
    Finalize(batch);
    return true;
  }
  // Its model may be one that cannot be had.
  if (const auto cut_short = store_.CutShort(batch.id)) {
    EndBatch(batch, *cut_short);
    return true;
  }
  try {
    return RunLines(batch, model_of_(batch.model));
  } catch (const ApiError& error) {
    if (error.status() == 404) {
      FailBatch(batch, "model_not_found", error.what());
      return true;
    }
    LogWarn("batch {}: {} cannot be had: {}; tried again in {} s", batch.id, batch.model,
            error.what(), kRetryAfter.count());
    return false;
  } catch (const Error& error) {
    const bool of_disk = error.kind() == ErrorKind::kIo || error.kind() == ErrorKind::kUnavailable;
    if (!of_disk) {
      FailBatch(batch, "invalid_input_file", error.what());
      return true;
    }
    // Nothing is lost: the answers up to there are whole.
    LogWarn("batch {}: {}; goes on in {} s", batch.id, error.what(), kRetryAfter.count());
    return false;
  }
}

// Whether it has ended: false, the engine takes no lines now.
bool BatchRunner::RunLines(const StoredBatch& batch, const ServedModel& model) {
  if (batch.status == BatchStatus::kValidating) {
    store_.UpdateBatch(batch.id,
                       [](StoredBatch& changed) { changed.status = BatchStatus::kInProgress; });
    LogInfo("batch {}: begun, for {}", batch.id, batch.model);
  }
  BatchJobOptions options;
  options.files = {.input = store_.ContentOf(batch.input_file_id),
                   .output = store_.OutputOf(batch.id),
                   .errors = store_.ErrorsOf(batch.id),
                   .resume = true};
  options.form = BatchInputForm::kJsonl;
  options.endpoint = batch.endpoint;
  options.max_outstanding = max_outstanding_;
  options.background = true;
  std::optional<BatchStatus> cut_short;
  BatchCallbacks callbacks;
  callbacks.stops = [&] {
    if (!cut_short) cut_short = store_.CutShort(batch.id);
    return Stopping() || cut_short ? 2 : 0;
  };
  callbacks.on_progress = [&](const BatchProgress& progress) {
    store_.ShowProgress(batch.id, progress.lines, progress.resumed + progress.done,
                        progress.refused + progress.failed);
  };
  const BatchProgress progress = RunBatchJob(model, options, callbacks);
  // An engine that goes down refuses lines: they are for another time.
  if (Stopping() || (progress.left() > 0 && !cut_short)) return false;
  callbacks.on_progress(progress);
  EndBatch(batch, cut_short.value_or(BatchStatus::kCompleted));
  return true;
}

void BatchRunner::EndBatch(const StoredBatch& batch, BatchStatus outcome,
                           std::optional<StoredBatch::Problem> problem) {
  Finalize(store_.UpdateBatch(batch.id, [&](StoredBatch& changed) {
    changed.status = BatchStatus::kFinalizing;
    changed.outcome = outcome;
    if (problem) changed.problems.push_back(*problem);
    if (HasLines(store_.OutputOf(batch.id))) changed.output_file_id = MakeRandomId("file-");
    if (HasLines(store_.ErrorsOf(batch.id))) changed.error_file_id = MakeRandomId("file-");
  }));
}

void BatchRunner::Finalize(const StoredBatch& batch) {
  store_.KeepAnswers(batch);
  store_.UpdateBatch(batch.id, [](StoredBatch& changed) { changed.status = changed.outcome; });
  LogInfo("batch {}: {}, {} of {} lines answered, {} not", batch.id, BatchStatusName(batch.outcome),
          batch.completed, batch.total, batch.failed);
}

void BatchRunner::FailBatch(const StoredBatch& batch, std::string code, std::string message) {
  LogWarn("batch {}: failed: {}", batch.id, message);
  EndBatch(batch, BatchStatus::kFailed,
           StoredBatch::Problem{std::move(code), std::move(message), std::nullopt});
}

}  // namespace moesaic
