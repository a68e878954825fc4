// ProductGrid: a matrix product cut into tasks: row blocks times chunks of panels, apart for each
// NUMA node that has a slice of the matrix. Plain data.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernels.h"

namespace moesaic {

struct PanelRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// Panels of a matrix of `panels` panels that lie on, and are computed by, node `node` of `nodes`:
// its outputs are cut into consecutive slices of the same length but for 128 outputs, which are
// eight panels and one group of integer activations. A slice may be empty.
PanelRange PanelSlice(int64_t panels, int nodes, int node);

struct ProductGrid {
  // A task: some rows of some panels.
  struct Share {
    int64_t row_begin = 0;
    int64_t rows = 0;
    int64_t panel_begin = 0;
    int64_t panel_end = 0;
  };

  int64_t rows = 0;
  int64_t panels = 0;
  int nodes = 1;
  int64_t row_blocks = 0;
  int64_t panel_chunk = 1;

  int64_t tasks(int node) const;
  int64_t tasks() const;  // of all nodes
  // Consecutive tasks of a node take consecutive panels of the same rows.
  Share ShareOf(int node, int64_t task) const;
};

// What a product costs, in multiply-adds.
int64_t ProductWork(int64_t rows, int64_t panels, int64_t k);

// Tasks of about `task_work`; their panels begin at a multiple of `panel_unit`, which is 1 or 8.
ProductGrid MakeProductGrid(int64_t rows, int64_t panels, int64_t k, int64_t task_work,
                            int64_t panel_unit, int nodes);
// Of gate and up together.
ProductGrid MakeGateUpGrid(int64_t rows, const PackedMatrix& gate, int64_t task_work, int nodes);

}  // namespace moesaic
