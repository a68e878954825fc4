#include "serving/multi/engine_graves.h"

#include <utility>

namespace moesaic {

std::shared_ptr<Engine> EngineGraves::Hold(std::unique_ptr<Engine> engine, Bytes bytes) {
  // Should this throw, shared_ptr calls the deleter.
  return {engine.release(), [graves = shared_from_this(), bytes = std::move(bytes)](Engine* gone) {
            graves->Bury(std::unique_ptr<Engine>(gone), bytes->load());
          }};
}

void EngineGraves::Bury(std::unique_ptr<Engine> engine, uint64_t bytes) {
  MutexLock lock(mutex_);
  if (closed_) return;  // the lock is given back first
  graves_.push_back({std::move(engine), bytes});
  changed_.NotifyAll();
}

std::optional<EngineGraves::Grave> EngineGraves::Take() {
  MutexLock lock(mutex_);
  if (graves_.empty()) return std::nullopt;
  Grave grave = std::move(graves_.front());
  graves_.pop_front();
  return grave;
}

void EngineGraves::Wait(Clock::time_point until) {
  MutexLock lock(mutex_);
  while (!woken_ && graves_.empty()) {
    if (until == Clock::time_point::max()) {
      changed_.Wait(mutex_);
    } else if (!changed_.WaitUntil(mutex_, until)) {
      break;
    }
  }
  woken_ = false;
}

void EngineGraves::Wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.NotifyAll();
}

void EngineGraves::Close() {
  std::deque<Grave> left;  // ended when the lock is given back
  MutexLock lock(mutex_);
  closed_ = true;
  left.swap(graves_);
}

}  // namespace moesaic
