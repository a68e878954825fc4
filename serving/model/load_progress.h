// LoadProgress: how much of what a model begins with has been read: its dense weights, then the
// experts that are in memory when it is ready. In bytes of memory, as the model has them.
//
// Used by the thread that loads, which tells whoever wants to know, and the log.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/base/clock.h"

namespace moesaic {

class LoadProgress {
 public:
  using Tell = std::function<void(double fraction)>;

  // `tell` (may be empty) gets fractions from 0 to 1: no two of them within a tenth of a second or
  // a hundredth of the whole. The log has one every ten seconds. Null clock: the steady one.
  LoadProgress(std::string model, Tell tell, const Clock* clock = nullptr);
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

  // So many bytes in all; once, before the first.
  void Expect(uint64_t bytes) { total_bytes_ = bytes; }
  void Read(uint64_t bytes);

  double fraction() const;

 private:
  const std::string model_;
  const Tell tell_;
  const SteadyClock steady_clock_{};
  const Clock* const clock_;
  const int64_t began_ns_;
  int64_t told_ns_;
  int64_t logged_ns_;
  double told_ = 0;
  uint64_t total_bytes_ = 0;
  uint64_t read_bytes_ = 0;
};

}  // namespace moesaic
