// SteppedLink: an AsyncReader that moves one read at a time on a virtual clock, in steps: it takes
// a read only while the test holds it open, and a read arrives when the test says so. In between
// the loader's I/O thread is known to have done all that it can do.
//
// Thread contract: the reader as AsyncReader; the link's methods by the test's thread.
#pragma once

#include <optional>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/io/async_reader.h"

namespace moesaic {

class SteppedLink {
 public:
  // The clock must outlive it. No byte is moved.
  SteppedLink(const VirtualClock& clock, int64_t packet_ns)
      : clock_(clock), packet_ns_(packet_ns) {}

  // Takes a read now, if none is in flight and the loader has one.
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    woken_ = true;
    changed_.NotifyAll();
    Settle();
    open_ = false;
  }
  // When the read in flight arrives.
  std::optional<int64_t> end_ns() {
    MutexLock lock(mutex_);
    return in_flight_ ? std::optional(end_ns_) : std::nullopt;
  }
  // It has arrived, with the clock at its end.
  void Arrive() {
    MutexLock lock(mutex_);
    CHECK(in_flight_);
    CHECK_EQ(clock_.NowNs(), end_ns_);
    done_.push_back({in_flight_->tag, static_cast<int64_t>(in_flight_->bytes)});
    in_flight_.reset();
    changed_.NotifyAll();
    Settle();
  }

 private:
  friend class SteppedReader;

  // Until the I/O thread waits, and for nothing that is there already.
  void Settle() REQUIRES(mutex_) {
    while (!waiting_ || woken_ || !done_.empty()) changed_.Wait(mutex_);
  }

  const VirtualClock& clock_;
  const int64_t packet_ns_;
  Mutex mutex_;
  CondVar changed_;
  bool open_ GUARDED_BY(mutex_) = false;
  bool waiting_ GUARDED_BY(mutex_) = false;
  bool woken_ GUARDED_BY(mutex_) = false;
  std::optional<ReadRequest> in_flight_ GUARDED_BY(mutex_);
  int64_t end_ns_ GUARDED_BY(mutex_) = 0;
  std::vector<ReadCompletion> done_ GUARDED_BY(mutex_);
};

class SteppedReader final : public AsyncReader {
 public:
  explicit SteppedReader(SteppedLink& link) : link_(link) {}

  ReadBackend backend() const override { return ReadBackend::kThreads; }
  bool aligned_only() const override { return true; }
  int free_slots() const override {
    MutexLock lock(link_.mutex_);
    return link_.open_ && !link_.in_flight_ ? 1 : 0;
  }
  void Submit(const ReadRequest& request) override {
    MutexLock lock(link_.mutex_);
    CHECK(!link_.in_flight_);
    link_.in_flight_ = request;
    link_.end_ns_ = link_.clock_.NowNs() + link_.packet_ns_;
  }
  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    CHECK_LT(timeout_us, 0);
    MutexLock lock(link_.mutex_);
    link_.waiting_ = true;
    link_.changed_.NotifyAll();
    while (link_.done_.empty() && !link_.woken_) link_.changed_.Wait(link_.mutex_);
    link_.waiting_ = false;
    link_.woken_ = false;
    out.insert(out.end(), link_.done_.begin(), link_.done_.end());
    link_.done_.clear();
  }
  void Wake() override {
    MutexLock lock(link_.mutex_);
    link_.woken_ = true;
    link_.changed_.NotifyAll();
  }

 private:
  SteppedLink& link_;
};

}  // namespace moesaic
