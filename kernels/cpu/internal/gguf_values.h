// The values of GGUF's blocks (ggml, src/ggml-quants.c, dequantize_row_*): f32 products in the
// order of ggml's, none of them fused, so that every instruction set has the same bits. Included by
// gguf_blocks.cpp and, for panels, by the sources of the instruction sets.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

using GgufBytes = const uint8_t*;

// An f16 as F16ToF32 widens it, in line: the exponent is put right by a multiplication, which also
// makes normal numbers of subnormal ones.
MOESAIC_INLINE float GgufScale(GgufBytes from) {
  const uint32_t half = LoadAs<uint16_t>(from);
  const uint32_t magnitude = (half & 0x7fffu) << 13;
  const uint32_t sign = (half & 0x8000u) << 16;
  const uint32_t finite = BitsOf(FloatOf(magnitude) * 0x1p112f);
  return FloatOf(sign | (magnitude < 0x0f800000u ? finite : magnitude | 0x7f800000u));
}

// --- plain numbers

inline void F32Values(GgufBytes block, int64_t count, float* out) {
  __builtin_memcpy(out, block, static_cast<size_t>(count) * sizeof(float));
}
inline void F16Values(GgufBytes block, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = GgufScale(block + 2 * i);
}
inline void Bf16Values(GgufBytes block, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = WidenBf16(LoadAs<uint16_t>(block + 2 * i));
}

// --- blocks of 32: value i < 16 is in the low half of byte i, value i + 16 in the high half

constexpr float kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of E2M1.
constexpr float kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

MOESAIC_INLINE void NibbleValues(GgufBytes halves, float scale, int offset, float least,
                                 bool has_least, float* out) {
  for (int i = 0; i < 16; ++i) {
    const float low = scale * static_cast<float>((halves[i] & 15) - offset);
    const float high = scale * static_cast<float>((halves[i] >> 4) - offset);
    out[i] = has_least ? low + least : low;
    out[i + 16] = has_least ? high + least : high;
  }
}
MOESAIC_INLINE void FiveBitValues(GgufBytes halves, uint32_t fifth, float scale, int offset,
                                  float least, bool has_least, float* out) {
  for (int i = 0; i < 16; ++i) {
    const auto first = static_cast<int>((fifth >> i & 1u) << 4);
    const auto second = static_cast<int>((fifth >> (i + 16) & 1u) << 4);
    const float low = scale * static_cast<float>(((halves[i] & 15) | first) - offset);
    const float high = scale * static_cast<float>(((halves[i] >> 4) | second) - offset);
    out[i] = has_least ? low + least : low;
    out[i + 16] = has_least ? high + least : high;
  }
}
MOESAIC_INLINE void BookValues(GgufBytes halves, float scale, const float* book, float* out) {
  for (int i = 0; i < 16; ++i) {
    out[i] = scale * book[halves[i] & 15];
    out[i + 16] = scale * book[halves[i] >> 4];
  }
}

