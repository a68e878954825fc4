// Tiles of kernels/cpu/internal/amx_tiles.h in plain C++: what the tile registers of AMX do, from
// the pseudo-code of the Intel SDM (volume 2: TILELOADD, TDPBF16PS, TDPBSUD, TDPBSSD). What would
// be a fault there fails a CHECK here. Included after a Vec16.
//
// Each thread has registers of its own.
#pragma once

#include <cmath>
#include <cstring>

#include "core/base/check.h"
#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

struct EmulatedTile {
  int64_t rows = 0;
  int64_t row_bytes = 0;
  std::byte data[16][64] = {};
};

struct EmulatedRegisters {
  bool configured = false;
  EmulatedTile tiles[8];
};
thread_local EmulatedRegisters emulated_registers;

inline EmulatedTile& TileRegister(int tile) {
  CHECK(emulated_registers.configured);
  return emulated_registers.tiles[tile];
}

inline void ZeroTile(EmulatedTile& tile) { std::memset(tile.data, 0, sizeof(tile.data)); }

inline void LoadTile(EmulatedTile& tile, const void* from, int64_t stride_bytes) {
  ZeroTile(tile);
  for (int64_t row = 0; row < tile.rows; ++row) {
    std::memcpy(tile.data[row], static_cast<const std::byte*>(from) + row * stride_bytes,
                static_cast<size_t>(tile.row_bytes));
  }
}

inline void StoreTile(const EmulatedTile& tile, void* to, int64_t stride_bytes) {
  for (int64_t row = 0; row < tile.rows; ++row) {
    std::memcpy(static_cast<std::byte*>(to) + row * stride_bytes, tile.data[row],
                static_cast<size_t>(tile.row_bytes));
  }
}

template <typename T>
T& Element(EmulatedTile& tile, int64_t row, int64_t index) {
  return reinterpret_cast<T*>(tile.data[row])[index];
}

inline void CheckShapes(const EmulatedTile& sums, const EmulatedTile& x, const EmulatedTile& w) {
  CHECK_EQ(sums.rows, x.rows);
  CHECK_EQ(sums.row_bytes, w.row_bytes);
  CHECK_EQ(x.row_bytes, w.rows * 4);
}

// Denormals are zero, as operands and as results.
inline float Flushed(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value;
}
inline float FlushedBf16(uint16_t value) { return Flushed(WidenBf16(value)); }

inline void DotTileBf16(EmulatedTile& sums, EmulatedTile& x, EmulatedTile& w) {
  CheckShapes(sums, x, w);
  for (int64_t row = 0; row < sums.rows; ++row) {
    for (int64_t n = 0; n < sums.row_bytes / 4; ++n) {
      float chains[2] = {0.0f, 0.0f};
      for (int64_t k = 0; k < x.row_bytes / 4; ++k) {
        for (int64_t i = 0; i < 2; ++i) {
          chains[i] = Flushed(std::fma(FlushedBf16(Element<uint16_t>(x, row, 2 * k + i)),
                                       FlushedBf16(Element<uint16_t>(w, k, 2 * n + i)), chains[i]));
        }
      }
      auto& sum = Element<float>(sums, row, n);
      sum = Flushed(Flushed(sum) + Flushed(chains[0] + chains[1]));
    }
  }
}

// Signed bytes of activations, and of weights bytes of type W.
template <typename W>
void DotTileBytes(EmulatedTile& sums, EmulatedTile& x, EmulatedTile& w) {
  CheckShapes(sums, x, w);
  for (int64_t row = 0; row < sums.rows; ++row) {
    for (int64_t n = 0; n < sums.row_bytes / 4; ++n) {
      int32_t& sum = Element<int32_t>(sums, row, n);
      for (int64_t k = 0; k < x.row_bytes / 4; ++k) {
        for (int64_t i = 0; i < 4; ++i) {
          sum += Element<int8_t>(x, row, 4 * k + i) * Element<W>(w, k, 4 * n + i);
        }
      }
    }
  }
}

struct Tiles {
  static void Configure(int64_t rows, int64_t x_bytes, int64_t lines) {
    CHECK(rows >= 1 && rows <= 16 && lines >= 1 && lines <= 16);
    CHECK(x_bytes >= 4 && x_bytes <= 64 && x_bytes % 4 == 0);
    emulated_registers = {};
    emulated_registers.configured = true;
    for (int tile = 0; tile < 8; ++tile) {
      TileRegister(tile).rows = tile < 6 ? rows : lines;
      TileRegister(tile).row_bytes = tile == 4 || tile == 5 ? x_bytes : kLineBytes;
    }
  }
  static void ConfigureAttention(int64_t rows) {
    Configure(rows, 64, 16);
    TileRegister(5).row_bytes = 32;
    TileRegister(7).rows = 8;
  }
  static void Release() { emulated_registers = {}; }

  template <int kRow, int kPanel>
  static void ZeroSums() {
    ZeroTile(Sums(kRow, kPanel));
  }
  template <int kRow, int kPanel>
  static void LoadSums(const void* from, int64_t stride_bytes = kLineBytes) {
    LoadTile(Sums(kRow, kPanel), from, stride_bytes);
  }
  template <int kRow, int kPanel>
  static void StoreSums(void* to, int64_t stride_bytes = kLineBytes) {
    StoreTile(Sums(kRow, kPanel), to, stride_bytes);
  }
  template <int kRow>
  static void LoadX(const void* from, int64_t stride_bytes) {
    LoadTile(TileRegister(4 + kRow), from, stride_bytes);
  }
  template <int kPanel>
  static void LoadWeights(const void* from, int64_t stride_bytes = kLineBytes) {
    LoadTile(TileRegister(6 + kPanel), from, stride_bytes);
  }
  template <int kRow, int kPanel>
  static void DotBf16() {
    DotTileBf16(Sums(kRow, kPanel), TileRegister(4 + kRow), TileRegister(6 + kPanel));
  }
  template <int kSum>
  static void DotKeys() {
    DotTileBf16(TileRegister(kSum), TileRegister(4), TileRegister(6));
  }
  template <int kSum>
  static void DotValues() {
    DotTileBf16(TileRegister(kSum), TileRegister(5), TileRegister(7));
  }
  static void StoreRounded(void* to, Vec16 values) {
    for (int i = 0; i < 16; ++i) values.v[i] = Flushed(values.v[i]);
    StoreBf16(to, values);
  }
  template <int kRow, int kPanel>
  static void DotBytes() {
    DotTileBytes<uint8_t>(Sums(kRow, kPanel), TileRegister(4 + kRow), TileRegister(6 + kPanel));
  }
  template <int kRow, int kPanel>
  static void DotSignedBytes() {
    DotTileBytes<int8_t>(Sums(kRow, kPanel), TileRegister(4 + kRow), TileRegister(6 + kPanel));
  }

 private:
  static EmulatedTile& Sums(int row, int panel) { return TileRegister(2 * row + panel); }
};

}  // namespace
}  // namespace moesaic
