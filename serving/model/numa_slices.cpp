#include "serving/model/numa_slices.h"

#include "kernels/cpu/product_grid.h"

namespace moesaic {
namespace {

void AppendSlices(uint64_t offset, int64_t panels, int64_t panel_bytes, std::span<const int> nodes,
                  std::vector<NodeStretch>& out) {
  for (size_t i = 0; i < nodes.size(); ++i) {
    const PanelRange slice =
        PanelSlice(panels, static_cast<int>(nodes.size()), static_cast<int>(i));
    if (slice.begin == slice.end) continue;
    out.push_back({offset + static_cast<uint64_t>(slice.begin * panel_bytes),
                   offset + static_cast<uint64_t>(slice.end * panel_bytes), nodes[i]});
  }
}

}  // namespace

std::vector<NodeStretch> SlotStretches(const ExpertLayout& layout, std::span<const int> nodes) {
  std::vector<NodeStretch> stretches;
  if (nodes.size() < 2) return stretches;
  for (const ExpertSection& section : layout.sections) {
    const int64_t panels = (section.rows + kPanelOutputs - 1) / kPanelOutputs;
    AppendSlices(section.offset, panels, static_cast<int64_t>(section.bytes) / panels, nodes,
                 stretches);
  }
  return stretches;
}

std::vector<NodeStretch> MatrixStretches(std::span<const PackedMatrix> matrices,
                                         const std::byte* base, std::span<const int> nodes) {
  std::vector<NodeStretch> stretches;
  if (nodes.size() < 2) return stretches;
  for (const PackedMatrix& matrix : matrices) {
    AppendSlices(static_cast<uint64_t>(matrix.data - base), matrix.panels(), matrix.panel_bytes(),
                 nodes, stretches);
  }
  return stretches;
}

}  // namespace moesaic
