#include "core/base/topology.h"

#include <numa.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// Features that decide which kernels run, in the order in which they are shown.
constexpr std::array<std::string_view, 22> kIsaFlags = {
    "sse4_2",      "avx",         "avx2",     "fma",      "f16c",     "avx_vnni",
    "avx512f",     "avx512dq",    "avx512cd", "avx512bw", "avx512vl", "avx512_vnni",
    "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd",
    "asimddp",     "sve",         "bf16",     "i8mm"};

std::string ReadText(const fs::path& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

int ReadInt(const fs::path& path, int fallback) {
  const std::string text = ReadText(path);
  int value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return result.ec == std::errc() ? value : fallback;
}

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\n')) {
    text.remove_suffix(1);
  }
  return text;
}

// NUMA nodes that have memory or CPUs; one node that holds everything where the kernel has no
// notion of them.
std::vector<NumaNode> ReadNodes(const fs::path& root, std::span<const int> allowed_cpus,
                                uint64_t memory_total_bytes) {
  std::vector<NumaNode> nodes;
  const fs::path directory = root / "sys/devices/system/node";
  for (const int id : ParseCpuList(ReadText(directory / "online"))) {
    const fs::path node_directory = directory / ("node" + std::to_string(id));
    NumaNode node;
    node.id = id;
    for (const int cpu : ParseCpuList(ReadText(node_directory / "cpulist"))) {
      if (std::binary_search(allowed_cpus.begin(), allowed_cpus.end(), cpu)) {
        node.cpus.push_back(cpu);
      }
    }
    node.memory_bytes = ParseMemInfo(ReadText(node_directory / "meminfo"), "MemTotal").value_or(0);
    if (node.memory_bytes > 0 || !node.cpus.empty()) nodes.push_back(std::move(node));
  }
  if (nodes.empty()) {
    nodes.push_back({0, {allowed_cpus.begin(), allowed_cpus.end()}, memory_total_bytes});
  }
  return nodes;
}

}  // namespace

int Topology::physical_cores() const {
  std::set<std::pair<int, int>> cores;
  for (const LogicalCpu& cpu : cpus) cores.emplace(cpu.package, cpu.core);
  return static_cast<int>(cores.size());
}

int Topology::default_threads() const {
  int threads = std::max(1, physical_cores());
  if (cgroup.cpu_quota) {
    threads = std::min(threads, static_cast<int>(std::ceil(std::min(*cgroup.cpu_quota, 1e6))));
  }
  return std::max(1, threads);
}

uint64_t Topology::usable_memory_bytes() const {
  const uint64_t machine_bytes = memory_free_bytes > 0 ? memory_free_bytes : memory_total_bytes;
  return std::min(machine_bytes, cgroup.memory_left_bytes.value_or(UINT64_MAX));
}

std::vector<int> Topology::pin_order() const {
  std::map<std::pair<int, int>, int> seen;  // (package, core) -> hardware threads taken so far
  std::vector<std::pair<int, int>> order;   // (rank of the hardware thread in its core, cpu)
  for (const LogicalCpu& cpu : cpus) order.emplace_back(seen[{cpu.package, cpu.core}]++, cpu.id);
  std::sort(order.begin(), order.end());
  std::vector<int> ids;
  ids.reserve(order.size());
  for (const auto& [rank, id] : order) ids.push_back(id);
  return ids;
}

std::vector<int> Topology::slice_nodes() const {
  std::vector<int> ids;
  for (const NumaNode& node : nodes) {
    if (!node.cpus.empty()) ids.push_back(node.id);
  }
  if (ids.size() < 2 || ids.size() > size_t{kMaxComputeNodes}) ids.clear();
  return ids;
}

ThreadLayout Topology::thread_layout(bool pin, bool slice) const {
  ThreadLayout layout;
  if (slice) layout.nodes = slice_nodes();
  if (layout.nodes.empty()) {
    if (!pin) return layout;
    for (const int cpu : pin_order()) layout.places.push_back({{cpu}, 0});
    return layout;
  }
  std::vector<const NumaNode*> sliced;
  for (const NumaNode& node : nodes) {
    if (!node.cpus.empty()) sliced.push_back(&node);
  }
  // The first CPU of every node, then the second of every node that has one, and so on.
  std::vector<std::vector<int>> order(sliced.size());
  for (const int cpu : pin_order()) {
    for (size_t n = 0; n < sliced.size(); ++n) {
      const std::vector<int>& of_node = sliced[n]->cpus;
      if (std::find(of_node.begin(), of_node.end(), cpu) != of_node.end()) order[n].push_back(cpu);
    }
  }
  for (size_t turn = 0; layout.places.size() < cpus.size(); ++turn) {
    const size_t before = layout.places.size();
    for (size_t n = 0; n < sliced.size(); ++n) {
      if (turn >= order[n].size()) continue;
      layout.places.push_back(
          {pin ? std::vector<int>{order[n][turn]} : sliced[n]->cpus, static_cast<int>(n)});
    }
    if (layout.places.size() == before) break;
  }
  return layout;
}

