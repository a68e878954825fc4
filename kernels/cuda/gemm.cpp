#include "kernels/cuda/gemm.h"

#include <algorithm>

#include "core/base/units.h"
#include "core/device/device.h"
#include "kernels/cuda/internal/gemm_workspace.h"

namespace moesaic::cuda {

uint64_t GemmWorkspaceBytes(int64_t n, int64_t k) {
  if (n <= 0 || k <= 0) return kCublasBytes;
  const uint64_t row_bytes = GemmRowBytes(k);
  const auto panels = static_cast<uint64_t>((n + kPanelOutputs - 1) / kPanelOutputs);
  const uint64_t panel_bytes = row_bytes * static_cast<uint64_t>(kPanelOutputs);
  const uint64_t most_panels = std::max<uint64_t>(1, kMostUnpackedBytes / panel_bytes);
  return kCublasBytes + RoundUp(std::min(panels, most_panels) * panel_bytes, Device::kAlignment);
}

}  // namespace moesaic::cuda
