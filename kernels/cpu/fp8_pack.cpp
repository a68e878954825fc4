#include "kernels/cpu/fp8_pack.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/base/check.h"

namespace moesaic {
namespace {

constexpr int64_t kPackedLine = 64;
constexpr int64_t kPackedLineInputs = 4;

// Inputs 0, 1, 2, 3 as a line has them: 0, 2, 1, 3.
uint32_t InOrderOfLine(uint32_t codes) {
  return (codes & 0xff0000ffu) | (codes & 0x0000ff00u) << 8 | (codes & 0x00ff0000u) >> 8;
}

// Has its highest bits set where a code is NaN: 127 or 255.
uint32_t NotNumbers(uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; }

}  // namespace

void PackFp8Row(const PackedMatrix& w, int64_t row, const std::byte* codes, const float* scales,
                std::byte* panel) {
  CHECK(w.type == WeightType::kFp8);
  const int64_t lane = row % kPanelOutputs;
  std::byte* to = panel + lane * 4;
  for (int64_t first = 0; first < w.k; first += kQuantGroup) {
    std::byte* const scale = to;
    to += kPackedLine;
    const int64_t end = std::min(w.k, first + kQuantGroup);
    uint32_t wrong = 0;
    for (int64_t i = first; i < end; i += kPackedLineInputs, to += kPackedLine) {
      uint32_t four = 0;
      std::memcpy(&four, codes + i, static_cast<size_t>(std::min(end - i, kPackedLineInputs)));
      wrong |= NotNumbers(four);
      four = InOrderOfLine(four);
      std::memcpy(to, &four, sizeof(four));
    }
    const bool number = (wrong & 0x80808080u) == 0;
    const float value =
        number ? scales[first / kQuantGroup] : std::numeric_limits<float>::quiet_NaN();
    std::memcpy(scale, &value, sizeof(value));
  }
}

}  // namespace moesaic
