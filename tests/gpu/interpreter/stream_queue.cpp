#include "tests/gpu/interpreter/stream_queue.h"

#include <chrono>
#include <random>
#include <utility>

#include "tests/gpu/interpreter/machine.h"

namespace moesaic::ptx {
void Completion::Set() {
  MutexLock lock(mutex_);
  set_ = true;
  changed_.NotifyAll();
}

void Completion::Wait() {
  MutexLock lock(mutex_);
  while (!set_) changed_.Wait(mutex_);
}

bool Completion::IsSet() const {
  MutexLock lock(mutex_);
  return set_;
}

StreamQueue::StreamQueue(int device) : device_(device), seed_(Machine::Get().SeedOfNextStream()) {
  Machine::Get().AddStream(*this);
  thread_ = std::thread([this] { Run(); });
}

StreamQueue::~StreamQueue() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  Machine::Get().RemoveStream(*this);
}

void StreamQueue::Push(Work work, bool always) {
  Work guarded = [device = device_, always, work = std::move(work)] {
    if (always || Machine::Get().lost(device) == cudaSuccess) work();
  };
  MutexLock lock(mutex_);
  if (captured_ != nullptr) {
    captured_->push_back(std::move(guarded));
    return;
  }
  queue_.push_back(std::move(guarded));
  changed_.NotifyAll();
}

void StreamQueue::Drain() {
  MutexLock lock(mutex_);
  while (busy_ || !queue_.empty()) changed_.Wait(mutex_);
}

bool StreamQueue::Idle() const {
  MutexLock lock(mutex_);
  return !busy_ && queue_.empty();
}

bool StreamQueue::BeginCapture() {
  MutexLock lock(mutex_);
  if (captured_ != nullptr) return false;
  captured_ = std::make_unique<WorkList>();
  spoilt_ = false;
  return true;
}

bool StreamQueue::capturing() const {
  MutexLock lock(mutex_);
  return captured_ != nullptr;
}

void StreamQueue::SpoilCapture() {
  MutexLock lock(mutex_);
  spoilt_ = true;
}

std::unique_ptr<WorkList> StreamQueue::EndCapture(bool& was_capturing) {
  MutexLock lock(mutex_);
  was_capturing = captured_ != nullptr;
  std::unique_ptr<WorkList> captured = std::exchange(captured_, nullptr);
  if (spoilt_) captured = nullptr;
  return captured;
}

void StreamQueue::Run() {
  std::minstd_rand random(static_cast<unsigned>(seed_));
  MutexLock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !stop_) changed_.Wait(mutex_);
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    mutex_.Unlock();
    // Now and then, so that another stream comes first that otherwise would not.
    if (seed_ != 0 && random() % 4 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    }
    work();
    work = nullptr;
    mutex_.Lock();
    busy_ = false;
    changed_.NotifyAll();
  }
}

}  // namespace moesaic::ptx
