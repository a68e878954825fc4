// Where the pages of a piece of host memory come from, and which node a thread runs on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

// Asks the kernel to take the pages of `memory`, which nobody has touched yet, from a NUMA node
// while it has any left. `memory` starts at a page. False when this machine has no such node or no
// notion of nodes: the memory is as good, only placed by who touches it first.
bool PreferNumaNode(std::span<std::byte> memory, int node);

// Bytes [begin_bytes, end_bytes) of a piece of memory that belong on a NUMA node.
struct NodeStretch {
  uint64_t begin_bytes = 0;
  uint64_t end_bytes = 0;
  int node = 0;
  friend bool operator==(const NodeStretch&, const NodeStretch&) = default;
};

// `count` times the stretches of one of several equal pieces, `stride_bytes` apart.
std::vector<NodeStretch> RepeatStretches(std::span<const NodeStretch> stretches,
                                         uint64_t stride_bytes, int64_t count);

// The stretches (ascending, none over another) in whole pages: a page that several share is given
// to one of them. Neighbours on one node are joined.
std::vector<NodeStretch> WholePages(std::span<const NodeStretch> stretches, uint64_t page_bytes);

// Whether pages of 2 MiB still lie where they belong: the shortest stretch has many of them.
bool WorthHugePages(std::span<const NodeStretch> stretches);

// Takes the pages of `memory`, which starts at a page and which nobody has touched yet, from the
// nodes of `stretches`, by touching them from threads that prefer that node (they are zero then).
// Returns false when the machine lacks one of the nodes; the pages of its stretches are left to who
// touches them first.
//
// Not by one mbind for each stretch: each would be a mapping of its own, and a process may have
// 65,530 of those (vm.max_map_count), which are slices of some 10,000 experts.
bool TakePagesFromNodes(std::span<std::byte> memory, std::span<const NodeStretch> stretches);

// Keeps the calling thread on those of its CPUs that a NUMA node has. False, and nothing changes,
// when this machine has no such node or the process may not run there.
bool RunOnNumaNode(int node);

}  // namespace moesaic
