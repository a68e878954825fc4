#include "core/perf/roofline.h"

#include <algorithm>

namespace moesaic {

double TaskSeconds(const MemoryLevel& level, double bytes, double flop) {
  return std::max(bytes / level.bytes_per_s, flop / level.flop_per_s);
}

double TokensThatHideExpert(double flop_per_s, double link_bytes_per_s, double bytes_per_weight) {
  return flop_per_s * bytes_per_weight / (2 * link_bytes_per_s);
}

}  // namespace moesaic
