// Vec16 in plain C++: the reference for what each operation means.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

struct Vec16 {
  float v[16];
};

template <typename F>
MOESAIC_INLINE Vec16 MapLanes(F f) {
  Vec16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}

MOESAIC_INLINE Vec16 Set(float a) {
  return MapLanes([&](int) { return a; });
}
MOESAIC_INLINE Vec16 Zero() { return Set(0.0f); }
MOESAIC_INLINE Vec16 Load(const void* p) { return LoadAs<Vec16>(p); }
MOESAIC_INLINE void Store(void* p, Vec16 a) { StoreAs(p, a); }
// Past the caches where the instruction set can; until EndStreams for the storing thread only.
MOESAIC_INLINE void StoreStream(void* p, Vec16 a) { Store(p, a); }
MOESAIC_INLINE void EndStreams() {}
// The first `n` (0 to 16) lanes; the others are zero, and their memory is not touched.
MOESAIC_INLINE Vec16 LoadFirst(const float* p, int64_t n) {
  return MapLanes([&](int i) { return i < n ? p[i] : 0.0f; });
}
MOESAIC_INLINE void StoreFirst(float* p, int64_t n, Vec16 a) {
  for (int64_t i = 0; i < n; ++i) p[i] = a.v[i];
}
// Keeps lanes [begin, end) of `a`, takes `other` elsewhere.
MOESAIC_INLINE Vec16 KeepRange(Vec16 a, int64_t begin, int64_t end, Vec16 other) {
  return MapLanes([&](int i) { return i >= begin && i < end ? a.v[i] : other.v[i]; });
}

