#include "core/base/topology.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/cgroup.h"
#include "core/base/error.h"
#include "core/base/thread_limit.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A directory that stands for "/", removed at the end.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (fs::temp_directory_path() / "moesaic_topology_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~FakeRoot() { fs::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;
  void Write(const std::string& file, const std::string& text) {
    fs::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void WriteCpu(FakeRoot& root, int cpu, int core, int package) {
  const std::string directory = "sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
  root.Write(directory + "core_id", std::to_string(core) + "\n");
  root.Write(directory + "physical_package_id", std::to_string(package) + "\n");
}

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(TopologyTest, ParsesCpuLists) {
  EXPECT_EQ(ParseCpuList("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(ParseCpuList("5"), std::vector<int>{5});
  EXPECT_TRUE(ParseCpuList("").empty());
  EXPECT_TRUE(ParseCpuList("x").empty());
  EXPECT_EQ(ParseCpuList("1,x"), std::vector<int>{1});
  EXPECT_TRUE(ParseCpuList("0-99999999").empty());
}

TEST(TopologyTest, ParsesCpuInfoOfX86AndArm) {
  const CpuDescription x86 = ParseCpuInfo(
      "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu avx2 fma avx512_bf16\n\n"
      "processor\t: 1\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu avx2 fma avx512_bf16\n");
  EXPECT_EQ(x86.model, "Some CPU @ 2.0GHz");
  EXPECT_EQ(x86.isa_flags, (std::vector<std::string>{"avx2", "fma", "avx512_bf16"}));
  const CpuDescription arm = ParseCpuInfo("processor\t: 0\nFeatures\t: fp asimd i8mm\n");
  EXPECT_EQ(arm.model, "unknown CPU");
  EXPECT_EQ(arm.isa_flags, (std::vector<std::string>{"asimd", "i8mm"}));
}

TEST(TopologyTest, ParsesMemInfo) {
  EXPECT_EQ(ParseMemInfo("MemTotal:  1024 kB\nMemAvailable:   512 kB\n", "MemAvailable"), 524288u);
  EXPECT_EQ(ParseMemInfo("Node 1 MemTotal:       2 kB\n", "MemTotal"), 2048u);
  EXPECT_FALSE(ParseMemInfo("MemTotal: x kB\n", "MemTotal").has_value());
  EXPECT_FALSE(ParseMemInfo("MemTotal: 1 kB\n", "MemFree").has_value());
}

TEST(TopologyTest, ParsesCpuMax) {
  EXPECT_FALSE(ParseCpuMax("max 100000\n").has_value());
  EXPECT_DOUBLE_EQ(*ParseCpuMax("150000 100000\n"), 1.5);
  EXPECT_DOUBLE_EQ(*ParseCpuMax("50000\n"), 0.5);
  EXPECT_FALSE(ParseCpuMax("").has_value());
  EXPECT_FALSE(ParseCpuMax("100 0").has_value());
}

TEST(TopologyTest, ParsesMountsAndMemberships) {
  const auto mounts = ParseMountInfo(
      "25 24 0:23 / /dev/shm rw - tmpfs tmpfs rw\n"
      "30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
      "31 23 0:27 /docker/a\\040b /sys/fs/cgroup/memory ro master:1 shared:2 - cgroup c rw,memory\n"
      "32 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
      "short line - cgroup\n");
  ASSERT_EQ(mounts.size(), 3u);
  EXPECT_FALSE(mounts[0].version2);
  EXPECT_EQ(mounts[0].mount_point, "/sys/fs/cgroup/cpu,cpuacct");
  EXPECT_EQ(mounts[1].root, "/docker/a b");
  EXPECT_TRUE(mounts[2].version2);

  const auto memberships = ParseProcCgroup("4:memory:/a:b\n3:cpu,cpuacct:/c\n0::/d\nnonsense\n");
  ASSERT_EQ(memberships.size(), 3u);
  EXPECT_EQ(memberships[0].path, "/a:b");
  EXPECT_EQ(memberships[1].controllers, (std::vector<std::string>{"cpu", "cpuacct"}));
  EXPECT_TRUE(memberships[2].version2);
}

TEST(TopologyTest, Version2TakesTheTightestOfTheChain) {
  FakeRoot root;
  root.Write("proc/self/mountinfo", "32 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.Write("proc/self/cgroup", "0::/pod/box\n");
  root.Write("sys/fs/cgroup/pod/cpu.max", "250000 100000\n");
  root.Write("sys/fs/cgroup/pod/memory.max", std::to_string(4 * kGiB));
  root.Write("sys/fs/cgroup/pod/memory.current", std::to_string(3 * kGiB));
  root.Write("sys/fs/cgroup/pod/memory.stat", "anon 5\nactive_file 0\ninactive_file 1073741824\n");
  root.Write("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
  root.Write("sys/fs/cgroup/pod/box/memory.max", std::to_string(3 * kGiB));
  root.Write("sys/fs/cgroup/pod/box/memory.current", "0\n");
  root.Write("sys/fs/cgroup/pod/box/memory.high", "max\n");
  CgroupLimits limits = ReadCgroupLimits(root.path());
  EXPECT_DOUBLE_EQ(limits.cpu_quota.value(), 2.5);
  // The parent has less left (4 - (3 - 1) = 2 GiB) although its limit is higher.
  EXPECT_EQ(limits.memory_left_bytes, 2 * kGiB);
  EXPECT_EQ(limits.memory_limit_bytes, 4 * kGiB);

  root.Write("sys/fs/cgroup/pod/box/memory.high", std::to_string(kGiB));
  limits = ReadCgroupLimits(root.path());
  EXPECT_EQ(limits.memory_left_bytes, kGiB);
}

TEST(TopologyTest, TheGroupWithTheFewestThreadsLeftIsNamed) {
  FakeRoot root;
  root.Write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
  root.Write("proc/self/cgroup", "0::/pod/box\n");
  root.Write("sys/fs/cgroup/pod/pids.max", "100\n");
  root.Write("sys/fs/cgroup/pod/pids.current", "97\n");
  root.Write("sys/fs/cgroup/pod/box/pids.max", "50\n");
  root.Write("sys/fs/cgroup/pod/box/pids.current", "10\n");
  const CgroupLimits limits = ReadCgroupLimits(root.path());
  EXPECT_EQ(limits.threads_limit, 100u);
  EXPECT_EQ(limits.threads_used, 97u);
  const std::string advice = ThreadLimitAdvice(root.path());
  EXPECT_NE(advice.find("allows 100 processes and threads (pids.max) and has 97"),
            std::string::npos)
      << advice;
  EXPECT_NE(advice.find("--threads"), std::string::npos) << advice;

  root.Write("sys/fs/cgroup/pod/pids.max", "max\n");
  EXPECT_EQ(ReadCgroupLimits(root.path()).threads_limit, 50u);
  // The group has room, so it is something else.
  EXPECT_EQ(ThreadLimitAdvice(root.path()).find("pids.max) and has"), std::string::npos);
}

TEST(TopologyTest, Version1WithAContainersMountRoot) {
  FakeRoot root;
  root.Write("proc/self/mountinfo",
             "30 23 0:26 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
             "31 23 0:27 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
  root.Write("proc/self/cgroup", "4:memory:/docker/abc/inner\n3:cpu,cpuacct:/docker/abc\n0::/\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  root.Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", std::to_string(2 * kGiB));
  root.Write("sys/fs/cgroup/memory/inner/memory.usage_in_bytes", std::to_string(kGiB));
  root.Write("sys/fs/cgroup/memory/inner/memory.stat", "cache 1\ntotal_inactive_file 1048576\n");
  const CgroupLimits limits = ReadCgroupLimits(root.path());
  EXPECT_DOUBLE_EQ(limits.cpu_quota.value(), 1.5);
  EXPECT_EQ(limits.memory_left_bytes, kGiB + 1048576);
}

TEST(TopologyTest, NoLimits) {
  FakeRoot root;
  root.Write("proc/self/mountinfo",
             "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
             "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
  root.Write("proc/self/cgroup", "4:memory:/x\n3:cpu:/\n");
  root.Write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  root.Write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CgroupLimits limits = ReadCgroupLimits(root.path());
  EXPECT_FALSE(limits.cpu_quota.has_value());
  EXPECT_FALSE(limits.memory_limit_bytes.has_value());
  FakeRoot nothing;
  limits = ReadCgroupLimits(nothing.path());
  EXPECT_FALSE(limits.cpu_quota.has_value());
  EXPECT_FALSE(limits.memory_left_bytes.has_value());
}

TEST(TopologyTest, ReadsCoresNodesAndMemory) {
  FakeRoot root;
  // Two sockets of two cores with two threads each; the process may not use CPU 7.
  for (int cpu = 0; cpu < 8; ++cpu) WriteCpu(root, cpu, cpu % 2, cpu / 2 % 2);
  root.Write("sys/devices/system/node/online", "0-1\n");
  root.Write("sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
  root.Write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 1024 kB\n");
  root.Write("sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
  root.Write("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 2048 kB\n");
  root.Write("proc/meminfo", "MemTotal: 3072 kB\nMemAvailable: 2000 kB\n");
  const Topology topology = ReadTopology(root.path(), std::vector<int>{6, 5, 4, 3, 2, 1, 0});
  EXPECT_EQ(topology.cpus.size(), 7u);
  EXPECT_EQ(topology.physical_cores(), 4);
  EXPECT_EQ(topology.default_threads(), 4);
  ASSERT_EQ(topology.nodes.size(), 2u);
  EXPECT_EQ(topology.nodes[1].cpus, (std::vector<int>{2, 3, 6}));
  EXPECT_EQ(topology.nodes[1].memory_bytes, 2097152u);
  EXPECT_EQ(topology.cpus[6].node, 1);
  EXPECT_EQ(topology.pin_order(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(topology.usable_memory_bytes(), 2048000u);
  EXPECT_EQ(ChooseNumaPolicy(std::nullopt, topology), NumaPolicy::kSlice);
  EXPECT_EQ(ChooseNumaPolicy(NumaPolicy::kInterleave, topology), NumaPolicy::kInterleave);
  EXPECT_EQ(topology.slice_nodes(), (std::vector<int>{0, 1}));

  // Nodes take turns; CPU 7 is missing on the second, so that the first has the last place.
  const auto cpus_of = [](const ThreadLayout& layout) {
    std::vector<std::vector<int>> cpus;
    for (const ThreadPlace& place : layout.places) cpus.push_back(place.cpus);
    return cpus;
  };
  const ThreadLayout pinned = topology.thread_layout(true, true);
  EXPECT_EQ(pinned.nodes, (std::vector<int>{0, 1}));
  EXPECT_EQ(cpus_of(pinned), (std::vector<std::vector<int>>{{0}, {2}, {1}, {3}, {4}, {6}, {5}}));
  EXPECT_EQ(pinned.places[1].node, 1);
  EXPECT_EQ(pinned.places[6].node, 0);
  const ThreadLayout kept = topology.thread_layout(false, true);
  ASSERT_EQ(kept.places.size(), 7u);
  EXPECT_EQ(kept.places[0].cpus, (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(kept.places[1].cpus, (std::vector<int>{2, 3, 6}));
  // Not sliced: as if there were one node.
  EXPECT_TRUE(topology.thread_layout(false, false).places.empty());
  const ThreadLayout flat = topology.thread_layout(true, false);
  EXPECT_TRUE(flat.nodes.empty());
  EXPECT_EQ(cpus_of(flat).size(), 7u);

  // The process may use CPUs of the second node only: there is nothing to slice over.
  const Topology half = ReadTopology(root.path(), std::vector<int>{2, 3});
  EXPECT_TRUE(half.slice_nodes().empty());
  EXPECT_EQ(ChooseNumaPolicy(std::nullopt, half), NumaPolicy::kInterleave);
  EXPECT_TRUE(half.thread_layout(false, true).nodes.empty());
}

TEST(TopologyTest, PinsSiblingsLast) {
  FakeRoot root;
  for (int cpu = 0; cpu < 4; ++cpu) WriteCpu(root, cpu, cpu / 2, 0);  // siblings are neighbours
  const Topology topology = ReadTopology(root.path(), std::vector<int>{0, 1, 2, 3});
  EXPECT_EQ(topology.pin_order(), (std::vector<int>{0, 2, 1, 3}));
  ASSERT_EQ(topology.nodes.size(), 1u);
  EXPECT_EQ(topology.nodes[0].cpus.size(), 4u);
  EXPECT_EQ(ChooseNumaPolicy(std::nullopt, topology), NumaPolicy::kOff);
}

TEST(TopologyTest, QuotaRoundsUpAndCapsThreads) {
  Topology topology;
  for (int i = 0; i < 8; ++i) topology.cpus.push_back({i, i, 0, 0});
  EXPECT_EQ(topology.default_threads(), 8);
  topology.cgroup.cpu_quota = 2.1;
  EXPECT_EQ(topology.default_threads(), 3);
  topology.cgroup.cpu_quota = 0.2;
  EXPECT_EQ(topology.default_threads(), 1);
  topology.cgroup.cpu_quota = 100;
  EXPECT_EQ(topology.default_threads(), 8);
  topology.cpus.clear();
  EXPECT_EQ(topology.default_threads(), 1);
}

TEST(TopologyTest, CgroupLowersUsableMemory) {
  Topology topology;
  topology.memory_total_bytes = 10 * kGiB;
  EXPECT_EQ(topology.usable_memory_bytes(), 10 * kGiB);
  topology.memory_free_bytes = 8 * kGiB;
  EXPECT_EQ(topology.usable_memory_bytes(), 8 * kGiB);
  topology.cgroup.memory_left_bytes = kGiB;
  EXPECT_EQ(topology.usable_memory_bytes(), kGiB);
}

TEST(TopologyTest, ThisMachineMakesSense) {
  const Topology topology = ReadTopology();
  EXPECT_GE(topology.cpus.size(), 1u);
  EXPECT_GE(topology.default_threads(), 1);
  EXPECT_LE(topology.physical_cores(), static_cast<int>(topology.cpus.size()));
  EXPECT_GT(topology.usable_memory_bytes(), 0u);
  EXPECT_LE(topology.usable_memory_bytes(), topology.memory_total_bytes);
  EXPECT_EQ(topology.pin_order().size(), topology.cpus.size());
}

}  // namespace
}  // namespace moesaic
