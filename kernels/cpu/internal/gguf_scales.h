// The scales of GGUF's blocks, and the addends of those that have them, from the heads and bodies
// of panels (gguf_layout.h), 16 outputs at once. Included after Vec16 and ByteLine (lines_*.h).
//
// A weight is scale * (byte - zero) + addend, with one scale and addend for 16 or 32 inputs of an
// output. They are f32 products as ggml has them, and exact, so that their order does not matter:
// an f16 number times one of at most 8 bits, times a power of two.
#pragma once

#include "kernels/cpu/internal/gguf_layout.h"
#include "kernels/cpu/internal/gguf_values.h"

namespace moesaic {
namespace {

template <int kValue>
struct Index {
  static constexpr int value = kValue;
};
template <int kCount, int kFirst = 0, class F>
MOESAIC_INLINE void ForEach(const F& body) {
  if constexpr (kFirst < kCount) {
    body(Index<kFirst>{});
    ForEach<kCount, kFirst + 1>(body);
  }
}

constexpr int64_t kGgufStep = 256;  // inputs of the larger blocks
constexpr int64_t kGgufSubgroup = 32;

template <uint32_t kId>
constexpr int64_t kGgufBlockInputs =
    kId == kQ2K || kId == kQ3K || kId == kQ4K || kId == kQ5K || kId == kQ6K || kId == kIq4Xs
        ? kGgufStep
        : kGgufSubgroup;

struct GgufKind {
  int64_t group = 0;     // inputs of a scale
  bool addends = false;  // and then bytes are weights as they are; else they are 128 more
  bool operator==(const GgufKind&) const = default;
};
constexpr GgufKind GgufKindOf(uint32_t id) {
  return {id == kQ2K || id == kQ3K || id == kQ6K ? 16 : 32,
          id == kQ4_1 || id == kQ5_1 || id == kQ2K || id == kQ4K || id == kQ5K};
}

// Bits [kFrom, kFrom + kCount) of each byte, moved to begin at kTo.
template <int kFrom, int kCount, int kTo>
MOESAIC_INLINE ByteLine BitsAt(ByteLine a) {
  constexpr int kMask = ((1 << kCount) - 1) << kTo;
  if constexpr (kFrom < kTo) {
    return BitsUp<kTo - kFrom, kMask>(a);
  } else {
    return Bits<kFrom - kTo, kMask>(a);
  }
}

// 2^(e - 128), where 255 is like all others.
MOESAIC_INLINE Vec16 Mxfp4Scale(const std::byte* exponents) {
  return Min(Mul(E8M0(exponents), Set(0.5f)), Set(0x1p127f));
}

// Of the blocks from one on, whose head and body are given: of one of 256 inputs, or of any number
// of 32. Addends are multiplied with a factor.
template <uint32_t kId>
class GgufScales {
 public:
  GgufScales() = default;
  MOESAIC_INLINE GgufScales(const std::byte* head, const std::byte*, float addend_factor)
      : head_(head), factor_(addend_factor) {}
  template <int kGroup>
  MOESAIC_INLINE Vec16 Scale() const {
    const std::byte* const at = head_ + kGroup * kHeadBytes;
    return kId == kMxfp4Blocks ? Mxfp4Scale(at) : LoadF16(at);
  }
  template <int kGroup>
  MOESAIC_INLINE Vec16 Addend() const {
    return Mul(LoadF16(head_ + kGroup * kHeadBytes + 2 * kLanes), Set(factor_));
  }

 private:
  static constexpr int64_t kHeadBytes = GgufLayoutOf(kId)->head_bytes * kLanes;
  const std::byte* head_ = nullptr;
  float factor_ = 0.0f;
};

// Of 6 bits, and with them the addends.
class GgufScalesOf6Bits {
 public:
  GgufScalesOf6Bits() = default;
  MOESAIC_INLINE GgufScalesOf6Bits(const std::byte* head, const std::byte* body,
                                   float addend_factor)
      : scale_(LoadF16(head)), minimum_(Mul(LoadF16(head + 2 * kLanes), Set(-addend_factor))) {
    const ByteLine a = LoadLine(body);
    const ByteLine b = LoadLine(body + kLineBytes);
    const ByteLine c = LoadLine(body + 2 * kLineBytes);
    scales_[0] = Bits<0, 63>(a);
    scales_[1] = Or(Bits<0, 15>(c), Bits<2, 48>(a));
    minimums_[0] = Bits<0, 63>(b);
    minimums_[1] = Or(Bits<4, 15>(c), Bits<2, 48>(b));
  }
  template <int kGroup>
  MOESAIC_INLINE Vec16 Scale() const {
    return Mul(scale_, LaneBits<8 * (kGroup % 4), 255>(scales_[kGroup / 4]));
  }
  template <int kGroup>
  MOESAIC_INLINE Vec16 Addend() const {
    return Mul(minimum_, LaneBits<8 * (kGroup % 4), 255>(minimums_[kGroup / 4]));
  }

