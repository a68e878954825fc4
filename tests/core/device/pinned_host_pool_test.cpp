#include "core/device/pinned_host_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/base/topology.h"
#include "core/device/numa_memory.h"

namespace moesaic {
namespace {

// Counts what it has pinned, or refuses.
class FakePinner : public HostPinner {
 public:
  std::optional<Error> Pin(std::span<std::byte> memory) override {
    if (refuse) return Error(ErrorKind::kResourceExhausted, "no more");
    pinned_bytes += memory.size();
    return std::nullopt;
  }
  void Unpin(std::span<std::byte> memory) override { pinned_bytes -= memory.size(); }

  bool refuse = false;
  uint64_t pinned_bytes = 0;
};

TEST(PinnedHostPoolTest, AccountsAndUnpins) {
  FakePinner pinner;
  {
    PinnedHostPool pool(40000, -1, pinner);
    EXPECT_TRUE(pool.pinned());
    EXPECT_FALSE(pool.on_node());
    EXPECT_EQ(pool.capacity_bytes(), 9 * 4096u);
    EXPECT_EQ(pinner.pinned_bytes, pool.capacity_bytes());
    EXPECT_EQ(pool.pinned_bytes(), pool.capacity_bytes());
    const std::optional<HostBuffer> a = pool.Allocate(4097);
    ASSERT_TRUE(a.has_value());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a->data()) % PinnedHostPool::kAlignment, 0u);
    EXPECT_EQ(pool.used_bytes(), 8192u);
    EXPECT_FALSE(pool.Allocate(8 * 4096).has_value());
    EXPECT_TRUE(pool.Allocate(7 * 4096).has_value());
  }
  EXPECT_EQ(pinner.pinned_bytes, 0u);
}

TEST(PinnedHostPoolTest, FallsBackToOrdinaryMemory) {
  FakePinner pinner;
  pinner.refuse = true;
  PinnedHostPool pool(1 << 16, -1, pinner);
  EXPECT_FALSE(pool.pinned());
  EXPECT_STREQ(pool.why_not_pinned()->what(), "no more");
  EXPECT_EQ(pool.pinned_bytes(), 0u);
  const std::optional<HostBuffer> block = pool.Allocate(1 << 16);
  ASSERT_TRUE(block.has_value());
  block->span()[65535] = std::byte{1};  // it is there
}

TEST(PinnedHostPoolTest, NoMemoryAtAll) {
  FakePinner pinner;
  PinnedHostPool pool(0, 0, pinner);
  EXPECT_FALSE(pool.Allocate(1).has_value());
}

TEST(PinnedHostPoolTest, MlockObeysTheLimitOfTheProcess) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit none = before;
  none.rlim_cur = 0;
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0);
  MlockPinner pinner;
  {
    PinnedHostPool pool(1 << 16, -1, pinner);
    if (!pool.pinned()) {  // a privileged process has no limit
      EXPECT_EQ(pool.why_not_pinned()->kind(), ErrorKind::kResourceExhausted);
      EXPECT_NE(std::string(pool.why_not_pinned()->what()).find("ulimit -l"), std::string::npos);
    }
    EXPECT_TRUE(pool.Allocate(1 << 16).has_value());
  }
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  PinnedHostPool small(4096, -1, pinner);
  if (before.rlim_cur >= (1 << 20)) {
    EXPECT_TRUE(small.pinned());
  }
}

TEST(PinnedHostPoolTest, PrefersANodeThatIsThere) {
  MlockPinner pinner;
  const int node = ReadTopology().nodes.front().id;
  PinnedHostPool pool(1 << 16, node, pinner);
  const PinnedHostPool elsewhere(1 << 16, 100000, pinner);
  EXPECT_FALSE(elsewhere.on_node());
  // Without NUMA support in the kernel (or leave to use it) the memory is there all the same.
  std::optional<HostBuffer> block = pool.Allocate(1 << 16);
  ASSERT_TRUE(block.has_value());
  block->span()[0] = std::byte{1};
}

}  // namespace
}  // namespace moesaic
