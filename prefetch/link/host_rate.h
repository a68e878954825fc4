// HostRate: what computing one expert on the host takes, measured while it serves: with the copies
// and the other work that go on at the same time, which is what the miss planner has to know.
//
// The time depends on how many rows an expert gets (one in decoding, many in a prefill): an average
// is kept for each power of two. Plain data; thread contract: none of its own.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/base/check.h"
#include "prefetch/link/moving_average.h"

namespace moesaic {

class HostRate {
 public:
  // What a profile says, until it is measured here.
  void Start(int64_t rows_per_expert, double expert_ns) {
    mean_ns_[Bucket(rows_per_expert)] = expert_ns;
  }
  void Measured(int64_t rows_per_expert, double expert_ns) {
    MovingAverage(expert_ns, mean_ns_[Bucket(rows_per_expert)]);
  }
  // That of the nearest number of rows that was measured; 0 when none was.
  int64_t ExpertNs(int64_t rows_per_expert) const {
    const size_t nearest = Nearest(rows_per_expert);
    return nearest < kBuckets ? std::llround(std::max(1.0, mean_ns_[nearest])) : 0;
  }
  // The host had work to choose from and got none. What made it slow may be over, which only
  // another try can tell: after a few hundred such layers it looks twice as fast.
  void PassedOver(int64_t rows_per_expert) {
    const size_t nearest = Nearest(rows_per_expert);
    if (nearest < kBuckets) mean_ns_[nearest] = std::max(1.0, mean_ns_[nearest] * kForget);
  }

 private:
  static constexpr size_t kBuckets = 16;
  static constexpr double kForget = 0.997;

  static size_t Bucket(int64_t rows) {
    CHECK_GT(rows, 0);
    const auto log2 = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(rows)) - 1);
    return log2 < kBuckets ? log2 : kBuckets - 1;
  }
  size_t Nearest(int64_t rows) const {
    const size_t wanted = Bucket(rows);
    for (size_t off = 0; off < kBuckets; ++off) {
      if (wanted >= off && mean_ns_[wanted - off] > 0) return wanted - off;
      if (wanted + off < kBuckets && mean_ns_[wanted + off] > 0) return wanted + off;
    }
    return kBuckets;
  }

  std::array<double, kBuckets> mean_ns_{};  // 0: not measured
};

}  // namespace moesaic
