#include <immintrin.h>

#include "serving/plan/peak_kernels.h"

namespace moesaic {
namespace {

// Memory operand of LDTILECFG (Intel SDM volume 1, 18.3): eight tiles of 16 rows of 64 bytes.
struct FullTiles {
  uint8_t palette = 1;
  uint8_t reserved[15] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

void ConfigureFullTiles() {
  const FullTiles config;
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

// Of the zeros that the tiles hold at the end as at the beginning.
float ReleasedTile() {
  alignas(64) float values[256];
  _tile_stored(0, values, 64);
  __asm__ volatile("" ::: "memory");
  _tile_release();
  return values[0];
}

}  // namespace

float PeakAmxBf16(int64_t iterations) {
  ConfigureFullTiles();
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  return ReleasedTile();
}

float PeakAmxInt8(int64_t iterations) {
  ConfigureFullTiles();
  for (int64_t n = 0; n < iterations; ++n) {
    _tile_dpbsud(0, 4, 6);
    _tile_dpbsud(1, 4, 7);
    _tile_dpbsud(2, 5, 6);
    _tile_dpbsud(3, 5, 7);
  }
  return ReleasedTile();
}

}  // namespace moesaic
