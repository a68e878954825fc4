// EngineGraves: where engines go that nobody uses any more, to be ended by one thread that can
// wait, which sleeps here when it has nothing to do. A connection's thread must not do that: ending
// an engine stops its threads and gives its memory back.
//
// Thread contract: any thread; Wait and Take for one. Shared by a registry and its engines, which
// may be let go of after it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "core/base/mutex.h"
#include "serving/engine/engine.h"

namespace moesaic {

class EngineGraves : public std::enable_shared_from_this<EngineGraves> {
 public:
  using Clock = std::chrono::steady_clock;

  struct Grave {
    std::unique_ptr<Engine> engine;
    uint64_t bytes = 0;
  };

  // What an engine has of memory, which may change while it works. Shared with who counts it.
  using Bytes = std::shared_ptr<std::atomic<uint64_t>>;
  // The engine, which comes here when the last holder lets go of it.
  std::shared_ptr<Engine> Hold(std::unique_ptr<Engine> engine, Bytes bytes);
  std::optional<Grave> Take() EXCLUDES(mutex_);
  // Returns when there is something to take, when Wake was called since the last time, or then.
  void Wait(Clock::time_point until) EXCLUDES(mutex_);
  void Wake() EXCLUDES(mutex_);
  // From now on engines end where they are let go of.
  void Close() EXCLUDES(mutex_);

 private:
  void Bury(std::unique_ptr<Engine> engine, uint64_t bytes) EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  bool woken_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::deque<Grave> graves_ GUARDED_BY(mutex_);
};

}  // namespace moesaic
