#include "core/perf/roofline.h"

#include <algorithm>

namespace moesaic {

double RidgeIntensity(const MemoryLevel& level) { return level.flop_per_s / level.bytes_per_s; }

double AttainableFlopPerS(const MemoryLevel& level, double intensity) {
  return std::min(level.flop_per_s, level.bytes_per_s * intensity);
}

double AttainableOverLink(const MemoryLevel& fast, double fast_intensity, double link_bytes_per_s,
                          double slow_intensity) {
  return std::min(AttainableFlopPerS(fast, fast_intensity), link_bytes_per_s * slow_intensity);
}

double ComputeInPlaceBelow(const MemoryLevel& slow, double slow_intensity,
                           double link_bytes_per_s) {
  return AttainableFlopPerS(slow, slow_intensity) / link_bytes_per_s;
}

double LinkBoundBelow(const MemoryLevel& fast, double fast_intensity, double link_bytes_per_s) {
  return AttainableFlopPerS(fast, fast_intensity) / link_bytes_per_s;
}

double BalanceIntensity(const MemoryLevel& fast, double fast_intensity, double link_bytes_per_s) {
  return fast.bytes_per_s * fast_intensity / link_bytes_per_s;
}

double TaskSeconds(const MemoryLevel& level, double bytes, double flop) {
  return std::max(bytes / level.bytes_per_s, flop / level.flop_per_s);
}

double BalanceMicroBatches(double resident_share, double device_bytes_per_s,
                           double link_bytes_per_s) {
  return (1 - resident_share) * device_bytes_per_s / link_bytes_per_s;
}

double TokensThatHideExpert(double flop_per_s, double link_bytes_per_s, double bytes_per_weight) {
  return flop_per_s * bytes_per_weight / (2 * link_bytes_per_s);
}

double LayerIntensity(double tokens, double m, double s, int64_t num_experts, int64_t top_k) {
  // In units of 2 h^2: experts 3 m, attention 2 + 2/s.
  const double attention = 2 + 2 / s;
  return tokens * (3 * m * static_cast<double>(top_k) + attention) /
         (3 * m * static_cast<double>(num_experts) + attention);
}

}  // namespace moesaic
