// StreamQueue: a stream of an emulated GPU: a thread that carries out what is queued, in order.
// Completion: what an event records. WorkList: what a capture records, and a graph replays.
//
// A stream is owned by whoever created it through the runtime, and drained before it goes. Thread
// contract: safe from any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/mutex.h"

namespace moesaic::ptx {

using Work = std::function<void()>;

class Completion {
 public:
  void Set() EXCLUDES(mutex_);
  void Wait() EXCLUDES(mutex_);
  bool IsSet() const EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool set_ GUARDED_BY(mutex_) = false;
};

using WorkList = std::vector<Work>;

class StreamQueue {
 public:
  explicit StreamQueue(int device);
  ~StreamQueue();
  StreamQueue(const StreamQueue&) = delete;
  StreamQueue& operator=(const StreamQueue&) = delete;

  int device() const { return device_; }

  // Queues work, or records it while the stream is captured. It is left out when the GPU is lost by
  // then, unless it is `always` done.
  void Push(Work work, bool always = false) EXCLUDES(mutex_);
  void Drain() EXCLUDES(mutex_);
  bool Idle() const EXCLUDES(mutex_);

  bool BeginCapture() EXCLUDES(mutex_);  // false: there is one
  bool capturing() const EXCLUDES(mutex_);
  void SpoilCapture() EXCLUDES(mutex_);
  // What was recorded; null when the capture was spoilt. `was_capturing` says whether there was
  // one.
  std::unique_ptr<WorkList> EndCapture(bool& was_capturing) EXCLUDES(mutex_);

 private:
  void Run() EXCLUDES(mutex_);

  const int device_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Work> queue_ GUARDED_BY(mutex_);
  std::unique_ptr<WorkList> captured_ GUARDED_BY(mutex_);
  bool spoilt_ GUARDED_BY(mutex_) = false;
  bool busy_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false;
  const uint64_t seed_;  // 0: nothing holds it up
  std::thread thread_;
};

}  // namespace moesaic::ptx