// a * b + c, rounded once. Without -mfma this is a call of libm, which is correct and slow.
MOESAIC_INLINE Vec16 Fma(Vec16 a, Vec16 b, Vec16 c) {
  return MapLanes([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// a * b - c, rounded once.
MOESAIC_INLINE Vec16 Fms(Vec16 a, Vec16 b, Vec16 c) {
  return MapLanes([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], -c.v[i]); });
}
MOESAIC_INLINE Vec16 Add(Vec16 a, Vec16 b) {
  return MapLanes([&](int i) { return a.v[i] + b.v[i]; });
}
MOESAIC_INLINE Vec16 Sub(Vec16 a, Vec16 b) {
  return MapLanes([&](int i) { return a.v[i] - b.v[i]; });
}
MOESAIC_INLINE Vec16 Mul(Vec16 a, Vec16 b) {
  return MapLanes([&](int i) { return a.v[i] * b.v[i]; });
}
MOESAIC_INLINE Vec16 Div(Vec16 a, Vec16 b) {
  return MapLanes([&](int i) { return a.v[i] / b.v[i]; });
}
// b where the two do not compare (the rule of MAXPS): Max(x, acc) skips a NaN in x.
MOESAIC_INLINE Vec16 Max(Vec16 a, Vec16 b) {
  return MapLanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
// The same rule as Max.
MOESAIC_INLINE Vec16 Min(Vec16 a, Vec16 b) {
  return MapLanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
// |a| or b, whichever is larger; b is not negative. NaN counts as larger than infinity.
MOESAIC_INLINE Vec16 MaxMagnitudes(Vec16 a, Vec16 b) {
  return MapLanes(
      [&](int i) { return FloatOf(MaxOf(BitsOf(a.v[i]) & 0x7fffffffu, BitsOf(b.v[i]))); });
}
MOESAIC_INLINE float MaxMagnitude(Vec16 a, Vec16 b) {
  const Vec16 both = MaxMagnitudes(a, MaxMagnitudes(b, Zero()));
  uint32_t max = 0;
  for (const float v : both.v) max = MaxOf(max, BitsOf(v));
  return FloatOf(max);
}
MOESAIC_INLINE Vec16 SelectLess(Vec16 a, Vec16 b, Vec16 if_true, Vec16 if_false) {
  return MapLanes([&](int i) { return a.v[i] < b.v[i] ? if_true.v[i] : if_false.v[i]; });
}
MOESAIC_INLINE Vec16 SelectNan(Vec16 a, Vec16 if_nan, Vec16 otherwise) {
  return MapLanes([&](int i) { return a.v[i] != a.v[i] ? if_nan.v[i] : otherwise.v[i]; });
}
// Adds the bits of `t`, shifted left, to those of `a`.
template <int kShift>
MOESAIC_INLINE Vec16 AddShifted(Vec16 a, Vec16 t) {
  return MapLanes([&](int i) { return FloatOf(BitsOf(a.v[i]) + (BitsOf(t.v[i]) << kShift)); });
}

// A line of 16 bf16 pairs: the first or the second element of each pair, widened.
MOESAIC_INLINE Vec16 LoadEven(const std::byte* line) {
  return MapLanes([&](int i) { return FloatOf(LoadAs<uint32_t>(line + i * 4) << 16); });
}
MOESAIC_INLINE Vec16 LoadOdd(const std::byte* line) {
  return MapLanes([&](int i) { return FloatOf(LoadAs<uint32_t>(line + i * 4) & 0xffff0000u); });
}
// The line that LoadEven and LoadOdd read, of numbers that are bf16.
MOESAIC_INLINE void StorePairs(std::byte* line, Vec16 even, Vec16 odd) {
  for (int i = 0; i < 16; ++i) {
    StoreAs(line + i * 4, BitsOf(even.v[i]) >> 16 | (BitsOf(odd.v[i]) & 0xffff0000u));
  }
}
// 16 consecutive bf16.
MOESAIC_INLINE Vec16 LoadBf16(const void* p) {
  const auto* bytes = static_cast<const std::byte*>(p);
  return MapLanes([&](int i) { return WidenBf16(LoadAs<uint16_t>(bytes + i * 2)); });
}
MOESAIC_INLINE void StoreBf16(void* p, Vec16 a) {
  auto* bytes = static_cast<std::byte*>(p);
  for (int i = 0; i < 16; ++i) StoreAs(bytes + i * 2, RoundBf16(a.v[i]));
}
MOESAIC_INLINE Vec16 LoadF16(const void* p) {
  const auto* bytes = static_cast<const std::byte*>(p);
  return MapLanes([&](int i) { return F16ToF32(LoadAs<uint16_t>(bytes + i * 2)); });
}
MOESAIC_INLINE void StoreF16(void* p, Vec16 a) {
  auto* bytes = static_cast<std::byte*>(p);
  for (int i = 0; i < 16; ++i) StoreAs(bytes + i * 2, RoundF16(a.v[i]));
}

// 16 consecutive whole numbers.
MOESAIC_INLINE Vec16 LoadI16(const int16_t* p) {
  return MapLanes([&](int i) { return static_cast<float>(p[i]); });
}
// Rounds to nearest even and saturates; |a| is below 2^31.
MOESAIC_INLINE void StoreI16(int16_t* p, Vec16 a) {
  for (int i = 0; i < 16; ++i) {
    const float whole = __builtin_rintf(a.v[i]);
    p[i] = static_cast<int16_t>(MinOf(MaxOf(whole, -32768.0f), 32767.0f));
  }
}
MOESAIC_INLINE Vec16 LoadI8(const void* p) {
  const auto* bytes = static_cast<const std::byte*>(p);
  return MapLanes([&](int i) { return static_cast<float>(LoadAs<int8_t>(bytes + i)); });
}
// Rounds 32 numbers below 127.5 in magnitude to nearest even; returns their sum.
MOESAIC_INLINE int32_t StoreI8(int8_t* p, Vec16 a, Vec16 b) {
  int32_t sum = 0;
  for (int i = 0; i < 32; ++i) {
    p[i] = static_cast<int8_t>(__builtin_rintf(i < 16 ? a.v[i] : b.v[i - 16]));
    sum += p[i];
  }
  return sum;
}
// e of a = m 2^e with m in [1, 2); a is normal and positive.
MOESAIC_INLINE Vec16 Exponent(Vec16 a) {
  return MapLanes(
      [&](int i) { return static_cast<float>(static_cast<int32_t>(BitsOf(a.v[i]) >> 23) - 127); });
}

// dst[j][i] = row i, element j: 16 rows of 16 dwords, `stride_bytes` apart.
MOESAIC_INLINE void Transpose16(const std::byte* src, int64_t stride_bytes, std::byte* dst) {
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 16; ++j) {
      StoreAs(dst + (j * 16 + i) * 4, LoadAs<uint32_t>(src + i * stride_bytes + j * 4));
    }
  }
}
MOESAIC_INLINE void TransposeStream16(const std::byte* src, int64_t stride_bytes, std::byte* dst) {
  Transpose16(src, stride_bytes, dst);
}

// Fixed trees over the 16 lanes: 8 apart, 4 apart, 2, 1.
MOESAIC_INLINE float SumLanes(Vec16 a) {
  for (int step = 8; step >= 1; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] += a.v[i + step];
  }
  return a.v[0];
}
MOESAIC_INLINE float MaxLanes(Vec16 a) {
  for (int step = 8; step >= 1; step /= 2) {
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  }
  return a.v[0];
}

