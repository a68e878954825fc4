#include "kernels/cpu/w4a16_pack.h"

#include <cstring>

#include "core/base/check.h"

namespace moesaic {
namespace {

constexpr int64_t kCodeLine = 64;
constexpr int64_t kCodeInputs = 8;    // of an output in a line
constexpr int64_t kGroupsOfPair = 2;  // whose scales share a line

}  // namespace

void PackW4A16Row(const PackedMatrix& w, int64_t row, const std::byte* codes,
                  const uint16_t* scales, int64_t group, std::byte* panel) {
  CHECK(w.type == WeightType::kW4A16);
  CHECK_EQ(w.k % group, 0);
  CHECK_EQ(group % kW4A16Group, 0);
  const int64_t lane = row % kPanelOutputs;
  std::byte* line = panel;
  std::byte* scale = panel;
  for (int64_t first = 0; first < w.k; first += kW4A16Group) {
    const int64_t of_pair = first / kW4A16Group % kGroupsOfPair;
    if (of_pair == 0) {
      scale = line;
      line += kCodeLine;
    }
    std::memcpy(scale + (of_pair * kPanelOutputs + lane) * 2, scales + first / group,
                sizeof(uint16_t));
    for (int64_t i = first; i < first + kW4A16Group; i += kCodeInputs, line += kCodeLine) {
      uint32_t eight = 0;
      std::memcpy(&eight, codes + i / 2, sizeof(eight));
      eight ^= 0x88888888u;  // two's complement
      std::memcpy(line + lane * 4, &eight, sizeof(eight));
    }
  }
}

}  // namespace moesaic
