#include "kernels/cpu/indexer.h"

#include <array>
#include <bit>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Ascending as the numbers are.
uint32_t OrderOf(float score) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0f);  // -0 becomes 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace

// The k-th highest score is found digit by digit: of the scores that begin as it does, those with
// each next digit are counted.
void TopPositions(const float* scores, int64_t count, int64_t k, int32_t* positions) {
  CHECK_LE(k, count);
  constexpr int kDigitBits = 11;
  std::array<uint32_t, 1 << kDigitBits> counts;
  uint32_t found = 0;               // the leading bits of the k-th highest
  int64_t wanted = k;               // of those that begin with them
  for (int left = 32; left > 0;) {  // bits that are not found
    const int bits = left > kDigitBits ? kDigitBits : left;
    const int shift = left - bits;
    const uint32_t mask = (1u << bits) - 1;
    counts.fill(0);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t order = OrderOf(scores[i]);
      if (left == 32 || order >> left == found) ++counts[order >> shift & mask];
    }
    uint32_t digit = mask;
    while (digit > 0 && counts[digit] < wanted) wanted -= counts[digit--];
    found = found << bits | digit;
    left = shift;
  }
  int64_t taken = 0;
  for (int64_t i = 0; i < count && taken < k; ++i) {
    const uint32_t order = OrderOf(scores[i]);
    if (order < found || (order == found && wanted-- <= 0)) continue;
    positions[taken++] = static_cast<int32_t>(i);
  }
  CHECK_EQ(taken, k);
}

}  // namespace moesaic
