// What a product that takes rows as they lie says of them (matmul.h).
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

template <int64_t kRows>
struct PlainRows {
  static constexpr int64_t kChunkRows = kRows;
  static constexpr int64_t kScratchBytes = 1;
  MOESAIC_INLINE static int64_t ChunkRows(const PanelShape&) { return kRows; }
  MOESAIC_INLINE static void PrepareRows(const std::byte**, int64_t, const PanelShape&,
                                         std::byte*) {}
};

}  // namespace
}  // namespace moesaic
