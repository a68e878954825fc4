#include "kernels/cpu/gguf_blocks.h"

#include "core/base/check.h"
#include "kernels/cpu/internal/gguf_layout.h"
#include "kernels/cpu/internal/gguf_values.h"

namespace moesaic {
namespace {

constexpr int64_t kFloatsOfBlock = 32;  // where a type has one value in a block

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

}  // namespace moesaic
