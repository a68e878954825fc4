#include "core/device/numa_memory.h"

#include <numa.h>
#include <numaif.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <set>
#include <thread>

#include "core/base/aligned_buffer.h"

namespace moesaic {

namespace {

constexpr uint64_t kHugePageBytes = AlignedBuffer::kHugePageBytes;

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

std::vector<NodeStretch> RepeatStretches(std::span<const NodeStretch> stretches,
                                         uint64_t stride_bytes, int64_t count) {
  std::vector<NodeStretch> all;
  all.reserve(stretches.size() * static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t at_bytes = static_cast<uint64_t>(i) * stride_bytes;
    for (const NodeStretch& stretch : stretches) {
      all.push_back({at_bytes + stretch.begin_bytes, at_bytes + stretch.end_bytes, stretch.node});
    }
  }
  return all;
}

std::vector<NodeStretch> WholePages(std::span<const NodeStretch> stretches, uint64_t page_bytes) {
  const auto nearest = [&](uint64_t bytes) {
    return (bytes + page_bytes / 2) / page_bytes * page_bytes;
  };
  std::vector<NodeStretch> pages;
  for (const NodeStretch& stretch : stretches) {
    const uint64_t begin_bytes = nearest(stretch.begin_bytes);
    const uint64_t end_bytes = nearest(stretch.end_bytes);
    if (begin_bytes == end_bytes) continue;
    NodeStretch* const last = pages.empty() ? nullptr : &pages.back();
    if (last != nullptr && last->end_bytes == begin_bytes && last->node == stretch.node) {
      last->end_bytes = end_bytes;
    } else {
      pages.push_back({begin_bytes, end_bytes, stretch.node});
    }
  }
  return pages;
}

bool WorthHugePages(std::span<const NodeStretch> stretches) {
  // At most a page of eight on the wrong node.
  return std::all_of(stretches.begin(), stretches.end(), [](const NodeStretch& stretch) {
    return stretch.end_bytes - stretch.begin_bytes >= 8 * kHugePageBytes;
  });
}

bool TakePagesFromNodes(std::span<std::byte> memory, std::span<const NodeStretch> stretches) {
  if (memory.empty() || stretches.empty()) return true;
  const bool huge = WorthHugePages(stretches);
  // A huge page would hold slices of several nodes.
  if (!huge) madvise(memory.data(), memory.size(), MADV_NOHUGEPAGE);
  const std::vector<NodeStretch> pages =
      WholePages(stretches, huge ? kHugePageBytes : AlignedBuffer::kPageBytes);
  std::set<int> nodes;
  bool all = true;
  for (const NodeStretch& stretch : stretches) {
    if (HasNode(stretch.node)) {
      nodes.insert(stretch.node);
    } else {
      all = false;
    }
  }
  std::vector<std::thread> threads;
  threads.reserve(nodes.size());
  for (const int node : nodes) {
    threads.emplace_back([&, node] {
      RunOnNumaNode(node);
      // Preferred, not bound: a full node must not end the process.
      numa_set_preferred(node);
      for (const NodeStretch& stretch : pages) {
        if (stretch.node != node) continue;
        const uint64_t end_bytes = std::min<uint64_t>(stretch.end_bytes, memory.size());
        for (uint64_t at = stretch.begin_bytes; at < end_bytes; at += AlignedBuffer::kPageBytes) {
          memory[at] = std::byte{0};
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
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
