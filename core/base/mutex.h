// Mutex, MutexLock and CondVar with clang thread-safety annotations (CONTRIBUTING.md). A build with
// clang checks that GUARDED_BY members are touched only under their mutex.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define MOESAIC_ANNOTATE(x) __attribute__((x))
#else
#define MOESAIC_ANNOTATE(x)
#endif

#define CAPABILITY(x) MOESAIC_ANNOTATE(capability(x))
#define SCOPED_CAPABILITY MOESAIC_ANNOTATE(scoped_lockable)
#define GUARDED_BY(x) MOESAIC_ANNOTATE(guarded_by(x))
#define PT_GUARDED_BY(x) MOESAIC_ANNOTATE(pt_guarded_by(x))
#define REQUIRES(...) MOESAIC_ANNOTATE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) MOESAIC_ANNOTATE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) MOESAIC_ANNOTATE(acquire_capability(__VA_ARGS__))
#define RELEASE(...) MOESAIC_ANNOTATE(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS MOESAIC_ANNOTATE(no_thread_safety_analysis)

namespace moesaic {

class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void Lock() ACQUIRE() { mutex_.lock(); }
  void Unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() RELEASE() { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Waits on a Mutex that the caller holds. Spurious wake-ups happen: wait in a loop.
class CondVar {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Returns false when the deadline passed first.
  template <typename Clock, typename Duration>
  bool WaitUntil(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& deadline)
      REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace moesaic
