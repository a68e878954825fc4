// What pack_panels says of panels of coded bf16 (PackedMatrix, kBf16Coded).
//
// Functions of their arguments; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernels.h"

namespace moesaic {

// In place of a panel's number of exceptions, where there are more than it has room for.
constexpr uint32_t kCodedMisfit = 0xffffffff;
constexpr int64_t kCodedCountOffset = 32;

// Whether a panel that was packed has its weights.
inline bool CodedPanelFits(const std::byte* panel) {
  uint32_t count = 0;
  std::memcpy(&count, panel + kCodedCountOffset, sizeof(count));
  return count != kCodedMisfit;
}

// Whether all panels have.
inline bool CodedMatrixFits(const PackedMatrix& w) {
  for (int64_t panel = 0; panel < w.panels(); ++panel) {
    if (!CodedPanelFits(w.data + panel * w.panel_bytes())) return false;
  }
  return true;
}

// Whether 12 bits are fewer bytes, tables and exceptions counted; of few inputs they are not.
inline bool CodingGains(int64_t k) {
  return PackedMatrix{nullptr, WeightType::kBf16Coded, 1, k}.panel_bytes() <
         PackedMatrix{nullptr, WeightType::kBf16, 1, k}.panel_bytes();
}

}  // namespace moesaic
