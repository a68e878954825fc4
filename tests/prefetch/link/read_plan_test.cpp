#include "prefetch/link/read_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace moesaic {
namespace {

TEST(ReadPlanTest, RoundsOutToPages) {
  ReadPlan plan;
  const std::vector<Extent> extents = {{.file = 3, .offset = 5000, .bytes = 100}};
  plan.Build(extents, true, 8192);
  ASSERT_EQ(plan.packets(), 1);
  const ReadPlan::Packet packet = plan.PacketAt(0);
  EXPECT_EQ(packet.file, 3);
  EXPECT_EQ(packet.offset, 4096u);
  EXPECT_EQ(packet.bytes, 4096u);
  EXPECT_EQ(packet.needed_bytes, 1004u);
  EXPECT_EQ(plan.PieceOffset(0), 904u);
  EXPECT_EQ(plan.buffer_bytes(), 4096u);
}

TEST(ReadPlanTest, ReadsExactlyWhereNoAlignmentIsNeeded) {
  ReadPlan plan;
  const std::vector<Extent> extents = {{0, 5000, 100}};
  plan.Build(extents, false, 8192);
  const ReadPlan::Packet packet = plan.PacketAt(0);
  EXPECT_EQ(packet.offset, 5000u);
  EXPECT_EQ(packet.bytes, 100u);
  EXPECT_EQ(plan.PieceOffset(0), 0u);
}

TEST(ReadPlanTest, RangesThatMeetAreReadOnce) {
  ReadPlan plan;
  // Out of order in the file; the first two share a page, the third is in another file, the fourth
  // begins far behind.
  const std::vector<Extent> extents = {
      {0, 6000, 3000}, {0, 100, 5900}, {1, 9000, 10}, {0, 50000, 1}};
  plan.Build(extents, true, 4096);
  EXPECT_EQ(plan.packets(), 3 + 1 + 1);
  EXPECT_EQ(plan.PieceOffset(1), 100u);
  EXPECT_EQ(plan.PieceOffset(0), 6000u);
}

TEST(ReadPlanTest, AdjacentAlignedExtentsAreOneRange) {
  ReadPlan plan;
  const std::vector<Extent> extents = {{0, 4096, 4096}, {0, 8192, 4096}};
  plan.Build(extents, true, 1 << 20);
  EXPECT_EQ(plan.packets(), 1);
  EXPECT_EQ(plan.PacketAt(0).bytes, 8192u);
}

TEST(ReadPlanTest, NothingToRead) {
  ReadPlan plan;
  plan.Build({}, true, 4096);
  EXPECT_EQ(plan.packets(), 0);
  EXPECT_EQ(plan.buffer_bytes(), 0u);
}

// Whatever the extents: executing the packets puts each extent's bytes where PieceOffset says, no
// packet writes where another does, and needed_bytes cover exactly what the extents need.
TEST(ReadPlanPropertyTest, RandomExtents) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  ReadPlan plan;
  for (int round = 0; round < 400; ++round) {
    std::vector<Extent> extents;
    const size_t count = 1 + random() % 6;
    for (size_t i = 0; i < count; ++i) {
      extents.push_back(
          {static_cast<int32_t>(random() % 2), random() % 60000, 1 + random() % 20000});
    }
    const bool aligned = random() % 2 == 0;
    const auto packet_bytes = static_cast<uint32_t>(4096 * (1 + random() % 3));
    plan.Build(extents, aligned, packet_bytes);
    // The buffer as (file, offset) per byte.
    std::vector<std::pair<int32_t, uint64_t>> buffer(plan.buffer_bytes(), {-1, 0});
    std::vector<bool> needed(plan.buffer_bytes(), false);
    for (int p = 0; p < plan.packets(); ++p) {
      const ReadPlan::Packet packet = plan.PacketAt(p);
      ASSERT_GT(packet.bytes, 0u);
      ASSERT_LE(packet.bytes, packet_bytes);
      ASSERT_GT(packet.needed_bytes, 0u);
      ASSERT_LE(packet.needed_bytes, packet.bytes);
      if (aligned) {
        ASSERT_EQ(packet.offset % 4096, 0u);
        ASSERT_EQ(packet.bytes % 4096, 0u);
        ASSERT_EQ(packet.buffer_offset % 4096, 0u);
      }
      for (uint64_t b = 0; b < packet.bytes; ++b) {
        ASSERT_LT(packet.buffer_offset + b, buffer.size());
        ASSERT_EQ(buffer[packet.buffer_offset + b].first, -1) << "written twice";
        buffer[packet.buffer_offset + b] = {packet.file, packet.offset + b};
        if (b < packet.needed_bytes) needed[packet.buffer_offset + b] = true;
      }
    }
    for (size_t i = 0; i < count; ++i) {
      for (uint64_t b = 0; b < extents[i].bytes; ++b) {
        const uint64_t at = plan.PieceOffset(i) + b;
        ASSERT_EQ(buffer[at].first, extents[i].file);
        ASSERT_EQ(buffer[at].second, extents[i].offset + b);
        ASSERT_TRUE(needed[at]);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