 private:
  Vec16 scale_, minimum_;
  ByteLine scales_[2], minimums_[2];
};
template <>
class GgufScales<kQ4K> : public GgufScalesOf6Bits {
  using GgufScalesOf6Bits::GgufScalesOf6Bits;
};
template <>
class GgufScales<kQ5K> : public GgufScalesOf6Bits {
  using GgufScalesOf6Bits::GgufScalesOf6Bits;
};

template <>
class GgufScales<kQ6K> {
 public:
  GgufScales() = default;
  MOESAIC_INLINE GgufScales(const std::byte* head, const std::byte* body, float)
      : scale_(LoadF16(head)), levels_(body + 48 * kLineBytes) {}
  template <int kGroup>
  MOESAIC_INLINE Vec16 Scale() const {
    return Mul(scale_, SignedByteOf<kGroup % 4>(LoadLine(levels_ + kGroup / 4 * kLineBytes)));
  }

 private:
  Vec16 scale_;
  const std::byte* levels_ = nullptr;
};

template <>
class GgufScales<kQ2K> {
 public:
  GgufScales() = default;
  MOESAIC_INLINE GgufScales(const std::byte* head, const std::byte* body, float addend_factor)
      : scale_(LoadF16(head)),
        minimum_(Mul(LoadF16(head + 2 * kLanes), Set(-addend_factor))),
        levels_(body) {}
  template <int kGroup>
  MOESAIC_INLINE Vec16 Scale() const {
    return Mul(scale_, LaneBits<8 * (kGroup % 4), 15>(Levels<kGroup>()));
  }
  template <int kGroup>
  MOESAIC_INLINE Vec16 Addend() const {
    return Mul(minimum_, LaneBits<8 * (kGroup % 4) + 4, 15>(Levels<kGroup>()));
  }

 private:
  template <int kGroup>
  MOESAIC_INLINE ByteLine Levels() const {
    return LoadLine(levels_ + kGroup / 4 * kLineBytes);
  }
  Vec16 scale_, minimum_;
  const std::byte* levels_ = nullptr;
};

template <>
class GgufScales<kQ3K> {
 public:
  GgufScales() = default;
  MOESAIC_INLINE GgufScales(const std::byte* head, const std::byte* body, float)
      : scale_(LoadF16(head)) {
    const ByteLine a = LoadLine(body + 24 * kLineBytes);
    const ByteLine b = LoadLine(body + 25 * kLineBytes);
    const ByteLine c = LoadLine(body + 26 * kLineBytes);
    levels_[0] = Or(Bits<0, 15>(a), BitsAt<0, 2, 4>(c));
    levels_[1] = Or(Bits<0, 15>(b), BitsAt<2, 2, 4>(c));
    levels_[2] = Or(Bits<4, 15>(a), BitsAt<4, 2, 4>(c));
    levels_[3] = Or(Bits<4, 15>(b), BitsAt<6, 2, 4>(c));
  }
  template <int kGroup>
  MOESAIC_INLINE Vec16 Scale() const {
    const Vec16 level = LaneBits<8 * (kGroup % 4), 255>(levels_[kGroup / 4]);
    return Mul(scale_, Sub(level, Set(32.0f)));
  }

 private:
  Vec16 scale_;
  ByteLine levels_[4];
};

template <>
class GgufScales<kIq4Xs> {
 public:
  GgufScales() = default;
  MOESAIC_INLINE GgufScales(const std::byte* head, const std::byte* body, float)
      : scale_(LoadF16(head)), low_(LoadLine(body)) {
    // Two bits of each of the eight scales.
    alignas(64) uint32_t high_of_lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      high_of_lanes[lane] = LoadAs<uint16_t>(head + 2 * (kLanes + lane));
    }
    high_ = LoadLine(high_of_lanes);
  }
  template <int kGroup>
  MOESAIC_INLINE Vec16 Scale() const {
    const Vec16 upper = Mul(LaneBits<2 * kGroup, 3>(high_), Set(16.0f));
    const Vec16 level = Sub(Add(LaneBits<4 * kGroup, 15>(low_), upper), Set(32.0f));
    return Mul(scale_, level);
  }

 private:
  Vec16 scale_;
  ByteLine low_, high_;
};

}  // namespace
}  // namespace moesaic
