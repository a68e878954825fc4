#include "kernels/cpu/gguf_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <string_view>

#include "core/base/check.h"
#include "core/base/tensor.h"

namespace moesaic {
namespace {

using Block = const uint8_t*;

template <typename T>
T Load(Block from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
float LoadF16(Block from) { return F16ToF32(Load<uint16_t>(from)); }

// --- plain numbers

void F32Value(Block block, float* out) { *out = Load<float>(block); }
void F16Value(Block block, float* out) { *out = LoadF16(block); }
void Bf16Value(Block block, float* out) { *out = Bf16ToF32(Load<uint16_t>(block)); }

// --- blocks of 32: value i < 16 is in the low half of byte i, value i + 16 in the high half

constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of E2M1.
constexpr int8_t kMxfp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

uint32_t Nibble(Block bytes, int i) { return i < 16 ? bytes[i] & 15u : bytes[i - 16] >> 4; }

void Q4_0(Block block, float* out) {
  const float scale = LoadF16(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(static_cast<int>(Nibble(block + 2, i)) - 8);
  }
}
void Q4_1(Block block, float* out) {
  const float scale = LoadF16(block);
  const float least = LoadF16(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(Nibble(block + 4, i)) + least;
}
uint32_t FiveBits(Block nibbles, uint32_t high, int i) {
  return Nibble(nibbles, i) | (high >> i & 1) << 4;
}
void Q5_0(Block block, float* out) {
  const float scale = LoadF16(block);
  const auto high = Load<uint32_t>(block + 2);
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(static_cast<int>(FiveBits(block + 6, high, i)) - 16);
  }
}
void Q5_1(Block block, float* out) {
  const float scale = LoadF16(block);
  const float least = LoadF16(block + 2);
  const auto high = Load<uint32_t>(block + 4);
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(FiveBits(block + 8, high, i)) + least;
  }
}
void Q8_0(Block block, float* out) {
  const float scale = LoadF16(block);
  for (int i = 0; i < 32; ++i) out[i] = scale * static_cast<float>(Load<int8_t>(block + 2 + i));
}
void Iq4Nl(Block block, float* out) {
  const float scale = LoadF16(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(kIq4Values[Nibble(block + 2, i)]);
  }
}
void Mxfp4(Block block, float* out) {
  const float scale = std::ldexp(1.0f, static_cast<int>(block[0]) - 128);
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(kMxfp4Values[Nibble(block + 1, i)]);
  }
}

// --- blocks of 256

// Scale and minimum of the j-th 32 values of Q4_K and Q5_K: 6 bits each in 12 bytes.
struct ScaleAndMinimum {
  float scale;
  float minimum;
};
ScaleAndMinimum Packed6Bits(Block s, int j) {
  if (j < 4) return {static_cast<float>(s[j] & 63), static_cast<float>(s[j + 4] & 63)};
  return {static_cast<float>((s[j + 4] & 15) | (s[j - 4] >> 6) << 4),
          static_cast<float>((s[j + 4] >> 4) | (s[j] >> 6) << 4)};
}

// `high`: 32 bytes whose bit j is the fifth bit of the j-th 32 values; null: there is none.
void Q4Or5K(Block block, Block high, Block nibbles, float* out) {
  const float scales = LoadF16(block);
  const float minimums = LoadF16(block + 2);
  for (int j = 0; j < 8; ++j) {
    const ScaleAndMinimum packed = Packed6Bits(block + 4, j);
    const float scale = scales * packed.scale;
    const float minimum = minimums * packed.minimum;
    for (int l = 0; l < 32; ++l) {
      uint32_t q = nibbles[32 * (j / 2) + l] >> 4 * (j & 1) & 15u;
      if (high != nullptr) q |= (high[l] >> j & 1u) << 4;
      out[32 * j + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}
void Q4K(Block block, float* out) { Q4Or5K(block, nullptr, block + 16, out); }
void Q5K(Block block, float* out) { Q4Or5K(block, block + 16, block + 48, out); }

void Q6K(Block block, float* out) {
  const Block low = block;
  const Block high = block + 128;
  const Block scales = block + 192;
  const float scale_of_all = LoadF16(block + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int part = i % 128 / 32;
    const int l = i % 32;
    const uint32_t q = (low[64 * half + i % 64] >> 4 * (part / 2) & 15u) |
                       (high[32 * half + l] >> 2 * part & 3u) << 4;
    const float scale = scale_of_all * static_cast<float>(Load<int8_t>(scales + i / 16));
    out[i] = scale * static_cast<float>(static_cast<int>(q) - 32);
  }
}

void Q2K(Block block, float* out) {
  const Block quants = block + 16;
  const float scales = LoadF16(block + 80);
  const float minimums = LoadF16(block + 82);
  for (int i = 0; i < 256; ++i) {
    const uint32_t q = quants[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3u;
    const float scale = scales * static_cast<float>(block[i / 16] & 15);
    const float minimum = minimums * static_cast<float>(block[i / 16] >> 4);
    out[i] = scale * static_cast<float>(q) - minimum;
  }
}

void Q3K(Block block, float* out) {
  const Block high = block;
  const Block quants = block + 32;
  const Block s = block + 96;
  const float scale_of_all = LoadF16(block + 108);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;
    const int part = i % 128 / 32;
    const int l = i % 32;
    const int q = static_cast<int>(quants[32 * half + l] >> 2 * part & 3u) -
                  ((high[l] >> (4 * half + part) & 1u) != 0 ? 0 : 4);
    const int g = i / 16;
    const uint32_t scale = (s[g % 8] >> 4 * (g / 8) & 15u) | (s[8 + g % 4] >> 2 * (g / 4) & 3u)
                                                                 << 4;
    out[i] =
        scale_of_all * static_cast<float>(static_cast<int>(scale) - 32) * static_cast<float>(q);
  }
}

void Iq4Xs(Block block, float* out) {
  const float scale_of_all = LoadF16(block);
  const auto high = Load<uint16_t>(block + 2);
  const Block low = block + 4;
  const Block quants = block + 8;
  for (int j = 0; j < 8; ++j) {
    const uint32_t bits =
        (low[j / 2] >> 4 * (j & 1) & 15u) | (static_cast<uint32_t>(high) >> 2 * j & 3u) << 4;
    const float scale = scale_of_all * static_cast<float>(static_cast<int>(bits) - 32);
    for (int l = 0; l < 32; ++l) {
      out[32 * j + l] = scale * static_cast<float>(kIq4Values[Nibble(quants + 16 * j, l)]);
    }
  }
}

struct BlockValues {
  std::string_view type;
  void (*read)(Block block, float* out);
};
constexpr BlockValues kBlockValues[] = {
    {"F32", F32Value}, {"F16", F16Value}, {"BF16", Bf16Value}, {"Q4_0", Q4_0},
    {"Q4_1", Q4_1},    {"Q5_0", Q5_0},    {"Q5_1", Q5_1},      {"Q8_0", Q8_0},
    {"Q2_K", Q2K},     {"Q3_K", Q3K},     {"Q4_K", Q4K},       {"Q5_K", Q5K},
    {"Q6_K", Q6K},     {"IQ4_NL", Iq4Nl}, {"IQ4_XS", Iq4Xs},   {"MXFP4", Mxfp4},
};

const BlockValues* Find(const GgufType& type) {
  const auto* const found =
      std::find_if(std::begin(kBlockValues), std::end(kBlockValues),
                   [&](const BlockValues& values) { return values.type == type.name; });
  return found == std::end(kBlockValues) ? nullptr : found;
}

}  // namespace

bool HasGgufValues(const GgufType& type) { return Find(type) != nullptr; }

void DequantiseGguf(const GgufType& type, std::span<const std::byte> blocks, std::span<float> out) {
  const BlockValues* const values = Find(type);
  CHECK(values != nullptr);
  const auto block_values = static_cast<size_t>(type.block_values);
  const auto block_bytes = static_cast<size_t>(type.block_bytes);
  CHECK_EQ(out.size() % block_values, size_t{0});
  CHECK_EQ(blocks.size(), out.size() / block_values * block_bytes);
  const auto* const bytes = reinterpret_cast<Block>(blocks.data());
  for (size_t i = 0; i < out.size() / block_values; ++i) {
    values->read(bytes + i * block_bytes, out.data() + i * block_values);
  }
}

}  // namespace moesaic
