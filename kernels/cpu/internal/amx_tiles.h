// The tile registers of AMX as products use them. Included after vec_avx512.h; what each operation
// means is said in plain C++ by tests/kernels/cpu/emulated_tiles.h, which the products are tested
// with where the CPU has no such registers.
//
// A block of 2 x 2 tiles of sums, two tiles of activations (16 rows of 64 bytes at most) and two of
// weights (lines of packed panels).
#pragma once

#include <immintrin.h>

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

// The memory operand of LDTILECFG (Intel SDM volume 1, 18.3).
struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

// Tiles 0 to 3 hold the sums, 4 and 5 the activations, 6 and 7 the weights. The instructions name
// their registers, hence the chains of if.
struct Tiles {
  // Every tile of activations and of sums has `rows` rows, of activations of x_bytes bytes; a tile
  // of weights has `lines` lines.
  static void Configure(int64_t rows, int64_t x_bytes, int64_t lines) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : lines);
      config.row_bytes[tile] = static_cast<uint16_t>(tile == 4 || tile == 5 ? x_bytes : kLineBytes);
    }
    Fence();
    _tile_loadconfig(&config);
  }
  // For attention of `rows` queries: sums as above, of any four blocks or columns; queries in tile
  // 4 (64 bytes of a row), their weights in 5 (32 bytes: a block of tokens); keys in 6 (16 lines)
  // and values in 7 (8 lines).
  static void ConfigureAttention(int64_t rows) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) {
      config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : tile == 6 ? 16 : 8);
      config.row_bytes[tile] = static_cast<uint16_t>(tile == 5 ? 32 : kLineBytes);
    }
    Fence();
    _tile_loadconfig(&config);
  }
  // Until the next Configure the operating system has no tiles to save.
  static void Release() { _tile_release(); }

  template <int kRow, int kPanel>
  MOESAIC_INLINE static void ZeroSums() {
    if constexpr (kRow == 0 && kPanel == 0) _tile_zero(0);
    if constexpr (kRow == 0 && kPanel == 1) _tile_zero(1);
    if constexpr (kRow == 1 && kPanel == 0) _tile_zero(2);
    if constexpr (kRow == 1 && kPanel == 1) _tile_zero(3);
  }
  template <int kRow, int kPanel>
  MOESAIC_INLINE static void LoadSums(const void* from, int64_t stride_bytes = kLineBytes) {
    Fence();
    if constexpr (kRow == 0 && kPanel == 0) _tile_loadd(0, from, stride_bytes);
    if constexpr (kRow == 0 && kPanel == 1) _tile_loadd(1, from, stride_bytes);
    if constexpr (kRow == 1 && kPanel == 0) _tile_loadd(2, from, stride_bytes);
    if constexpr (kRow == 1 && kPanel == 1) _tile_loadd(3, from, stride_bytes);
  }
  template <int kRow, int kPanel>
  MOESAIC_INLINE static void StoreSums(void* to, int64_t stride_bytes = kLineBytes) {
    if constexpr (kRow == 0 && kPanel == 0) _tile_stored(0, to, stride_bytes);
    if constexpr (kRow == 0 && kPanel == 1) _tile_stored(1, to, stride_bytes);
    if constexpr (kRow == 1 && kPanel == 0) _tile_stored(2, to, stride_bytes);
    if constexpr (kRow == 1 && kPanel == 1) _tile_stored(3, to, stride_bytes);
    Fence();
  }
  template <int kRow>
  MOESAIC_INLINE static void LoadX(const void* from, int64_t stride_bytes) {
    Fence();
    if constexpr (kRow == 0) _tile_loadd(4, from, stride_bytes);
    if constexpr (kRow == 1) _tile_loadd(5, from, stride_bytes);
  }
  template <int kPanel>
  MOESAIC_INLINE static void LoadWeights(const void* from, int64_t stride_bytes = kLineBytes) {
    Fence();
    if constexpr (kPanel == 0) _tile_loadd(6, from, stride_bytes);
    if constexpr (kPanel == 1) _tile_loadd(7, from, stride_bytes);
  }
  template <int kRow, int kPanel>
  MOESAIC_INLINE static void DotBf16() {
    if constexpr (kRow == 0 && kPanel == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kRow == 0 && kPanel == 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRow == 1 && kPanel == 0) _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRow == 1 && kPanel == 1) _tile_dpbf16ps(3, 5, 7);
  }
  // Sums 0 to 3 (row * 2 + panel) += queries * keys, and += weights * values.
  template <int kSum>
  MOESAIC_INLINE static void DotKeys() {
    if constexpr (kSum == 0) _tile_dpbf16ps(0, 4, 6);
    if constexpr (kSum == 1) _tile_dpbf16ps(1, 4, 6);
    if constexpr (kSum == 2) _tile_dpbf16ps(2, 4, 6);
    if constexpr (kSum == 3) _tile_dpbf16ps(3, 4, 6);
  }
  template <int kSum>
  MOESAIC_INLINE static void DotValues() {
    if constexpr (kSum == 0) _tile_dpbf16ps(0, 5, 7);
    if constexpr (kSum == 1) _tile_dpbf16ps(1, 5, 7);
    if constexpr (kSum == 2) _tile_dpbf16ps(2, 5, 7);
    if constexpr (kSum == 3) _tile_dpbf16ps(3, 5, 7);
  }
  // Rounded to bf16 for a tile, which takes denormals for zero as this does.
  MOESAIC_INLINE static void StoreRounded(void* to, Vec16 values) {
    _mm256_storeu_si256(static_cast<__m256i*>(to),
                        reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values.v)));
  }
  // Signed bytes of activations times unsigned ones of weights.
  template <int kRow, int kPanel>
  MOESAIC_INLINE static void DotBytes() {
    if constexpr (kRow == 0 && kPanel == 0) _tile_dpbsud(0, 4, 6);
    if constexpr (kRow == 0 && kPanel == 1) _tile_dpbsud(1, 4, 7);
    if constexpr (kRow == 1 && kPanel == 0) _tile_dpbsud(2, 5, 6);
    if constexpr (kRow == 1 && kPanel == 1) _tile_dpbsud(3, 5, 7);
  }
  // Signed bytes of both.
  template <int kRow, int kPanel>
  MOESAIC_INLINE static void DotSignedBytes() {
    if constexpr (kRow == 0 && kPanel == 0) _tile_dpbssd(0, 4, 6);
    if constexpr (kRow == 0 && kPanel == 1) _tile_dpbssd(1, 4, 7);
    if constexpr (kRow == 1 && kPanel == 0) _tile_dpbssd(2, 5, 6);
    if constexpr (kRow == 1 && kPanel == 1) _tile_dpbssd(3, 5, 7);
  }

 private:
  // GCC 12 does not know that a load of a tile reads memory.
  MOESAIC_INLINE static void Fence() { __asm__ volatile("" ::: "memory"); }
};

}  // namespace
}  // namespace moesaic
