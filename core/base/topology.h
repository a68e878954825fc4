// Topology: the part of this machine that this process may use: CPUs (affinity and cgroup quota),
// cores against hardware threads, NUMA nodes, memory (what is free, and what the cgroup leaves).
//
// Plain data, read once by main and passed down; reading is safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/cgroup.h"
#include "core/base/named.h"
#include "core/base/thread_layout.h"

namespace moesaic {

struct LogicalCpu {
  int id = 0;
  int core = 0;     // number of the physical core within its package
  int package = 0;  // socket
  int node = 0;     // NUMA node
};

struct NumaNode {
  int id = 0;
  std::vector<int> cpus;  // of those that the process may use
  uint64_t memory_bytes = 0;
};

struct Topology {
  std::string cpu_model;               // "unknown CPU" where the system does not say
  std::vector<std::string> isa_flags;  // those that matter to the kernels, see kIsaFlags
  std::vector<LogicalCpu> cpus;        // that the process may run on, ascending
  std::vector<NumaNode> nodes;
  uint64_t memory_total_bytes = 0;
  uint64_t memory_free_bytes = 0;  // MemAvailable: what can be had without swapping
  CgroupLimits cgroup;

  int physical_cores() const;  // distinct cores among cpus
  // Compute threads by default: one per physical core, no more than the CPU quota rounded up.
  int default_threads() const;
  // What the process can still allocate: free memory of the machine and what the cgroup leaves,
  // whichever is less.
  uint64_t usable_memory_bytes() const;
  // CPU ids in the order in which threads should be pinned: one per core first, then siblings.
  std::vector<int> pin_order() const;
  // Nodes with CPUs that the process may use, when there are several of them and no more than
  // kMaxComputeNodes; otherwise none.
  std::vector<int> slice_nodes() const;
  // For threads that are pinned to a CPU each or not. `slice`: over slice_nodes(), taking turns,
  // and each kept on its node at least.
  ThreadLayout thread_layout(bool pin, bool slice) const;
};

// `root` as in ReadCgroupLimits; `allowed_cpus` is the affinity mask as a list.
Topology ReadTopology(const std::filesystem::path& root, std::span<const int> allowed_cpus);
Topology ReadTopology();

// "0-3,8,10-11" -> 0 1 2 3 8 10 11; what is malformed ends the list.
std::vector<int> ParseCpuList(std::string_view text);

struct CpuDescription {
  std::string model;
  std::vector<std::string> isa_flags;
};
// From /proc/cpuinfo (x86 and Arm).
CpuDescription ParseCpuInfo(std::string_view text);

// The bytes of a "Name:   123 kB" line of /proc/meminfo or of a NUMA node's meminfo.
std::optional<uint64_t> ParseMemInfo(std::string_view text, std::string_view name);

// Where the memory that the process allocates from now on comes from.
enum class NumaPolicy {
  kOff,         // the kernel's default: the node of the thread that touches it first
  kInterleave,  // pages alternate over all nodes: every thread sees the same bandwidth
  // Weights are sliced over the nodes, each slice beside the threads that compute with it
  // (docs/architecture.md, "NUMA nodes"); what is not sliced is interleaved.
  kSlice,
  kIsolate,  // CPUs and memory of one node, the one that this thread runs on
};
inline constexpr Named<NumaPolicy> kNumaPolicies[] = {{"off", NumaPolicy::kOff},
                                                      {"interleave", NumaPolicy::kInterleave},
                                                      {"slice", NumaPolicy::kSlice},
                                                      {"isolate", NumaPolicy::kIsolate}};
// What was asked for; otherwise slice when there are nodes to slice over, interleave when there is
// more than one node.
NumaPolicy ChooseNumaPolicy(std::optional<NumaPolicy> asked, const Topology& topology);
// Applies to this thread and to those that it starts afterwards; main calls it before there are
// any. Throws Error(kUnsupported) when the kernel refuses.
void ApplyNumaPolicy(NumaPolicy policy);

}  // namespace moesaic
