// Where the pages of a piece of host memory come from, and which node a thread runs on.
#pragma once

#include <cstddef>
#include <span>

namespace moesaic {

// Asks the kernel to take the pages of `memory`, which nobody has touched yet, from a NUMA node
// while it has any left. `memory` starts at a page. False when this machine has no such node or no
// notion of nodes: the memory is as good, only placed by who touches it first.
bool PreferNumaNode(std::span<std::byte> memory, int node);

// Keeps the calling thread on those of its CPUs that a NUMA node has. False, and nothing changes,
// when this machine has no such node or the process may not run there.
bool RunOnNumaNode(int node);

}  // namespace moesaic
