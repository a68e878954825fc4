#include "kernels/cpu/mxfp4_repack.h"

#include <cstring>

#include "core/base/check.h"

namespace moesaic {
namespace {

constexpr int64_t kLine = 64;
constexpr int64_t kGroupLines = 4;
constexpr int64_t kGroupsOfLine = kLine / kPanelOutputs;  // whose exponents share one
// From this exponent on 6 is too large for an f32.
constexpr uint8_t kLargeExponent = 253;

// Whether one of the eight values is 4, 6 or their negatives: codes with both bits of the exponent.
bool HasLargest(uint32_t codes) { return (codes & codes >> 1 & 0x22222222u) != 0; }

}  // namespace

bool RepackMxfp4Panel(const std::byte* blocks, int64_t block_stride, const std::byte* exponents,
                      int64_t exponent_stride, int64_t rows, int64_t k, std::byte* to) {
  CHECK_EQ(k % kMxfp4Group, 0);
  CHECK_LE(rows, kPanelOutputs);
  const PackedMatrix panel = {to, WeightType::kMxfp4F32, kPanelOutputs, k};
  std::memset(to, 0, static_cast<size_t>(panel.panel_bytes()));
  std::byte* exponent_line = to;
  std::byte* lines = to;
  for (int64_t group = 0; group < k / kMxfp4Group; ++group, lines += kGroupLines * kLine) {
    if (group % kGroupsOfLine == 0) {
      exponent_line = lines;
      lines += kLine;
    }
    for (int64_t row = 0; row < rows; ++row) {
      const auto exponent = static_cast<uint8_t>(exponents[row * exponent_stride + group]);
      if (exponent >= kLargeExponent) return false;
      exponent_line[group % kGroupsOfLine * kPanelOutputs + row] = std::byte{exponent};
      // Four bytes are eight inputs in their order, here as there.
      uint32_t codes[kGroupLines];
      std::memcpy(codes, blocks + row * block_stride + group * kMxfp4Group / 2, sizeof(codes));
      bool largest = false;
      for (int64_t line = 0; line < kGroupLines; ++line) {
        largest = largest || HasLargest(codes[line]);
        std::memcpy(lines + line * kLine + row * 4, codes + line, sizeof(uint32_t));
      }
      if (!largest) return false;
    }
  }
  return true;
}

void TakeMxfp4Row(const std::byte* panel, int64_t row, int64_t k, std::byte* codes,
                  std::byte* exponents) {
  CHECK_EQ(k % kMxfp4Group, 0);
  const std::byte* exponent_line = panel;
  const std::byte* lines = panel;
  for (int64_t group = 0; group < k / kMxfp4Group; ++group) {
    if (group % kGroupsOfLine == 0) {
      exponent_line = lines;
      lines += kLine;
    }
    *exponents++ = exponent_line[group % kGroupsOfLine * kPanelOutputs + row];
    for (int64_t line = 0; line < kGroupLines; ++line, lines += kLine, codes += 4) {
      std::memcpy(codes, lines + row * 4, 4);
    }
  }
}

}  // namespace moesaic
