// Integer activations and weights from floats. Included after Vec16 and math.h.
//
// Lanes are the outputs of a panel, so that an input of a group of weights is a vector and nothing
// is reduced across lanes. Every operation is an IEEE one or an exact integer one: all instruction
// sets give the same bytes.
#pragma once

#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

constexpr float kNan = __builtin_nanf("");

// One group: x[0, count), count at most kQuantGroup, to values[0, kQuantGroup).
MOESAIC_INLINE void QuantizeActivations(const float* x, int64_t count, int8_t* values,
                                        ActivationScale* out) {
  Vec16 group[kGroupPanels];
  Vec16 magnitudes = Zero();
  for (int64_t i = 0; i < kGroupPanels; ++i) {
    const int64_t rest = count - i * kLanes;
    group[i] = rest >= kLanes ? Load(x + i * kLanes)
               : rest > 0     ? LoadFirst(x + i * kLanes, rest)
                              : Zero();
    magnitudes = MaxMagnitudes(group[i], magnitudes);
  }
  const float max = MaxMagnitude(magnitudes, Zero());
  if (max >= 0x1p-119f && max < kInfinity) {
    const Vec16 inverse = Set(127.0f / max);
    int32_t sum = 0;
    for (int64_t i = 0; i < kGroupPanels; i += 2) {
      sum += StoreI8(values + i * kLanes, Mul(group[i], inverse), Mul(group[i + 1], inverse));
    }
    *out = {.scale = max / 127.0f, .correction = -128 * sum};
  } else {  // below that 127 / max would be infinite
    __builtin_memset(values, 0, kQuantGroup);
    *out = {.scale = max < kInfinity ? 0.0f : kNan, .correction = 0};
  }
}

// The sums of kInt8Sums of a group of 128.
MOESAIC_INLINE void SumGroup(std::byte* row, int64_t k, int64_t group) {
  const auto* values = reinterpret_cast<const int8_t*>(row) + group * kQuantGroup;
  auto* of_32 = reinterpret_cast<int32_t*>(row + GroupSumsOffset(k, 32)) + group * kQuantGroup / 32;
  auto* of_16 = reinterpret_cast<int32_t*>(row + GroupSumsOffset(k, 16)) + group * kQuantGroup / 16;
  for (int64_t i = 0; i < kQuantGroup / 32; ++i, values += 32) {
    const auto first = -128 * static_cast<int32_t>(SumLanes(LoadI8(values)));
    const auto second = -128 * static_cast<int32_t>(SumLanes(LoadI8(values + 16)));
    of_16[2 * i] = first;
    of_16[2 * i + 1] = second;
    of_32[i] = first + second;
  }
}

