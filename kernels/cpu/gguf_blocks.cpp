#include "kernels/cpu/gguf_blocks.h"

#include <cstring>

#include "core/base/check.h"
#include "kernels/cpu/internal/gguf_layout.h"
#include "kernels/cpu/internal/gguf_values.h"

namespace moesaic {
namespace {

constexpr int64_t kFloatsOfBlock = 32;  // where a type has one value in a block

constexpr std::byte kNoExponent{255};  // of MXFP4

// The halves of four bytes as the low halves of eight, the lower one first.
uint64_t SpreadHalves(uint32_t halves) {
  uint64_t spread = halves;
  spread = (spread | spread << 16) & 0x0000ffff0000ffffull;
  spread = (spread | spread << 8) & 0x00ff00ff00ff00ffull;
  return (spread | spread << 4) & 0x0f0f0f0f0f0f0f0full;
}

}  // namespace

bool HasGgufValues(const GgufType& type) { return GgufReadOf(type.id) != nullptr; }

void DequantiseGguf(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out) {
  const GgufReadBytes read = GgufReadOf(type.id);
  CHECK(read != nullptr);
  const auto block_values = static_cast<size_t>(type.block_values);
  const auto block_bytes = static_cast<size_t>(type.block_bytes);
  CHECK_EQ(out.size() % block_values, size_t{0});
  CHECK_EQ(blocks.size(), out.size() / block_values * block_bytes);
  const auto* const bytes = reinterpret_cast<GgufBytes>(blocks.data());
  for (size_t i = 0; i < out.size() / block_values; ++i) {
    read(bytes + i * block_bytes, type.block_values, out.data() + i * block_values);
  }
}

GgufForm GgufFormOf(const GgufType& type) {
  const int64_t blocks = type.block_values == 1 ? kFloatsOfBlock : 1;
  return {static_cast<uint16_t>(type.id), static_cast<uint16_t>(type.block_values * blocks),
          static_cast<uint16_t>(type.block_bytes * blocks)};
}

GgufForm GgufF32Form(int64_t k) {
  int64_t values = kFloatsOfBlock;
  while (k % values != 0) values /= 2;
  return {0, static_cast<uint16_t>(values), static_cast<uint16_t>(values * sizeof(float))};
}

void PackGgufRow(const PackedMatrix& w, int64_t row, const std::byte* blocks, std::byte* panel) {
  CHECK(IsGguf(w.type));
  const int64_t count = w.k / w.form.values;
  for (int64_t i = 0; i < count; ++i) {
    PutGgufBlock(w.form, blocks + i * w.form.bytes, count, i, row % kPanelOutputs, panel);
  }
}

bool PackMxfp4Row(const PackedMatrix& w, int64_t row, const std::byte* codes,
                  const std::byte* exponents, std::byte* panel) {
  CHECK(w.form == kMxfp4Form);
  constexpr GgufLayout kLayout = *GgufLayoutOf(kMxfp4Blocks);
  const int64_t count = w.k / kMxfp4Group;
  const int64_t lane = row % kPanelOutputs;
  std::byte* to = panel + GgufBodyOffset(kLayout, count) + lane * 4;
  for (int64_t i = 0; i < count; ++i, codes += kMxfp4Group / 2) {
    if (exponents[i] == kNoExponent) return false;
    panel[GgufHeadOffset(kLayout, i, lane, 0)] = exponents[i];
    uint32_t halves[4];  // of inputs 8 j to 8 j + 7
    std::memcpy(halves, codes, sizeof(halves));
    for (int j = 0; j < 2; ++j) {
      const uint64_t bytes = SpreadHalves(halves[j]) | SpreadHalves(halves[j + 2]) << 4;
      for (int dword = 0; dword < 2; ++dword, to += kLineBytes) {
        const auto of_lane = static_cast<uint32_t>(bytes >> 32 * dword);
        std::memcpy(to, &of_lane, sizeof(of_lane));
      }
    }
  }
  return true;
}

}  // namespace moesaic