Topology ReadTopology(const fs::path& root, std::span<const int> allowed_cpus) {
  Topology topology;
  CpuDescription description = ParseCpuInfo(ReadText(root / "proc/cpuinfo"));
  topology.cpu_model = std::move(description.model);
  topology.isa_flags = std::move(description.isa_flags);

  const std::string meminfo = ReadText(root / "proc/meminfo");
  topology.memory_total_bytes = ParseMemInfo(meminfo, "MemTotal").value_or(0);
  topology.memory_free_bytes = ParseMemInfo(meminfo, "MemAvailable").value_or(0);
  topology.cgroup = ReadCgroupLimits(root);

  std::vector<int> allowed(allowed_cpus.begin(), allowed_cpus.end());
  std::sort(allowed.begin(), allowed.end());
  topology.nodes = ReadNodes(root, allowed, topology.memory_total_bytes);
  for (const int id : allowed) {
    const fs::path directory = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(id));
    LogicalCpu cpu;
    cpu.id = id;
    // Without the files (some containers hide /sys) every CPU counts as a core of its own.
    cpu.core = ReadInt(directory / "topology/core_id", id);
    cpu.package = ReadInt(directory / "topology/physical_package_id", 0);
    for (const NumaNode& node : topology.nodes) {
      if (std::find(node.cpus.begin(), node.cpus.end(), id) != node.cpus.end()) cpu.node = node.id;
    }
    topology.cpus.push_back(cpu);
  }
  return topology;
}

Topology ReadTopology() {
  // The mask has to be as wide as the kernel's; machines with more than 1024 CPUs exist.
  std::vector<int> allowed;
  for (int capacity = 1024; capacity <= (1 << 20); capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(capacity));
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(capacity));
    CPU_ZERO_S(bytes, set);
    const bool read = sched_getaffinity(0, bytes, set) == 0;
    for (int cpu = 0; read && cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(static_cast<size_t>(cpu), bytes, set)) allowed.push_back(cpu);
    }
    CPU_FREE(set);
    if (read) break;
  }
  if (allowed.empty()) allowed.push_back(0);
  return ReadTopology("/", allowed);
}

std::vector<int> ParseCpuList(std::string_view text) {
  constexpr int kMaxCpu = 1 << 20;
  std::vector<int> cpus;
  text = Trim(text);
  while (!text.empty()) {
    int first = 0;
    auto result = std::from_chars(text.data(), text.data() + text.size(), first);
    if (result.ec != std::errc()) break;
    int last = first;
    const char* end = text.data() + text.size();
    if (result.ptr != end && *result.ptr == '-') {
      result = std::from_chars(result.ptr + 1, end, last);
      if (result.ec != std::errc()) break;
    }
    if (first < 0 || last > kMaxCpu) break;
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (result.ptr == end || *result.ptr != ',') break;
    text.remove_prefix(static_cast<size_t>(result.ptr + 1 - text.data()));
  }
  return cpus;
}

CpuDescription ParseCpuInfo(std::string_view text) {
  CpuDescription description;
  std::set<std::string, std::less<>> flags;
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view key = Trim(std::string_view(line).substr(0, colon));
    const std::string_view value = Trim(std::string_view(line).substr(colon + 1));
    if (key == "model name" && description.model.empty()) description.model = value;
    if ((key == "flags" || key == "Features") && flags.empty()) {
      std::istringstream words{std::string(value)};
      std::string word;
      while (words >> word) flags.insert(word);
    }
  }
  if (description.model.empty()) description.model = "unknown CPU";
  for (const std::string_view flag : kIsaFlags) {
    if (flags.count(flag) > 0) description.isa_flags.emplace_back(flag);
  }
  return description;
}

std::optional<uint64_t> ParseMemInfo(std::string_view text, std::string_view name) {
  std::istringstream lines{std::string(text)};
  std::string line;
  while (std::getline(lines, line)) {
    // A node's file has "Node 0 MemTotal:  123 kB".
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    std::string_view key = std::string_view(line).substr(0, colon);
    key.remove_prefix(key.rfind(' ') == std::string_view::npos ? 0 : key.rfind(' ') + 1);
    if (key != name) continue;
    const std::string_view value = Trim(std::string_view(line).substr(colon + 1));
    uint64_t kib = 0;
    if (std::from_chars(value.data(), value.data() + value.size(), kib).ec != std::errc() ||
        kib > UINT64_MAX / 1024) {
      return std::nullopt;
    }
    return kib * 1024;
  }
  return std::nullopt;
}

NumaPolicy ChooseNumaPolicy(std::optional<NumaPolicy> asked, const Topology& topology) {
  if (asked) return *asked;
  if (!topology.slice_nodes().empty()) return NumaPolicy::kSlice;
  return topology.nodes.size() > 1 ? NumaPolicy::kInterleave : NumaPolicy::kOff;
}

void ApplyNumaPolicy(NumaPolicy policy) {
  if (policy == NumaPolicy::kOff) return;
  if (numa_available() < 0) {
    Fail(ErrorKind::kUnsupported, "--numa: this kernel has no NUMA policies; use --numa off");
  }
  if (policy == NumaPolicy::kInterleave || policy == NumaPolicy::kSlice) {
    numa_set_interleave_mask(numa_all_nodes_ptr);
    return;
  }
  const int node = numa_node_of_cpu(sched_getcpu());
  if (node < 0 || numa_run_on_node(node) != 0) {
    Fail(ErrorKind::kUnsupported, "--numa isolate: cannot bind to the NUMA node of this CPU");
  }
  numa_set_preferred(node);
}

}  // namespace moesaic
