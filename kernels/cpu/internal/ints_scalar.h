// Sixteen 32-bit sums of products of bytes, in plain C++: the reference for what each operation
// means. Included after vec_scalar.h.
#pragma once

#include "kernels/cpu/internal/lines_scalar.h"

namespace moesaic {
namespace {

struct Ints16 {
  int32_t v[16];
};
// A line of weights as DotAdd wants it, and four activations for all lanes.
struct WeightBytes {
  uint8_t v[64];
};
struct FourBytes {
  int8_t v[4];
};

// What the sum of a group starts at: weights are taken as unsigned bytes, which are 128 too
// large.
MOESAIC_INLINE Ints16 StartOfGroup(int32_t correction) {
  Ints16 r;
  for (int32_t& v : r.v) v = correction;
  return r;
}
MOESAIC_INLINE FourBytes LoadFour(const int8_t* x) { return LoadAs<FourBytes>(x); }
MOESAIC_INLINE WeightBytes Bytes(const std::byte* line) { return LoadAs<WeightBytes>(line); }
// The multipliers of a group of int4, and what those of one subgroup make of halves: half * factor
// + zero.
struct Multipliers {
  uint8_t v[64];
};
struct HalfScale {
  int factors[16];
  int zeros[16];
};
MOESAIC_INLINE Multipliers LoadMultipliers(const std::byte* line) {
  return LoadAs<Multipliers>(line);
}
MOESAIC_INLINE HalfScale ScaleOfHalves(const Multipliers& group, int64_t subgroup) {
  HalfScale r;
  for (int lane = 0; lane < 16; ++lane) {
    const int multiplier = group.v[lane * 4 + subgroup];
    r.factors[lane] = multiplier & 127;
    r.zeros[lane] = 128 - r.factors[lane] * (8 - (multiplier >> 7));
  }
  return r;
}
// The low and the high halves of the bytes of a line as the bytes of int8.
MOESAIC_INLINE WeightBytes LowHalves(const std::byte* line, const HalfScale& scale) {
  auto r = LoadAs<WeightBytes>(line);
  for (int i = 0; i < 64; ++i) {
    r.v[i] = static_cast<uint8_t>((r.v[i] & 15) * scale.factors[i / 4] + scale.zeros[i / 4]);
  }
  return r;
}
MOESAIC_INLINE WeightBytes HighHalves(const std::byte* line, const HalfScale& scale) {
  auto r = LoadAs<WeightBytes>(line);
  for (int i = 0; i < 64; ++i) {
    r.v[i] = static_cast<uint8_t>((r.v[i] >> 4) * scale.factors[i / 4] + scale.zeros[i / 4]);
  }
  return r;
}
// Both, as two lines of bytes.
MOESAIC_INLINE void WidenLine(const std::byte* line, const HalfScale& scale, std::byte* out) {
  StoreAs(out, LowHalves(line, scale));
  StoreAs(out + kLineBytes, HighHalves(line, scale));
}
MOESAIC_INLINE Ints16 DotAdd(Ints16 sum, WeightBytes w, FourBytes x) {
  for (int lane = 0; lane < 16; ++lane) {
    for (int i = 0; i < 4; ++i) sum.v[lane] += w.v[lane * 4 + i] * x.v[i];
  }
  return sum;
}
MOESAIC_INLINE Vec16 ToFloats(Ints16 a) {
  return MapLanes([&](int i) { return static_cast<float>(a.v[i]); });
}
// Sums that tile registers (amx_integers.h) have left in memory.
MOESAIC_INLINE Ints16 LoadDots(const int32_t* dots) { return LoadAs<Ints16>(dots); }
MOESAIC_INLINE Ints16 AddToAll(Ints16 a, int32_t b) {
  for (int32_t& v : a.v) v += b;
  return a;
}

// A line of weights that are below 32 and are taken as they are.
MOESAIC_INLINE WeightBytes SmallBytes(const std::byte* line) { return Bytes(line); }
MOESAIC_INLINE WeightBytes WeightsOf(ByteLine a) {
  return Bytes(reinterpret_cast<std::byte*>(a.v));
}
MOESAIC_INLINE WeightBytes SmallWeights(ByteLine a) { return WeightsOf(a); }
// What sums of codes start at: any number, on every instruction set.
MOESAIC_INLINE Ints16 StartOfSums(int32_t sum) { return StartOfGroup(sum); }
// Whether DotAdd is one instruction; else there are PairsOf, AddPairs and AddPairSums, of 16 bits.
constexpr bool kDotOfFour = true;

// Up to so many rows are multiplied with halves of int4 as they are (ints_ymm.h).
struct Halves {
  static constexpr int64_t kMostRows = 0;
};

// Up to so many rows are multiplied with GGUF's codes from panels (gguf_row.h), which is unrolled:
// so many in a turn.
constexpr int64_t kGgufMostRows = 0;
constexpr int kGgufTurnRows = 0;
constexpr int kGgufTileRows = 2;
constexpr int GgufTilePanels(int) { return 1; }
constexpr int kQuantTileRows = 2;
constexpr int QuantTilePanels(int) { return 1; }
// Of int4 whose halves become bytes in registers.
constexpr int kInt4TileRows = kQuantTileRows;
// Whether the f32 sums of a tile are in memory while a group is summed.
constexpr bool QuantSumsWait(int, int) { return false; }

}  // namespace
}  // namespace moesaic
