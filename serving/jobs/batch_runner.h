// BatchRunner: runs the batches of a BatchStore, one after the other, on the engine that serves
// their model, as its background (EngineRequest::background): other requests go first.
//
// Owned by the server. Thread contract: it has a thread of its own; Start, Wake and Stop may be
// called from any one.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "core/base/mutex.h"
#include "serving/api/served_model.h"
#include "serving/jobs/batch_store.h"

namespace moesaic {

class BatchRunner {
 public:
  // Sequences at work at once, at most.
  BatchRunner(BatchStore& store, int64_t max_outstanding)
      : store_(store), max_outstanding_(max_outstanding) {}
  ~BatchRunner() { Stop(); }
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;

  // A model with its engine. Throws ApiError: 404 for one that is not served, else why it cannot be
  // had now.
  using ModelOf = std::function<ServedModel(const std::string& name)>;

  // Begins with what an earlier process has left. `model_of` is called on the runner's thread.
  void Start(ModelOf model_of);
  // There is a new batch, or one to cancel.
  void Wake();
  // What runs is put back, for the next start.
  void Stop();

 private:
  void Run();
  bool Stopping() const { return stopping_.load(); }
  // Whether it has got on: false, the disk is full, say, and it has to be tried again later.
  bool Advance(const StoredBatch& batch);
  bool RunLines(const StoredBatch& batch, const ServedModel& model);
  // Its answers up to here become files, whatever it ends as.
  void EndBatch(const StoredBatch& batch, BatchStatus outcome,
                std::optional<StoredBatch::Problem> problem = std::nullopt);
  void Finalize(const StoredBatch& batch);
  void FailBatch(const StoredBatch& batch, std::string code, std::string message);

  BatchStore& store_;
  const int64_t max_outstanding_;
  ModelOf model_of_;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  CondVar wake_;
  bool woken_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace moesaic
