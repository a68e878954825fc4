// Sleeps of microseconds, for threads that look at something again and again.
#pragma once

#include <sys/prctl.h>

#include <chrono>
#include <thread>

namespace moesaic {

// Wakes the calling thread no later than it asks to be woken, where the kernel would add 50 us to
// each of its sleeps (prctl(2), PR_SET_TIMERSLACK). Threads that it starts from then on have it
// too.
inline void WakeOnTime() {
  static thread_local const bool done = prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL) == 0;
  static_cast<void>(done);
}

inline void ShortSleep(std::chrono::microseconds time) {
  WakeOnTime();
  std::this_thread::sleep_for(time);
}

}  // namespace moesaic