// Register tiles (matmul.h, attention.h).
// A line of mxfp4 or w4a16 weights: eight codes of 4 bits for each lane.
struct CodeLine {
  uint32_t v[16];
};
MOESAIC_INLINE CodeLine LoadCodes(const std::byte* line) { return LoadAs<CodeLine>(line); }
// The values of code kCode of each lane, without the exponent.
template <int kCode>
MOESAIC_INLINE Vec16 E2M1(CodeLine codes) {
  constexpr float kValues[] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  return MapLanes([&](int i) { return kValues[codes.v[i] >> (4 * kCode) & 15]; });
}
// The values of code kCode of each lane as signed numbers, -8 to 7.
template <int kCode>
MOESAIC_INLINE Vec16 SignedNibbles(CodeLine codes) {
  return MapLanes([&](int i) {
    const auto code = static_cast<int32_t>(codes.v[i] >> (4 * kCode) & 15);
    return static_cast<float>((code ^ 8) - 8);
  });
}
// 2^(byte - 127) of 16 bytes, 255 being infinite; 2^-127 is a denormal.
MOESAIC_INLINE Vec16 E8M0(const std::byte* bytes) {
  return MapLanes([&](int i) {
    const auto exponent = LoadAs<uint8_t>(bytes + i);
    return FloatOf(exponent == 0 ? 0x00400000u : uint32_t{exponent} << 23);
  });
}

// 16 pairs of bf16, as a line of bf16 weights has them.
struct PairLine {
  uint32_t v[16];
};
MOESAIC_INLINE Vec16 EvenOf(PairLine a) {
  return MapLanes([&](int i) { return FloatOf(a.v[i] << 16); });
}
MOESAIC_INLINE Vec16 OddOf(PairLine a) {
  return MapLanes([&](int i) { return FloatOf(a.v[i] & 0xffff0000u); });
}
MOESAIC_INLINE void StoreLine(std::byte* line, PairLine a) { StoreAs(line, a); }
// A line of fp8 weights: the values of its low and of its high bytes.
MOESAIC_INLINE void DecodeFp8(const std::byte* line, PairLine& low, PairLine& high) {
  for (int i = 0; i < 16; ++i) {
    const auto codes = LoadAs<uint32_t>(line + i * 4);
    low.v[i] = Bf16OfFp8(codes & 255) | Bf16OfFp8(codes >> 16 & 255) << 16;
    high.v[i] = Bf16OfFp8(codes >> 8 & 255) | Bf16OfFp8(codes >> 24) << 16;
  }
}
constexpr int kFp8DirectRows = 2;
constexpr int Fp8TilePanels(int) { return 1; }

constexpr int kFourBitTileRows = 2;
constexpr int FourBitTilePanels(int) { return 1; }

// Panels of state that the delta rule takes at once: as many sums as hide a multiply-add's latency.
constexpr int kDeltaPanels = 1;

constexpr int kMaxTileRows = 4;
constexpr int TilePanels(int) { return 1; }
constexpr int kMaxQueries = 4;
constexpr int kMaxExactQueries = 4;
constexpr int ScoreBlocksFor(int) { return 1; }
constexpr int ValueVectorsFor(int) { return 1; }

}  // namespace
}  // namespace moesaic
