// Frames of host memory against a list that is kept by hand.
#include "cache/kv_frames.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace moesaic {
namespace {

TEST(KvFramesTest, FreeOnesAreTakenInOrderAndThenTheLeastRecentlyReleased) {
  KvFrames frames(3);
  for (int32_t slot = 10; slot < 13; ++slot) {
    const auto taken = frames.Take(slot);
    ASSERT_TRUE(taken.has_value());
    EXPECT_EQ(taken->frame, slot - 10);
    EXPECT_EQ(taken->left, KvFrames::kNone);
  }
  EXPECT_FALSE(frames.Take(13).has_value());
  frames.Hold(1);
  frames.Release(2);
  frames.Release(1);
  frames.Release(0);
  EXPECT_EQ(frames.available(), 2);  // 1 is held once more
  EXPECT_EQ(frames.kept(), 2);
  const auto taken = frames.Take(13);
  ASSERT_TRUE(taken.has_value());
  EXPECT_EQ(taken->frame, 2);
  EXPECT_EQ(taken->left, 12);
  frames.Release(1);
  frames.Drop(1);
  EXPECT_EQ(frames.Take(14)->frame, 1);  // a free one goes before one that is kept
  EXPECT_EQ(frames.Take(15)->left, 10);
}

TEST(KvFramesTest, ManyMovesAsAListHasThem) {
  constexpr int kFrames = 7;
  std::mt19937 random(5);
  KvFrames frames(kFrames);
  std::vector<int32_t> kept;  // the least recently released first
  std::map<int32_t, int> holds;
  std::map<int32_t, int32_t> slots;  // by frame
  for (int32_t move = 0; move < 5000; ++move) {
    const auto frame = static_cast<int32_t>(random() % kFrames);
    const bool is_kept = std::find(kept.begin(), kept.end(), frame) != kept.end();
    const bool is_held = holds[frame] > 0;
    switch (random() % 4) {
      case 0: {
        const auto taken = frames.Take(move);
        const bool any_free = std::ssize(slots) < kFrames;
        ASSERT_EQ(taken.has_value(), any_free || !kept.empty());
        if (!taken) break;
        ASSERT_EQ(taken->left, any_free ? KvFrames::kNone : slots[kept.front()]);
        if (!any_free) kept.erase(kept.begin());
        slots[taken->frame] = move;
        holds[taken->frame] = 1;
        break;
      }
      case 1:
        if (!is_kept && !is_held) break;
        frames.Hold(frame);
        ++holds[frame];
        std::erase(kept, frame);
        break;
      case 2:
        if (!is_held) break;
        frames.Release(frame);
        if (--holds[frame] == 0) kept.push_back(frame);
        break;
      case 3:
        if (is_held) break;
        frames.Drop(frame);
        std::erase(kept, frame);
        slots.erase(frame);
        break;
    }
    ASSERT_EQ(frames.kept(), std::ssize(kept));
    ASSERT_EQ(frames.available(), kFrames - std::ssize(slots) + std::ssize(kept));
  }
}

}  // namespace
}  // namespace moesaic
