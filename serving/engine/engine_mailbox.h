// EngineMailbox: what an engine's callers and its thread share: requests that have come and are to
// be cancelled, and the figures that callers ask for.
//
// Thread contract: Take, AddStats, SetNotReady and Publish are for the engine's thread, the rest
// for any.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cache/kv_manager.h"
#include "core/base/mutex.h"
#include "serving/engine/engine.h"
#include "serving/engine/engine_step.h"
#include "serving/engine/scheduler.h"
#include "serving/engine/sequence.h"
#include "serving/model/step_stats.h"

namespace moesaic {

class EngineMailbox {
 public:
  using Clock = std::chrono::steady_clock;

  // Gives the sequences their ids.
  std::vector<RequestId> Post(std::vector<std::unique_ptr<Sequence>> sequences) EXCLUDES(mutex_);
  void Cancel(RequestId id) EXCLUDES(mutex_);
  // For the engine's thread, between two steps.
  void PostUse(std::function<void()> use) EXCLUDES(mutex_);
  // Has Take return.
  void Wake() EXCLUDES(mutex_);
  void Stop() EXCLUDES(mutex_);
  void BeginDrain() { draining_.store(true); }
  bool draining() const { return draining_.load(); }
  EngineStatus Status() const EXCLUDES(mutex_);
  StepStats Stats() const EXCLUDES(mutex_);

  // Something waits to be taken that cannot wait for a step of a batch to begin.
  bool is_urgent() const EXCLUDES(mutex_);
  // A request waits to be taken that is nobody's batch.
  bool has_foreground() const EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return HasForeground();
  }
  // No request waits to be taken.
  bool empty() const EXCLUDES(mutex_);

  struct Mail {
    std::vector<std::unique_ptr<Sequence>> arrived;
    std::vector<RequestId> cancelled;
    std::vector<std::function<void()>> uses;
    bool stop = false;
    bool asked_while_not_ready = false;  // somebody wants to know whether it still is
  };
  // All that has come. When nothing has and the engine is `idle`, waits for it, at most until then.
  // Who asks for the status of an engine that is not ready wakes it, too.
  Mail Take(bool idle, Clock::time_point until) EXCLUDES(mutex_);
  void AddStats(const StepStats& stats) EXCLUDES(mutex_);
  // Empty: the engine is ready.
  void SetNotReady(std::string why, std::string code) EXCLUDES(mutex_);
  void Publish(const Scheduler& scheduler, const KvManager& kv, const EngineStep::Experts& experts)
      EXCLUDES(mutex_);

 private:
  bool HasForeground() const REQUIRES(mutex_);

  std::atomic<bool> draining_{false};
  mutable Mutex mutex_;
  mutable CondVar wake_;
  bool stop_ GUARDED_BY(mutex_) = false;
  bool woken_ GUARDED_BY(mutex_) = false;
  RequestId last_id_ GUARDED_BY(mutex_) = 0;
  Mail mail_ GUARDED_BY(mutex_);
  EngineStatus status_ GUARDED_BY(mutex_);
  mutable bool asked_while_not_ready_ GUARDED_BY(mutex_) = false;
  StepStats stats_ GUARDED_BY(mutex_);
};

}  // namespace moesaic