inline void Q4_0Values(GgufBytes block, int64_t, float* out) {
  NibbleValues(block + 2, GgufScale(block), 8, 0.0f, false, out);
}
inline void Q4_1Values(GgufBytes block, int64_t, float* out) {
  NibbleValues(block + 4, GgufScale(block), 0, GgufScale(block + 2), true, out);
}
inline void Q5_0Values(GgufBytes block, int64_t, float* out) {
  FiveBitValues(block + 6, LoadAs<uint32_t>(block + 2), GgufScale(block), 16, 0.0f, false, out);
}
inline void Q5_1Values(GgufBytes block, int64_t, float* out) {
  FiveBitValues(block + 8, LoadAs<uint32_t>(block + 4), GgufScale(block), 0, GgufScale(block + 2),
                true, out);
}
inline void Q8_0Values(GgufBytes block, int64_t, float* out) {
  const float scale = GgufScale(block);
  for (int i = 0; i < 32; ++i) {
    out[i] = scale * static_cast<float>(static_cast<int8_t>(block[2 + i]));
  }
}
inline void Iq4NlValues(GgufBytes block, int64_t, float* out) {
  BookValues(block + 2, GgufScale(block), kIq4Values, out);
}
inline void Mxfp4Values(GgufBytes block, int64_t, float* out) {
  // 2^(e - 128), a denormal for 0 and 1.
  const uint32_t e = block[0];
  const float scale = FloatOf(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  BookValues(block + 1, scale, kE2M1Doubled, out);
}

// --- blocks of 256

// Q4_K, and Q5_K whose `fifth`, 32 bytes, has the fifth bit of the j-th 32 values in bit j.
MOESAIC_INLINE void ScaledAboveMinimum(GgufBytes block, GgufBytes fifth, GgufBytes halves,
                                       float* out) {
  const float scales = GgufScale(block);
  const float minimums = GgufScale(block + 2);
  const GgufBytes s = block + 4;
  for (int j = 0; j < 8; ++j) {
    const int scale6 = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum6 = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    const float scale = scales * static_cast<float>(scale6);
    const float minimum = minimums * static_cast<float>(minimum6);
    const GgufBytes from = halves + 32 * (j / 2);
    const int shift = 4 * (j & 1);
    for (int l = 0; l < 32; ++l) {
      int q = from[l] >> shift & 15;
      if (fifth != nullptr) q |= (fifth[l] >> j & 1) << 4;
      out[32 * j + l] = scale * static_cast<float>(q) - minimum;
    }
  }
}
inline void Q4KValues(GgufBytes block, int64_t, float* out) {
  ScaledAboveMinimum(block, nullptr, block + 16, out);
}
inline void Q5KValues(GgufBytes block, int64_t, float* out) {
  ScaledAboveMinimum(block, block + 16, block + 48, out);
}

inline void Q6KValues(GgufBytes block, int64_t, float* out) {
  const float scale_of_all = GgufScale(block + 208);
  for (int group = 0; group < 16; ++group) {
    const int half = group / 8;
    const int part = group % 8 / 2;
    const GgufBytes low = block + 64 * half + 16 * (group % 4);
    const GgufBytes high = block + 128 + 32 * half + 16 * (group % 2);
    const int shift = 4 * (part / 2);
    const float scale = scale_of_all * static_cast<float>(static_cast<int8_t>(block[192 + group]));
    for (int l = 0; l < 16; ++l) {
      const int q = (low[l] >> shift & 15) | (high[l] >> 2 * part & 3) << 4;
      out[16 * group + l] = scale * static_cast<float>(q - 32);
    }
  }
}

inline void Q2KValues(GgufBytes block, int64_t, float* out) {
  const float scales = GgufScale(block + 80);
  const float minimums = GgufScale(block + 82);
  for (int group = 0; group < 16; ++group) {
    const GgufBytes from = block + 16 + 32 * (group / 8) + 16 * (group % 2);
    const int shift = group % 8 / 2 * 2;
    const float scale = scales * static_cast<float>(block[group] & 15);
    const float minimum = minimums * static_cast<float>(block[group] >> 4);
    for (int l = 0; l < 16; ++l) {
      out[16 * group + l] = scale * static_cast<float>(from[l] >> shift & 3) - minimum;
    }
  }
}

inline void Q3KValues(GgufBytes block, int64_t, float* out) {
  const GgufBytes s = block + 96;
  const float scale_of_all = GgufScale(block + 108);
  for (int group = 0; group < 16; ++group) {
    const int part = group / 2;  // whose bit `high` has
    const GgufBytes high = block + 16 * (group % 2);
    const GgufBytes from = block + 32 + 32 * (group / 8) + 16 * (group % 2);
    const int shift = part % 4 * 2;
    const int scale6 =
        (s[group % 8] >> 4 * (group / 8) & 15) | (s[8 + group % 4] >> 2 * (group / 4) & 3) << 4;
    const float scale = scale_of_all * static_cast<float>(scale6 - 32);
    for (int l = 0; l < 16; ++l) {
      const int q = (from[l] >> shift & 3) - 4 + 4 * (high[l] >> part & 1);
      out[16 * group + l] = scale * static_cast<float>(q);
    }
  }
}

inline void Iq4XsValues(GgufBytes block, int64_t, float* out) {
  const float scale_of_all = GgufScale(block);
  const int high = LoadAs<uint16_t>(block + 2);
  for (int j = 0; j < 8; ++j) {
    const int scale6 = (block[4 + j / 2] >> 4 * (j & 1) & 15) | (high >> 2 * j & 3) << 4;
    BookValues(block + 8 + 16 * j, scale_of_all * static_cast<float>(scale6 - 32), kIq4Values,
               out + 32 * j);
  }
}

// `count` values, which are those of a block where the type has more than one in it.
using GgufReadBytes = void (*)(GgufBytes block, int64_t count, float* out);

struct GgufReader {
  uint32_t id;  // ggml's enum ggml_type
  GgufReadBytes read;
};
constexpr GgufReader kGgufReaders[] = {
    {0, F32Values},  {1, F16Values},    {30, Bf16Values},  {2, Q4_0Values},
    {3, Q4_1Values}, {6, Q5_0Values},   {7, Q5_1Values},   {8, Q8_0Values},
    {10, Q2KValues}, {11, Q3KValues},   {12, Q4KValues},   {13, Q5KValues},
    {14, Q6KValues}, {20, Iq4NlValues}, {23, Iq4XsValues}, {39, Mxfp4Values},
};

// Null: values that are not known.
MOESAIC_INLINE GgufReadBytes GgufReadOf(uint32_t id) {
  for (const GgufReader& reader : kGgufReaders) {
    if (reader.id == id) return reader.read;
  }
  return nullptr;
}

}  // namespace
}  // namespace moesaic
