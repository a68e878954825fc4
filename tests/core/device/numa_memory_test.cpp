#include "core/device/numa_memory.h"

#include <gtest/gtest.h>
#include <numaif.h>
#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <span>
#include <thread>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/topology.h"

namespace moesaic {
namespace {

int AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  return CPU_COUNT(&set);
}

TEST(NumaMemoryTest, ThreadsRunOnNodesThatAreThere) {
  std::thread([] {
    const int before = AllowedCpus();
    for (const int node : {-1, 4095}) {
      EXPECT_FALSE(RunOnNumaNode(node));
      EXPECT_EQ(AllowedCpus(), before);
    }
    const Topology topology = ReadTopology();
    if (topology.nodes.empty()) return;
    const NumaNode& node = topology.nodes.front();
    if (RunOnNumaNode(node.id)) {
      EXPECT_GE(AllowedCpus(), 1);
      EXPECT_LE(AllowedCpus(), static_cast<int>(node.cpus.size()));
    }
  }).join();
}

TEST(NumaMemoryTest, StretchesInWholePages) {
  // A page goes to who has more of it; the middle one has none; neighbours on a node are joined.
  const std::vector<NodeStretch> stretches = {
      {0, 5000, 0}, {5000, 6000, 2}, {6000, 14000, 1}, {14000, 20480, 1}, {24576, 32768, 0}};
  EXPECT_EQ(WholePages(stretches, 4096),
            (std::vector<NodeStretch>{{0, 4096, 0}, {4096, 20480, 1}, {24576, 32768, 0}}));
  EXPECT_TRUE(WholePages({}, 4096).empty());
  const NodeStretch piece[] = {{0, 100, 0}, {100, 300, 1}};
  EXPECT_EQ(
      RepeatStretches(piece, 4096, 2),
      (std::vector<NodeStretch>{{0, 100, 0}, {100, 300, 1}, {4096, 4196, 0}, {4196, 4396, 1}}));
}

TEST(NumaMemoryTest, HugePagesOnlyWhereSlicesAreLong) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const NodeStretch long_ones[] = {{0, 16 * kMiB, 0}, {16 * kMiB, 40 * kMiB, 1}};
  const NodeStretch one_short[] = {{0, 16 * kMiB, 0}, {16 * kMiB, 17 * kMiB, 1}};
  EXPECT_TRUE(WorthHugePages(long_ones));
  EXPECT_FALSE(WorthHugePages(one_short));
}

// The kernel is asked where the pages are: those of the stretches on their node, the others not
// there at all.
TEST(NumaMemoryTest, TakesThePagesOfItsStretchesAndNoOthers) {
  constexpr uint64_t kPage = AlignedBuffer::kPageBytes;
  const int node = ReadTopology().nodes.front().id;
  // Not of the allocator, which may have had the pages before.
  void* const at =
      mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(at), 64 * kPage);
  const NodeStretch stretches[] = {
      {0, 8 * kPage, node}, {16 * kPage, 20 * kPage, 4095}, {32 * kPage, 48 * kPage, node}};
  EXPECT_FALSE(TakePagesFromNodes(memory, stretches));  // no machine has a node 4095
  std::vector<void*> pages;
  for (uint64_t p = 0; p < 64; ++p) pages.push_back(memory.data() + p * kPage);
  std::vector<int> where(pages.size(), 12345);
  const auto told = move_pages(0, pages.size(), pages.data(), nullptr, where.data(), 0);
  munmap(at, memory.size());
  if (told != 0) GTEST_SKIP() << "this kernel does not tell where pages are";
  for (size_t p = 0; p < 64; ++p) {
    const bool taken = p < 8 || (p >= 32 && p < 48);
    EXPECT_EQ(where[p], taken ? node : -ENOENT) << p;
  }
}

TEST(NumaMemoryTest, TakesWholeArenas) {
  const int node = ReadTopology().nodes.front().id;
  AlignedBuffer memory(size_t{10} << 20);
  const NodeStretch slices[] = {{0, 3000, node}, {3000, 8000, node}};
  const std::vector<NodeStretch> slots = RepeatStretches(slices, 8192, 1280);
  if (!TakePagesFromNodes(memory.span(), slots)) {
    GTEST_SKIP() << "this kernel has no NUMA nodes";
  }
  std::vector<void*> pages;
  for (size_t at = 0; at < memory.bytes(); at += 4096) pages.push_back(memory.data() + at);
  std::vector<int> where(pages.size(), 12345);
  if (move_pages(0, pages.size(), pages.data(), nullptr, where.data(), 0) != 0) {
    GTEST_SKIP() << "this kernel does not tell where pages are";
  }
  for (size_t p = 0; p < pages.size(); ++p) ASSERT_EQ(where[p], node) << p;
}

}  // namespace
}  // namespace moesaic
