// Where the slices of packed matrices belong on a machine whose nodes each compute their own
// (docs/architecture.md, "NUMA nodes"): what ParallelMatmul and RunExperts hand to the threads of
// node i lies on node i.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "core/device/numa_memory.h"
#include "core/io/expert_layout.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// Of one blob. `nodes`: the machine's numbers of the nodes (ThreadPool::node_ids()). Empty with
// fewer than two.
std::vector<NodeStretch> SlotStretches(const ExpertLayout& layout, std::span<const int> nodes);

// Of matrices in the memory that begins at `base`, in ascending order.
std::vector<NodeStretch> MatrixStretches(std::span<const PackedMatrix> matrices,
                                         const std::byte* base, std::span<const int> nodes);

}  // namespace moesaic
