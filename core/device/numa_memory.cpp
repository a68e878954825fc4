#include "core/device/numa_memory.h"

#include <numa.h>
#include <numaif.h>

namespace moesaic {

bool PreferNumaNode(std::span<std::byte> memory, int node) {
  if (node < 0 || memory.empty() || numa_available() < 0 || node > numa_max_node()) return false;
  if (numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(node)) == 0) return false;
  bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  // Preferred, not bound: a full node must not end the process.
  const bool placed =
      mbind(memory.data(), memory.size(), MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) == 0;
  numa_free_nodemask(nodes);
  return placed;
}

}  // namespace moesaic
