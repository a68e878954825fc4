// Integer activations and weights from floats. Included after Vec16 and math.h.
//
// Lanes are the outputs of a panel, so that a group of weights is 32 vectors and nothing is reduced
// across lanes. Every operation is an IEEE one or an exact integer one: all instruction sets give
// the same bytes.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

constexpr float kNan = __builtin_nanf("");

MOESAIC_INLINE void QuantizeActivations(Vec16 a, Vec16 b, ActivationGroup* out) {
  const float max = MaxMagnitude(a, b);
  if (max < 0x1p-119f) {  // 127 / max would be infinite
    *out = {};
  } else if (max < kInfinity) {
    const Vec16 inverse = Set(127.0f / max);
    out->scale = max / 127.0f;
    out->correction = -128 * StoreI8(out->values, Mul(a, inverse), Mul(b, inverse));
  } else {
    *out = {.scale = kNan, .correction = 0, .values = {}};
  }
}

inline void QuantizeRow(const float* from, int64_t k, std::byte* to) {
  auto* out = reinterpret_cast<ActivationGroup*>(to);
  int64_t i = 0;
  for (; i + kQuantGroup <= k; i += kQuantGroup, ++out) {
    QuantizeActivations(Load(from + i), Load(from + i + kLanes), out);
  }
  if (i < k) {
    const int64_t rest = k - i;
    QuantizeActivations(LoadFirst(from + i, MinOf(rest, kLanes)),
                        rest > kLanes ? LoadFirst(from + i + kLanes, rest - kLanes) : Zero(), out);
  }
}

// Adding 1.5 * 2^23 to a small number rounds it to an integer, which is then in the low bits.
constexpr float kMagic = 12582912.0f;
constexpr uint32_t kMagicBits = 0x4b400000;

// Bytes 0 to 3 of each lane from the low bytes of four integers below 256 plus kMagic.
MOESAIC_INLINE Vec16 JoinBytes(Vec16 a, Vec16 b, Vec16 c, Vec16 d) {
  const Vec16 sum = AddShifted<24>(AddShifted<16>(AddShifted<8>(a, b), c), d);
  // What is left of kMagic: shifted by 16 and more it is gone.
  return AddShifted<0>(sum, Set(FloatOf(0u - kMagicBits - (kMagicBits << 8))));
}

// 1 / scale, and 0 where the scale is 0 or NaN.
MOESAIC_INLINE Vec16 InverseOf(Vec16 scale) {
  const Vec16 inverse = Div(Set(1.0f), scale);
  return SelectLess(Zero(), scale, inverse, SelectLess(scale, Zero(), inverse, Zero()));
}

// Rounds the scales of 16 outputs to f16 as they are stored, NaN where a weight is no number.
MOESAIC_INLINE Vec16 StoreScales(Vec16 scale, Vec16 max, std::byte* to) {
  StoreF16(to, SelectLess(max, Set(kInfinity), scale, Set(kNan)));
  return LoadF16(to);
}

// Weights as unsigned bytes around kOffset, in a float's low bits; `inverse` is 1 / scale.
template <int kLow, int kHigh, int kOffset>
MOESAIC_INLINE Vec16 Level(const float* weights, Vec16 inverse) {
  constexpr float kZero = kMagic + static_cast<float>(kOffset);
  const Vec16 level = Fma(Load(weights), inverse, Set(kZero));
  return Min(Max(level, Set(kZero + kLow)), Set(kZero + kHigh));
}

// weights: [32][16]. Scale max |w| / 127.
MOESAIC_INLINE void QuantizeInt8(const float* weights, std::byte* lines, std::byte* scales) {
  Vec16 max = Zero();
  for (int i = 0; i < kQuantGroup; ++i) max = MaxMagnitudes(Load(weights + i * kLanes), max);
  const Vec16 inverse = InverseOf(StoreScales(Div(max, Set(127.0f)), max, scales));
  for (int line = 0; line < 8; ++line) {
    const auto level = [&](int i) {
      return Level<-127, 127, 128>(weights + (4 * line + i) * kLanes, inverse);
    };
    Store(lines + line * kLineBytes, JoinBytes(level(0), level(1), level(2), level(3)));
  }
}

// Where the weight of the largest magnitude is rounded to, -8 being the level farthest from zero.
// -8 alone is the rule of Q4_0; on normal weights the best of these four has 10% less squared
// error, and 1% more than the best of a hundred.
constexpr float kInt4Extremes[] = {-7.0f, -7.5f, -8.0f, -8.5f};

// weights: [32][16]. The scale of least squared error among those that belong to the levels of one
// extreme: for levels q it is w.q / q.q, and (w.q)^2 / q.q is what it explains of w.w.
MOESAIC_INLINE void QuantizeInt4(const float* weights, std::byte* lines, std::byte* scales) {
  Vec16 max = Zero();
  Vec16 largest = Zero();
  for (int i = 0; i < kQuantGroup; ++i) {
    const Vec16 w = Load(weights + i * kLanes);
    max = MaxMagnitudes(w, max);
    largest = Max(w, largest);
  }
  // 1 / the weight of largest magnitude.
  const Vec16 inverse = InverseOf(SelectLess(largest, max, Sub(Zero(), max), max));
  Vec16 best = Set(-1.0f);
  Vec16 scale = Zero();
  for (const float extreme : kInt4Extremes) {
    const Vec16 factor = Mul(inverse, Set(extreme));
    Vec16 wq = Zero();
    Vec16 qq = Zero();
    for (int i = 0; i < kQuantGroup; ++i) {
      const Vec16 q = Sub(Level<-8, 7, 0>(weights + i * kLanes, factor), Set(kMagic));
      wq = Fma(Load(weights + i * kLanes), q, wq);
      qq = Fma(q, q, qq);
    }
    const Vec16 candidate = Div(wq, qq);
    const Vec16 explained = Mul(wq, candidate);
    scale = SelectLess(best, explained, candidate, scale);
    best = SelectLess(best, explained, explained, best);
  }
  const Vec16 stored = InverseOf(StoreScales(scale, max, scales));
  for (int line = 0; line < 4; ++line) {
    const auto level = [&](int i) {
      return Level<-8, 7, 8>(weights + (8 * line + i) * kLanes, stored);
    };
    const Vec16 low = JoinBytes(level(0), level(1), level(2), level(3));
    const Vec16 high = JoinBytes(level(4), level(5), level(6), level(7));
    Store(lines + line * kLineBytes, AddShifted<4>(low, high));
  }
}

}  // namespace
}  // namespace moesaic
