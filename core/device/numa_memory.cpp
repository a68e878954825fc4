#include "core/device/numa_memory.h"

#include <numa.h>
#include <numaif.h>
#include <sched.h>

namespace moesaic {

namespace {

bool HasNode(int node) {
  return node >= 0 && numa_available() >= 0 && node <= numa_max_node() &&
         numa_bitmask_isbitset(numa_all_nodes_ptr, static_cast<unsigned>(node)) != 0;
}

}  // namespace

bool PreferNumaNode(std::span<std::byte> memory, int node) {
  if (memory.empty() || !HasNode(node)) return false;
  bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  // Preferred, not bound: a full node must not end the process.
  const bool placed =
      mbind(memory.data(), memory.size(), MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0) == 0;
  numa_free_nodemask(nodes);
  return placed;
}

// Not numa_run_on_node: it gives CPUs back that `taskset` has taken away.
bool RunOnNumaNode(int node) {
  cpu_set_t allowed;
  if (!HasNode(node) || sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return false;
  bitmask* of_node = numa_allocate_cpumask();
  cpu_set_t both;
  CPU_ZERO(&both);
  if (numa_node_to_cpus(node, of_node) == 0) {
    for (unsigned cpu = 0; cpu < CPU_SETSIZE && cpu < of_node->size; ++cpu) {
      if (CPU_ISSET(cpu, &allowed) && numa_bitmask_isbitset(of_node, cpu)) CPU_SET(cpu, &both);
    }
  }
  numa_free_cpumask(of_node);
  return CPU_COUNT(&both) > 0 && sched_setaffinity(0, sizeof(both), &both) == 0;
}

}  // namespace moesaic
