#include "kernels/cpu/product_grid.h"

#include <algorithm>

namespace moesaic {
namespace {

// Reading a weight costs about as much as this many multiply-adds with it (AVX-512, weights in
// memory), so an expert with one row is not much cheaper than one with this many.
constexpr int64_t kReadCost = 8;
// Rows are cut only where there are many: a block of rows reads all the weights.
constexpr int64_t kBlockRows = 256;
constexpr int64_t kSlicePanels = kQuantGroup / kPanelOutputs;

int64_t Pieces(int64_t whole, int64_t piece) { return (whole + piece - 1) / piece; }

}  // namespace

PanelRange PanelSlice(int64_t panels, int nodes, int node) {
  if (nodes == 1) return {0, panels};
  const int64_t units = Pieces(panels, kSlicePanels);
  return {std::min(panels, node * units / nodes * kSlicePanels),
          std::min(panels, (node + 1) * units / nodes * kSlicePanels)};
}

int64_t ProductGrid::tasks(int node) const {
  const PanelRange slice = PanelSlice(panels, nodes, node);
  return row_blocks * Pieces(slice.end - slice.begin, panel_chunk);
}

int64_t ProductGrid::tasks() const {
  int64_t total = 0;
  for (int node = 0; node < nodes; ++node) total += tasks(node);
  return total;
}

ProductGrid::Share ProductGrid::ShareOf(int node, int64_t task) const {
  const PanelRange slice = PanelSlice(panels, nodes, node);
  const int64_t chunks = Pieces(slice.end - slice.begin, panel_chunk);
  const int64_t block = task / chunks;
  const int64_t panel = slice.begin + task % chunks * panel_chunk;
  const int64_t first = block * rows / row_blocks;
  return {first, (block + 1) * rows / row_blocks - first, panel,
          std::min(panel + panel_chunk, slice.end)};
}

int64_t ProductWork(int64_t rows, int64_t panels, int64_t k) {
  return (rows + kReadCost) * panels * kPanelOutputs * k;
}

ProductGrid MakeProductGrid(int64_t rows, int64_t panels, int64_t k, int64_t task_work,
                            int64_t panel_unit, int nodes) {
  ProductGrid grid;
  grid.rows = rows;
  grid.panels = panels;
  grid.nodes = nodes;
  if (rows == 0 || panels == 0) return grid;
  grid.row_blocks = Pieces(rows, kBlockRows);
  // The widest slice.
  const int64_t slice =
      nodes == 1 ? panels : Pieces(Pieces(panels, kSlicePanels), nodes) * kSlicePanels;
  const int64_t panel_work = std::max<int64_t>(1, ProductWork(Pieces(rows, grid.row_blocks), 1, k));
  const int64_t chunk = std::clamp<int64_t>(task_work / panel_work, 1, slice);
  grid.panel_chunk = Pieces(Pieces(slice, Pieces(slice, chunk)), panel_unit) * panel_unit;
  return grid;
}

// Eight panels of gate and up are one group of integer activations.
ProductGrid MakeGateUpGrid(int64_t rows, const PackedMatrix& gate, int64_t task_work, int nodes) {
  return MakeProductGrid(rows, gate.panels(), 2 * gate.k, task_work,
                         IsQuantized(gate.type) ? kSlicePanels : 1, nodes);
}

}  // namespace moesaic
