// How threads of an EmulatedSystem wait, for real or while virtual time moves.
#include <algorithm>
#include <chrono>
#include <optional>

#include "core/base/check.h"
#include "core/device/emulated_core.h"
#include "core/device/host_word.h"

namespace moesaic::emulated {

void Core::WaitAsEngine(Engine& engine, int64_t until_ns) {
  if (virtual_clock_ == nullptr) {
    const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(until_ns)};
    engine.wake.WaitUntil(mutex_, until);
    return;
  }
  changed_.NotifyAll();  // who moves the time waits for this
  engine.wake.Wait(mutex_);
}

// Blocks the calling thread until done(). Virtual time does not stand still for it: nobody else may
// be there to move it.
void Core::Await(FunctionRef<bool()> done) {
  while (!done()) {
    if (virtual_clock_ != nullptr && Settled()) {
      if (const std::optional<int64_t> deadline_ns = NextDeadline()) {
        MoveVirtualTime(*deadline_ns);
        continue;
      }
    }
    changed_.Wait(mutex_);
  }
}

void Core::AdvanceNs(int64_t delta_ns) {
  CHECK(virtual_clock_ != nullptr);
  CHECK_GE(delta_ns, 0);
  MutexLock lock(mutex_);
  const int64_t target_ns = Now() + delta_ns;
  for (;;) {
    while (!Settled()) changed_.Wait(mutex_);
    if (Now() >= target_ns) return;
    MoveVirtualTime(std::min(target_ns, NextDeadline().value_or(target_ns)));
  }
}

// No thread has anything left to do at this time.
bool Core::Settled() const {
  for (const DeviceState* device : devices_) {
    for (size_t i = 0; i < device->engines.size(); ++i) {
      const Engine& engine = device->engines[i];
      if (i == kWordEngine) {
        // What waits for a word waits for somebody who may be doing nothing.
        for (const StreamState* stream : engine.ready) {
          const Op& op = stream->ops.front();
          if (device->lost || LoadWord(op.awaited) == op.value) return false;
        }
        continue;
      }
      if (engine.current == nullptr) {
        if (!engine.ready.empty()) return false;
        continue;
      }
      if (engine.in_hand || engine.deadline_ns <= Now()) return false;
      if (LostError(engine.current->ops.front(), *engine.current)) return false;
    }
  }
  return true;
}

std::optional<int64_t> Core::NextDeadline() const {
  std::optional<int64_t> next_ns;
  for (const DeviceState* device : devices_) {
    for (const Engine& engine : device->engines) {
      if (engine.current == nullptr) continue;
      next_ns = std::min(next_ns.value_or(engine.deadline_ns), engine.deadline_ns);
    }
  }
  return next_ns;
}

void Core::MoveVirtualTime(int64_t to_ns) {
  virtual_clock_->AdvanceNs(std::max<int64_t>(0, to_ns - Now()));
  for (DeviceState* device : devices_) {
    for (Engine& engine : device->engines) engine.wake.NotifyAll();
  }
}

}  // namespace moesaic::emulated
