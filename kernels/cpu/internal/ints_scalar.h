// Sixteen 32-bit sums of products of bytes, in plain C++: the reference for what each operation
// means. Included after vec_scalar.h.
#pragma once

#include "kernels/cpu/internal/common.h"

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

// What a sum of 32 products starts at: weights are taken as unsigned bytes, which are 128 too
// large.
MOESAIC_INLINE Ints16 StartOfGroup(int32_t correction) {
  Ints16 r;
  for (int32_t& v : r.v) v = correction;
  return r;
}
MOESAIC_INLINE FourBytes LoadFour(const int8_t* x) { return LoadAs<FourBytes>(x); }
MOESAIC_INLINE WeightBytes Bytes(const std::byte* line) { return LoadAs<WeightBytes>(line); }
// The low and the high halves of the bytes of a line as weight * 16 + 128.
MOESAIC_INLINE WeightBytes LowHalves(const std::byte* line) {
  auto r = LoadAs<WeightBytes>(line);
  for (uint8_t& v : r.v) v = static_cast<uint8_t>(v << 4);
  return r;
}
MOESAIC_INLINE WeightBytes HighHalves(const std::byte* line) {
  auto r = LoadAs<WeightBytes>(line);
  for (uint8_t& v : r.v) v &= 0xf0;
  return r;
}
// Both, as two lines of bytes.
MOESAIC_INLINE void WidenLine(const std::byte* line, std::byte* out) {
  StoreAs(out, LowHalves(line));
  StoreAs(out + kLineBytes, HighHalves(line));
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
// Sums that tile registers (amx_products.h) have left in memory.
MOESAIC_INLINE Ints16 LoadDots(const int32_t* dots) { return LoadAs<Ints16>(dots); }
MOESAIC_INLINE Ints16 AddToAll(Ints16 a, int32_t b) {
  for (int32_t& v : a.v) v += b;
  return a;
}

constexpr int kQuantTileRows = 2;
constexpr int QuantTilePanels(int) { return 1; }

}  // namespace
}  // namespace moesaic
