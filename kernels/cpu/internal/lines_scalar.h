// ByteLine: a line of 16 lanes of four bytes, in plain C++: the reference for what each operation
// means. Included after vec_scalar.h.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

struct ByteLine {
  uint8_t v[64];
};

template <typename F>
MOESAIC_INLINE ByteLine MapBytes(F f) {
  ByteLine r;
  for (int i = 0; i < 64; ++i) r.v[i] = static_cast<uint8_t>(f(i));
  return r;
}

MOESAIC_INLINE ByteLine LoadLine(const void* p) { return LoadAs<ByteLine>(p); }
MOESAIC_INLINE void StoreLine(void* p, ByteLine a) { StoreAs(p, a); }
// Some bits of each byte, moved down or up: no bit of another byte may be among them.
template <int kShift, int kMask>
MOESAIC_INLINE ByteLine Bits(ByteLine a) {
  static_assert(kMask <= 255 >> kShift);
  return MapBytes([&](int i) { return a.v[i] >> kShift & kMask; });
}
template <int kShift, int kMask>
MOESAIC_INLINE ByteLine BitsUp(ByteLine a) {
  static_assert((kMask & ((1 << kShift) - 1)) == 0);
  return MapBytes([&](int i) { return a.v[i] << kShift & kMask; });
}
MOESAIC_INLINE ByteLine Or(ByteLine a, ByteLine b) {
  return MapBytes([&](int i) { return a.v[i] | b.v[i]; });
}
MOESAIC_INLINE ByteLine AddToBytes(ByteLine a, int b) {
  return MapBytes([&](int i) { return a.v[i] + b; });
}
// The entries that the bytes of `at`, all below 16, name.
MOESAIC_INLINE ByteLine Look(const uint8_t (&table)[16], ByteLine at) {
  return MapBytes([&](int i) { return table[at.v[i]]; });
}
// Some bits of each lane's 32, the first byte being the lowest, as a number.
template <int kShift, int kMask>
MOESAIC_INLINE Vec16 LaneBits(ByteLine a) {
  return MapLanes([&](int i) {
    return static_cast<float>(LoadAs<uint32_t>(a.v + 4 * i) >> kShift & uint32_t{kMask});
  });
}
// Byte kByte of each lane as a signed number.
template <int kByte>
MOESAIC_INLINE Vec16 SignedByteOf(ByteLine a) {
  return MapLanes(
      [&](int i) { return static_cast<float>(static_cast<int8_t>(a.v[4 * i + kByte])); });
}

}  // namespace
}  // namespace moesaic