inline void QuantizeRow(const float* from, int64_t k, std::byte* to) {
  auto* values = reinterpret_cast<int8_t*>(to);
  auto* scales = reinterpret_cast<ActivationScale*>(to + ActivationScalesOffset(k));
  for (int64_t i = 0; i < k; i += kQuantGroup, ++scales) {
    QuantizeActivations(from + i, MinOf(k - i, kQuantGroup), values + i, scales);
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

// Weights as whole numbers from kLow to kHigh, plus kOffset, in a float's low bits; `inverse` is
// 1 / scale.
template <int kLow, int kHigh, int kOffset>
MOESAIC_INLINE Vec16 Level(const float* weights, Vec16 inverse) {
  constexpr float kZero = kMagic + static_cast<float>(kOffset);
  const Vec16 level = Fma(Load(weights), inverse, Set(kZero));
  return Min(Max(level, Set(kZero + kLow)), Set(kZero + kHigh));
}

// weights: [32 * subgroups][16]. Scale max |w| / 127.
inline void QuantizeInt8(const float* weights, int64_t subgroups, std::byte* lines,
                         std::byte* scales) {
  const int64_t inputs = subgroups * kQuantSubgroup;
  Vec16 max = Zero();
  for (int64_t i = 0; i < inputs; ++i) max = MaxMagnitudes(Load(weights + i * kLanes), max);
  const Vec16 inverse = InverseOf(StoreScales(Div(max, Set(127.0f)), max, scales));
  for (int64_t line = 0; line < inputs / 4; ++line) {
    const auto level = [&](int64_t i) {
      return Level<-127, 127, 128>(weights + (4 * line + i) * kLanes, inverse);
    };
    Store(lines + line * kLineBytes, JoinBytes(level(0), level(1), level(2), level(3)));
  }
}

// Where the weight of the largest magnitude is rounded to, -8 being the level farthest from zero.
// -8 alone is the rule of Q4_0; on normal weights the best of these four has 10% less squared
// error, and 1% more than the best of a hundred.
constexpr float kInt4Extremes[] = {-7.0f, -7.5f, -8.0f, -8.5f};
// What the largest scale of a group's subgroups is as a multiple of the group's; the one of least
// squared error is taken. On normal weights the error is 9% below that of Q4_0. A power of two
// keeps weights that are on a grid of 4 bits.
constexpr float kInt4Multiples[] = {15.0f, 14.0f, 13.0f, 8.0f};
constexpr float kInt4MaxMultiplier = 15.0f;

// weights: [32][16]. The scale of least squared error among those that belong to the levels of one
// extreme: for levels q from -8 to 7 it is w.q / q.q, and (w.q)^2 / q.q is what it explains of w.w.
// Negative where 8 is needed rather than -8. Raises `max` to the largest magnitude.
MOESAIC_INLINE Vec16 Int4Scale(const float* weights, Vec16* max) {
  Vec16 own_max = Zero();
  Vec16 largest = Zero();
  for (int i = 0; i < kQuantSubgroup; ++i) {
    const Vec16 w = Load(weights + i * kLanes);
    own_max = MaxMagnitudes(w, own_max);
    largest = Max(w, largest);
  }
  *max = MaxMagnitudes(own_max, *max);
  // 1 / the weight of largest magnitude.
  const Vec16 inverse = InverseOf(SelectLess(largest, own_max, Sub(Zero(), own_max), own_max));
  Vec16 best = Set(-1.0f);
  Vec16 scale = Zero();
  for (const float extreme : kInt4Extremes) {
    const Vec16 factor = Mul(inverse, Set(extreme));
    Vec16 wq = Zero();
    Vec16 qq = Zero();
    for (int i = 0; i < kQuantSubgroup; ++i) {
      const Vec16 q = Sub(Level<-8, 7, 0>(weights + i * kLanes, factor), Set(kMagic));
      wq = Fma(Load(weights + i * kLanes), q, wq);
      qq = Fma(q, q, qq);
    }
    const Vec16 candidate = Div(wq, qq);
    const Vec16 explained = Mul(wq, candidate);
    scale = SelectLess(best, explained, candidate, scale);
    best = SelectLess(best, explained, explained, best);
  }
  return scale;
}

// A subgroup's multiplier of the group's scale, which 1 / scale stands for.
MOESAIC_INLINE Vec16 Int4Multiplier(Vec16 subgroup_scale, Vec16 inverse) {
  const Vec16 rounded = Fma(subgroup_scale, inverse, Set(kMagic));
  return Sub(Min(Max(rounded, Set(kMagic + 1.0f)), Set(kMagic + kInt4MaxMultiplier)), Set(kMagic));
}

// Weights as halves of bytes in a float's low bits; zero is where weight 0 is, 8 or 7.
MOESAIC_INLINE Vec16 Half(const float* weights, Vec16 inverse, Vec16 magic_zero) {
  const Vec16 half = Fma(Load(weights), inverse, magic_zero);
  return Min(Max(half, Set(kMagic)), Set(kMagic + 15.0f));
}

// weights: [32 * subgroups][16]. First the best scale of each subgroup by itself, then a scale of
// the group, multiples of which they are rounded to, then halves for what has come out.
inline void QuantizeInt4(const float* weights, int64_t subgroups, std::byte* lines,
                         std::byte* scales) {
  Vec16 max = Zero();
  Vec16 magnitudes[kSubgroups];  // of the subgroups' scales
  Vec16 magic_zeros[kSubgroups];
  Vec16 largest = Zero();
  for (int64_t s = 0; s < subgroups; ++s) {
    const Vec16 scale = Int4Scale(weights + s * kQuantSubgroup * kLanes, &max);
    magnitudes[s] = MaxMagnitudes(scale, Zero());
    magic_zeros[s] = SelectLess(scale, Zero(), Set(kMagic + 7.0f), Set(kMagic + 8.0f));
    largest = Max(magnitudes[s], largest);
  }
  Vec16 least_error = Set(kInfinity);
  Vec16 scale = Div(largest, Set(kInt4Multiples[0]));
  for (const float multiple : kInt4Multiples) {
    StoreF16(scales, Div(largest, Set(multiple)));
    const Vec16 candidate = LoadF16(scales);
    const Vec16 inverse = InverseOf(candidate);
    Vec16 error = Zero();
    for (int64_t s = 0; s < subgroups; ++s) {
      const float* from = weights + s * kQuantSubgroup * kLanes;
      const Vec16 step = Mul(candidate, Int4Multiplier(magnitudes[s], inverse));
      const Vec16 inverse_step = InverseOf(step);
      for (int64_t i = 0; i < kQuantSubgroup; ++i) {
        const Vec16 level =
            Sub(Half(from + i * kLanes, inverse_step, magic_zeros[s]), magic_zeros[s]);
        const Vec16 off = Sub(Load(from + i * kLanes), Mul(level, step));
        error = Fma(off, off, error);
      }
    }
    scale = SelectLess(error, least_error, candidate, scale);
    least_error = Min(error, least_error);
  }
  const Vec16 stored = StoreScales(scale, max, scales);
  const Vec16 inverse = InverseOf(stored);
  Vec16 multipliers[kSubgroups];
  for (int64_t s = 0; s < kSubgroups; ++s) {
    multipliers[s] = Set(kMagic);
    if (s >= subgroups) continue;
    const Vec16 multiplier = Int4Multiplier(magnitudes[s], inverse);
    // The highest bit is set where halves are around 7.
    multipliers[s] = Add(multiplier, SelectLess(magic_zeros[s], Set(kMagic + 8.0f),
                                                Set(kMagic + 128.0f), Set(kMagic)));
    const Vec16 inverse_step = InverseOf(Mul(stored, multiplier));
    const float* from = weights + s * kQuantSubgroup * kLanes;
    std::byte* to = lines + (1 + s * SubgroupLines(WeightType::kInt4)) * kLineBytes;
    for (int64_t line = 0; line < SubgroupLines(WeightType::kInt4); ++line) {
      const auto half = [&](int64_t i) {
        return Half(from + (8 * line + i) * kLanes, inverse_step, magic_zeros[s]);
      };
      const Vec16 low = JoinBytes(half(0), half(1), half(2), half(3));
      const Vec16 high = JoinBytes(half(4), half(5), half(6), half(7));
      Store(to + line * kLineBytes, AddShifted<4>(low, high));
    }
  }
  Store(lines, JoinBytes(multipliers[0], multipliers[1], multipliers[2], multipliers[3]));
}

}  // namespace
}  // namespace moesaic
