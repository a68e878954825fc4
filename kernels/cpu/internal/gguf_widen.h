// Panels of GGUF's blocks (gguf_layout.h) as whole numbers in bytes and f32 scales. Included after
// Vec16 and ByteLine (lines_*.h).
//
// A weight is scale * (byte - zero) + addend, with one scale and addend for 16 or 32 inputs of an
// output: f32 products in ggml's order, so that the values have ggml's bits.
#pragma once

#include "kernels/cpu/internal/gguf_layout.h"
#include "kernels/cpu/internal/gguf_values.h"

namespace moesaic {
namespace {

constexpr int64_t kGgufStep = 256;  // inputs that are widened at once
constexpr int64_t kGgufSubgroup = 32;

struct GgufKind {
  int64_t group = 0;     // inputs of a scale
  bool addends = false;  // and then bytes are weights as they are; else they are 128 more
  bool operator==(const GgufKind&) const = default;
};
constexpr GgufKind GgufKindOf(uint32_t id) {
  return {id == kQ2K || id == kQ3K || id == kQ6K ? 16 : 32,
          id == kQ4_1 || id == kQ5_1 || id == kQ2K || id == kQ4K || id == kQ5K};
}
constexpr int kGgufZero = 128;

// Up to kGgufStep inputs of a panel.
struct WidePanel {
  // [inputs / 4][16][4]; `memory`, or the panel itself.
  const std::byte* lines;
  alignas(64) std::byte memory[kGgufStep / 4 * kLineBytes];
  alignas(64) float scales[kGgufStep / 16][kLanes];
  alignas(64) float addends[kGgufStep / 16][kLanes];
};

// A panel, and what its addends are multiplied with.
struct GgufPanel {
  const std::byte* data;
  int64_t blocks;
  float addend_factor;
};

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
#define MOESAIC_BODY __attribute__((always_inline))

// --- whole numbers

// Values of a table as bytes that are kGgufZero more.
struct LevelTable {
  uint8_t bytes[16];
};
constexpr LevelTable LevelsOf(const float (&values)[16]) {
  LevelTable table = {};
  for (int i = 0; i < 16; ++i) table.bytes[i] = static_cast<uint8_t>(values[i] + kGgufZero);
  return table;
}
constexpr LevelTable kIq4Levels = LevelsOf(kIq4Values);
constexpr LevelTable kE2M1Levels = LevelsOf(kE2M1Doubled);

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

// Inputs 4 kLine to 4 kLine + 3 of a block with this body.
template <uint32_t kId, int kLine>
MOESAIC_INLINE ByteLine LevelLine(const std::byte* body) {
  constexpr int kPart = kLine / 8;  // of 32 inputs
  constexpr int l = kLine % 8;
  const auto line = [body](int at) MOESAIC_BODY { return LoadLine(body + at * kLineBytes); };
  if constexpr (kId == kQ8_0) {
    return line(kLine);
  } else if constexpr (kId == kQ4K) {
    return BitsAt<4 * (kPart % 2), 4, 0>(line(3 + 8 * (kPart / 2) + l));
  } else if constexpr (kId == kQ5K) {
    return Or(BitsAt<4 * (kPart % 2), 4, 0>(line(11 + 8 * (kPart / 2) + l)),
              BitsAt<kPart, 1, 4>(line(3 + l)));
  } else if constexpr (kId == kQ6K) {
    constexpr int kHalf = kPart / 4;
    constexpr int kQuarter = kPart % 4;
    const ByteLine low = line(16 * kHalf + 8 * (kQuarter % 2) + l);
    const ByteLine high = line(32 + 8 * kHalf + l);
    return AddToBytes(Or(BitsAt<4 * (kQuarter / 2), 4, 0>(low), BitsAt<2 * kQuarter, 2, 4>(high)),
                      kGgufZero - 32);
  } else if constexpr (kId == kQ2K) {
    return BitsAt<2 * (kPart % 4), 2, 0>(line(4 + 8 * (kPart / 4) + l));
  } else if constexpr (kId == kQ3K) {
    const ByteLine low = BitsAt<2 * (kPart % 4), 2, 0>(line(8 + 8 * (kPart / 4) + l));
    return AddToBytes(Or(low, BitsAt<kPart, 1, 2>(line(l))), kGgufZero - 4);
  } else if constexpr (kId == kQ5_0 || kId == kQ5_1) {
    const ByteLine low = BitsAt<4 * (kLine / 4), 4, 0>(line(1 + kLine % 4));
    const ByteLine level = Or(low, BitsAt<kLine, 1, 4>(line(0)));
    return kId == kQ5_0 ? AddToBytes(level, kGgufZero - 16) : level;
  } else if constexpr (kId == kIq4Xs) {
    return Look(kIq4Levels.bytes, BitsAt<4 * (l / 4), 4, 0>(line(1 + 4 * kPart + l % 4)));
  } else {
    const ByteLine low = BitsAt<4 * (kLine / 4), 4, 0>(line(kLine % 4));
    if constexpr (kId == kQ4_0) return AddToBytes(low, kGgufZero - 8);
    if constexpr (kId == kIq4Nl) return Look(kIq4Levels.bytes, low);
    if constexpr (kId == kMxfp4Blocks) return Look(kE2M1Levels.bytes, low);
    return low;
  }
}

// --- scales and addends

// 2^(e - 128), where 255 is like all others.
MOESAIC_INLINE Vec16 Mxfp4Scale(const std::byte* exponents) {
  return Min(Mul(E8M0(exponents), Set(0.5f)), Set(0x1p127f));
}

// The scales of 6 bits of Q4_K and Q5_K, and with them the addends.
inline void ScalesOf6Bits(const std::byte* head, const std::byte* body, float addend_factor,
                          WidePanel& out) {
  const Vec16 scale = LoadF16(head);
  const Vec16 minimum = LoadF16(head + 2 * kLanes);
  const Vec16 factor = Set(-addend_factor);
  const ByteLine a = LoadLine(body);
  const ByteLine b = LoadLine(body + kLineBytes);
  const ByteLine c = LoadLine(body + 2 * kLineBytes);
  const ByteLine scales[2] = {Bits<0, 63>(a), Or(Bits<0, 15>(c), Bits<2, 48>(a))};
  const ByteLine minimums[2] = {Bits<0, 63>(b), Or(Bits<4, 15>(c), Bits<2, 48>(b))};
  ForEach<8>([&](auto of) MOESAIC_BODY {
    constexpr int j = decltype(of)::value;
    Store(out.scales[j], Mul(scale, LaneBits<8 * (j % 4), 255>(scales[j / 4])));
    Store(out.addends[j], Mul(Mul(minimum, LaneBits<8 * (j % 4), 255>(minimums[j / 4])), factor));
  });
}

inline void ScalesOfQ6K(const std::byte* head, const std::byte* body, WidePanel& out) {
  const Vec16 scale = LoadF16(head);
  ForEach<16>([&](auto of) MOESAIC_BODY {
    constexpr int g = decltype(of)::value;
    const ByteLine scales = LoadLine(body + (48 + g / 4) * kLineBytes);
    Store(out.scales[g], Mul(scale, SignedByteOf<g % 4>(scales)));
  });
}

inline void ScalesOfQ2K(const std::byte* head, const std::byte* body, float addend_factor,
                        WidePanel& out) {
  const Vec16 scale = LoadF16(head);
  const Vec16 minimum = LoadF16(head + 2 * kLanes);
  const Vec16 factor = Set(-addend_factor);
  ForEach<16>([&](auto of) MOESAIC_BODY {
    constexpr int g = decltype(of)::value;
    const ByteLine both = LoadLine(body + g / 4 * kLineBytes);
    Store(out.scales[g], Mul(scale, LaneBits<8 * (g % 4), 15>(both)));
    Store(out.addends[g], Mul(Mul(minimum, LaneBits<8 * (g % 4) + 4, 15>(both)), factor));
  });
}

inline void ScalesOfQ3K(const std::byte* head, const std::byte* body, WidePanel& out) {
  const Vec16 scale = LoadF16(head);
  const ByteLine a = LoadLine(body + 24 * kLineBytes);
  const ByteLine b = LoadLine(body + 25 * kLineBytes);
  const ByteLine c = LoadLine(body + 26 * kLineBytes);
  const ByteLine scales[4] = {
      Or(Bits<0, 15>(a), BitsAt<0, 2, 4>(c)), Or(Bits<0, 15>(b), BitsAt<2, 2, 4>(c)),
      Or(Bits<4, 15>(a), BitsAt<4, 2, 4>(c)), Or(Bits<4, 15>(b), BitsAt<6, 2, 4>(c))};
  ForEach<16>([&](auto of) MOESAIC_BODY {
    constexpr int g = decltype(of)::value;
    const Vec16 level = Sub(LaneBits<8 * (g % 4), 255>(scales[g / 4]), Set(32.0f));
    Store(out.scales[g], Mul(scale, level));
  });
}

inline void ScalesOfIq4Xs(const std::byte* head, const std::byte* body, WidePanel& out) {
  const Vec16 scale = LoadF16(head);
  const ByteLine low = LoadLine(body);
  // Two bits of each of the eight scales.
  alignas(64) uint32_t high_of_lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    high_of_lanes[lane] = LoadAs<uint16_t>(head + 2 * (kLanes + lane));
  }
  const ByteLine high = LoadLine(high_of_lanes);
  ForEach<8>([&](auto of) MOESAIC_BODY {
    constexpr int j = decltype(of)::value;
    const Vec16 upper = Mul(LaneBits<2 * j, 3>(high), Set(16.0f));
    const Vec16 level = Sub(Add(LaneBits<4 * j, 15>(low), upper), Set(32.0f));
    Store(out.scales[j], Mul(scale, level));
  });
}

// --- inputs [first, first + inputs), at most kGgufStep and whole blocks, of a panel; first is a
// multiple of kGgufStep

template <uint32_t kId>
constexpr int64_t kGgufBlockInputs =
    kId == kQ2K || kId == kQ3K || kId == kQ4K || kId == kQ5K || kId == kQ6K || kId == kIq4Xs
        ? kGgufStep
        : kGgufSubgroup;

template <uint32_t kId>
MOESAIC_INLINE const std::byte* GgufBodyOf(const GgufPanel& panel, int64_t first) {
  constexpr GgufLayout kLayout = *GgufLayoutOf(kId);
  return panel.data + GgufBodyOffset(kLayout, panel.blocks) +
         first / kGgufBlockInputs<kId> * kLayout.body_lines * kLineBytes;
}

template <uint32_t kId>
inline void ScalesOfGguf(const GgufPanel& panel, int64_t first, int64_t inputs, WidePanel& out) {
  constexpr GgufLayout kLayout = *GgufLayoutOf(kId);
  const std::byte* head = panel.data + first / kGgufBlockInputs<kId> * kLayout.head_bytes * kLanes;
  [[maybe_unused]] const std::byte* const body = GgufBodyOf<kId>(panel, first);
  if constexpr (kId == kQ4K || kId == kQ5K) {
    ScalesOf6Bits(head, body, panel.addend_factor, out);
  } else if constexpr (kId == kQ6K) {
    ScalesOfQ6K(head, body, out);
  } else if constexpr (kId == kQ2K) {
    ScalesOfQ2K(head, body, panel.addend_factor, out);
  } else if constexpr (kId == kQ3K) {
    ScalesOfQ3K(head, body, out);
  } else if constexpr (kId == kIq4Xs) {
    ScalesOfIq4Xs(head, body, out);
  } else {
    for (int64_t i = 0; i < inputs / kGgufSubgroup; ++i) {
      Store(out.scales[i], kId == kMxfp4Blocks ? Mxfp4Scale(head) : LoadF16(head));
      if constexpr (kLayout.head_bytes == 4) {
        Store(out.addends[i], Mul(LoadF16(head + 2 * kLanes), Set(panel.addend_factor)));
      }
      head += kLayout.head_bytes * kLanes;
    }
  }
}

template <uint32_t kId>
inline void WidenGgufOf(const GgufPanel& panel, int64_t first, int64_t inputs, WidePanel& out) {
  constexpr auto kLines = static_cast<int>(kGgufBlockInputs<kId> / 4);
  ScalesOfGguf<kId>(panel, first, inputs, out);
  const std::byte* body = GgufBodyOf<kId>(panel, first);
  out.lines = kId == kQ8_0 ? body : out.memory;
  if constexpr (kId == kQ8_0) return;
  std::byte* __restrict to = out.memory;
  for (int64_t i = 0; i < inputs; i += kGgufBlockInputs<kId>) {
    ForEach<kLines>([&](auto line) MOESAIC_BODY {
      constexpr int kLine = decltype(line)::value;
      StoreLine(to + kLine * kLineBytes, LevelLine<kId, kLine>(body));
    });
    to += kLines * kLineBytes;
    body += GgufLayoutOf(kId)->body_lines * kLineBytes;
  }
}

// The bytes of a panel that are asked for while a step is at work: as many as the step reads, some
// way behind these, or, at the end of the panel, of the one that follows `next_bytes` further on.
struct GgufAhead {
  const std::byte* from;
  int64_t lines;
};
MOESAIC_INLINE GgufAhead AheadOfStep(const std::byte* panel, const GgufForm& form, int64_t k,
                                     int64_t first, int64_t inputs, int64_t next_bytes) {
  constexpr int64_t kDistance = 48 * kLineBytes;
  const GgufLayout* const layout = GgufLayoutOf(form.id);
  const int64_t blocks = k / form.values;
  const int64_t bytes = RoundUp(blocks * form.bytes * kLanes, kLineBytes);
  // Heads are read from another place than bodies.
  const int64_t heads = layout != nullptr ? GgufBodyOffset(*layout, blocks) : 0;
  int64_t at = first / form.values * form.bytes * kLanes + heads + kDistance;
  if (at >= bytes) at += next_bytes - bytes;
  return {panel + at, CeilDiv(inputs / form.values * form.bytes * kLanes, kLineBytes)};
}

// Calls body(Index<id>) with the type.
template <class F>
MOESAIC_INLINE void WithGgufType(uint32_t id, const F& body) {
  switch (id) {
    case kQ4_0:
      return body(Index<kQ4_0>{});
    case kQ4_1:
      return body(Index<kQ4_1>{});
    case kQ5_0:
      return body(Index<kQ5_0>{});
    case kQ5_1:
      return body(Index<kQ5_1>{});
    case kQ8_0:
      return body(Index<kQ8_0>{});
    case kQ2K:
      return body(Index<kQ2K>{});
    case kQ3K:
      return body(Index<kQ3K>{});
    case kQ4K:
      return body(Index<kQ4K>{});
    case kQ5K:
      return body(Index<kQ5K>{});
    case kQ6K:
      return body(Index<kQ6K>{});
    case kIq4Nl:
      return body(Index<kIq4Nl>{});
    case kIq4Xs:
      return body(Index<kIq4Xs>{});
    case kMxfp4Blocks:
      return body(Index<kMxfp4Blocks>{});
    default:
      __builtin_unreachable();
  }
}

inline void WidenGguf(uint32_t id, const GgufPanel& panel, int64_t first, int64_t inputs,
                      WidePanel& out) {
  WithGgufType(id,
               [&](auto type) { WidenGgufOf<decltype(type)::value>(panel, first, inputs, out); });
}

}  // namespace
}  // namespace moesaic
