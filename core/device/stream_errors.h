// StreamErrors: which errors a stream is in, for a device that runs what is queued by itself and
// only tells when a mark has been passed (CUDA).
//
// A stream's error at some place of its order is decided by what was queued before that place: a
// host function may throw, a copy may have been refused when it was queued, and a wait brings the
// errors of another stream along. Each such thing is a *cause*, pending until it is known how it
// went. Who wants to know the error at a place (an event, a host function) keeps the causes of that
// place, and looks at them once the device has passed it: by then none is pending.
//
// Owned by a stream and guarded by its lock; snapshots and causes are safe from any thread.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/error.h"

namespace moesaic {

class ErrorCause {
 public:
  // Exactly one of the two, once.
  void Succeed() { state_.store(State::kGood, std::memory_order_release); }
  void Fail(Error error) {
    error_ = std::move(error);
    state_.store(State::kFailed, std::memory_order_release);
  }
  bool good() const { return state_.load(std::memory_order_acquire) == State::kGood; }
  // Null while pending, and when it went well.
  const Error* error() const {
    return state_.load(std::memory_order_acquire) == State::kFailed ? &*error_ : nullptr;
  }

 private:
  enum class State : unsigned char { kPending, kGood, kFailed };
  std::atomic<State> state_ = State::kPending;
  std::optional<Error> error_;
};

// Shared by the stream, its events and host functions, and the streams that wait for those events.
using ErrorCauses = std::vector<std::shared_ptr<ErrorCause>>;
using ErrorCausesPtr = std::shared_ptr<const ErrorCauses>;  // null: none

// The first failure among the causes, null when there is none yet.
const Error* FirstError(const ErrorCausesPtr& causes);

class StreamErrors {
 public:
  const ErrorCausesPtr& causes() const { return causes_; }
  // What is known now. Causes that are pending count as good.
  const Error* known() const { return FirstError(causes_); }

  std::shared_ptr<ErrorCause> AddPending();
  void Add(Error error);
  void Add(const ErrorCausesPtr& others);  // of an event that the stream waits for
  void Clear() { causes_ = nullptr; }

 private:
  std::shared_ptr<ErrorCauses> Unfinished() const;

  ErrorCausesPtr causes_;
};

}  // namespace moesaic
