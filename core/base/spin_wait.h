// SpinThenWait: how the threads of an operator wait for each other.
#pragma once

#include <atomic>

namespace moesaic {

// About 20 us on a 4 GHz core (bench_thread_pool): longer than the gap between two loops of a
// decode step, much shorter than a scheduler's time slice.
constexpr int kSpins = 1000;

inline void PauseSpin() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns what `word` holds once that is no longer `old`: spins for a bounded time and then sleeps,
// until whoever changes the word notifies it.
template <typename T>
T SpinThenWait(const std::atomic<T>& word, T old) {
  T now = word.load(std::memory_order_acquire);
  for (int spin = 0; now == old; ++spin, now = word.load(std::memory_order_acquire)) {
    if (spin < kSpins) {
      PauseSpin();
    } else {
      word.wait(old, std::memory_order_acquire);
    }
  }
  return now;
}

}  // namespace moesaic
