// Clock: the time as components see it, real or virtual. State machines take `now` as an argument
// (architecture, section 3); what runs on a thread of its own asks a Clock, so that a test or the
// simulator can hold the time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "core/base/check.h"

namespace moesaic {

class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds since an arbitrary origin; never goes back. Safe from any thread.
  virtual int64_t NowNs() const = 0;
};

class SteadyClock : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// Stands still until it is told to move.
class VirtualClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(std::memory_order_relaxed); }
  void AdvanceNs(int64_t delta_ns) {
    CHECK_GE(delta_ns, 0);
    now_ns_.fetch_add(delta_ns, std::memory_order_relaxed);
  }

 private:
  std::atomic<int64_t> now_ns_{0};
};

// Wall time since it was made (or last restarted).
class Stopwatch {
 public:
  double seconds() const { return static_cast<double>(clock_.NowNs() - begin_ns_) * 1e-9; }
  void Restart() { begin_ns_ = clock_.NowNs(); }

 private:
  SteadyClock clock_;
  int64_t begin_ns_ = clock_.NowNs();
};

}  // namespace moesaic
