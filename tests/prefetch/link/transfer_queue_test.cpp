#include "prefetch/link/transfer_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace moesaic {
namespace {

using enum TransferClass;

TEST(TransferQueueTest, MovesATransferPacketByPacket) {
  TransferQueue queue(10, 2, 8, 0);
  EXPECT_FALSE(queue.NextPacket(0).has_value());
  queue.Add(3, 2, kOnDemand, 0, 100);
  EXPECT_EQ(queue.state(3), TransferState::kWaiting);
  const auto first = queue.NextPacket(130);
  const auto second = queue.NextPacket(140);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(first->first);
  EXPECT_FALSE(second->first);
  EXPECT_EQ(first->lane, second->lane);
  EXPECT_EQ(first->packet, 0);
  EXPECT_EQ(second->packet, 1);
  EXPECT_FALSE(queue.NextPacket(140).has_value());
  EXPECT_EQ(queue.packets_in_flight(), 2);
  EXPECT_EQ(queue.CompletePacket(3, 1, PacketResult::kOk, 150), TransferState::kMoving);
  EXPECT_EQ(queue.packets_done(3), 1);
  EXPECT_EQ(queue.CompletePacket(3, 0, PacketResult::kOk, 180), TransferState::kDone);
  EXPECT_EQ(queue.size(), 1);
  queue.Remove(3);
  EXPECT_EQ(queue.size(), 0);
  EXPECT_EQ(queue.state(3), TransferState::kNone);
  EXPECT_EQ(queue.counters().waited, 30);
  EXPECT_EQ(queue.counters().moved, 50);
  EXPECT_EQ(queue.counters().done, 1u);
}

// A packet is what it was when it was issued; on demand goes before prefetch.
TEST(TransferQueueTest, BusyTimesByClass) {
  TransferQueue queue(10, 3, 2, 1);
  const auto busy = [&](int64_t now) {
    const TransferCounters counters = queue.CountersAt(now);
    return std::pair(counters.on_demand_busy, counters.prefetch_busy);
  };
  queue.Add(0, 1, kPrefetch, 0, 0);
  EXPECT_EQ(busy(50), std::pair(int64_t{0}, int64_t{0}));
  ASSERT_TRUE(queue.NextPacket(100));
  EXPECT_EQ(busy(110), std::pair(int64_t{0}, int64_t{10}));
  queue.Add(1, 1, kOnDemand, 0, 110);
  ASSERT_TRUE(queue.NextPacket(120));
  EXPECT_EQ(busy(150), std::pair(int64_t{30}, int64_t{20}));
  queue.Update(0, kOnDemand, 0);
  queue.CompletePacket(1, 0, PacketResult::kOk, 160);
  EXPECT_EQ(busy(165), std::pair(int64_t{40}, int64_t{25}));
  queue.CompletePacket(0, 0, PacketResult::kError, 170);
  EXPECT_EQ(busy(500), std::pair(int64_t{40}, int64_t{30}));
  EXPECT_EQ(queue.counters().prefetch_packets_done, 0u);
  ASSERT_TRUE(queue.NextPacket(500));  // again, now on demand
  queue.CompletePacket(0, 0, PacketResult::kOk, 510);
  EXPECT_EQ(busy(600), std::pair(int64_t{50}, int64_t{30}));
  queue.Remove(0);
  queue.Remove(1);
  queue.Add(2, 1, kPrefetch, 0, 600);
  ASSERT_TRUE(queue.NextPacket(600));
  queue.CompletePacket(2, 0, PacketResult::kOk, 601);
  EXPECT_EQ(queue.counters().packets_done, 3u);
  EXPECT_EQ(queue.counters().prefetch_packets_done, 1u);
}

TEST(TransferQueueTest, NothingToReadIsStillOnePacket) {
  TransferQueue queue(4, 1, 1, 0);
  queue.Add(0, 0, kOnDemand, 0, 0);
  ASSERT_TRUE(queue.NextPacket(0).has_value());
  EXPECT_EQ(queue.CompletePacket(0, 0, PacketResult::kOk, 0), TransferState::kDone);
}

// The experts of the packets in the order in which they are issued; each is completed at once.
std::vector<ExpertIndex> Drain(TransferQueue& queue) {
  std::vector<ExpertIndex> order;
  while (const auto packet = queue.NextPacket(0)) {
    order.push_back(packet->expert);
    if (queue.CompletePacket(packet->expert, packet->packet, PacketResult::kOk, 0) ==
        TransferState::kDone) {
      queue.Remove(packet->expert);
    }
  }
  return order;
}

TEST(TransferQueueTest, OnDemandThenPriorityThenAge) {
  TransferQueue queue(10, 4, 2, 0);
  queue.Add(0, 1, kPrefetch, 0.5f, 0);
  queue.Add(1, 1, kPrefetch, 0.9f, 0);
  queue.Add(2, 1, kOnDemand, 0, 0);
  queue.Add(3, 1, kPrefetch, 0.5f, 0);
  queue.Add(4, 1, kOnDemand, 0, 0);
  queue.Add(5, 2, kOnDemand, 1, 0);
  EXPECT_EQ(Drain(queue), (std::vector<ExpertIndex>{5, 5, 2, 4, 1, 0, 3}));
}

TEST(TransferQueueTest, UpdateReorders) {
  TransferQueue queue(10, 4, 2, 0);
  for (ExpertIndex e = 0; e < 6; ++e) queue.Add(e, 1, kPrefetch, 0.1f * static_cast<float>(e), 0);
  queue.Update(0, kPrefetch, 10);
  queue.Update(5, kPrefetch, 0.05f);
  queue.Update(2, kOnDemand, 0);
  EXPECT_EQ(Drain(queue), (std::vector<ExpertIndex>{2, 0, 4, 3, 1, 5}));
}

// The last of a queue takes the place of one that leaves, and is not always behind those above it.
TEST(TransferQueueTest, WhoTakesAPlaceMayStandBeforeOthers) {
  TransferQueue queue(7, 4, 2, 0);
  const std::vector<float> priorities = {0, 2, 6, 1, 3, 5, 4};
  for (ExpertIndex e = 0; e < 7; ++e) {
    queue.Add(e, 1, kPrefetch, priorities[static_cast<size_t>(e)], 0);
  }
  EXPECT_EQ(queue.Cancel(0), TransferState::kCancelled);
  queue.Remove(0);
  EXPECT_EQ(Drain(queue), (std::vector<ExpertIndex>{2, 5, 6, 4, 1, 3}));
}

TEST(TransferQueueTest, AnUrgentTransferOvertakesAndProgressIsKept) {
  TransferQueue queue(10, 2, 4, 0);
  queue.Add(0, 4, kPrefetch, 0.9f, 0);
  const auto a = queue.NextPacket(0);
  ASSERT_EQ(a->expert, 0);
  queue.CompletePacket(0, a->packet, PacketResult::kOk, 0);
  queue.Add(1, 2, kOnDemand, 0, 0);
  EXPECT_EQ(Drain(queue), (std::vector<ExpertIndex>{1, 1, 0, 0, 0}));  // not four again
}

TEST(TransferQueueTest, PrefetchesLeaveALaneForOnDemand) {
  TransferQueue queue(10, 3, 4, 0);
  for (ExpertIndex e = 0; e < 5; ++e) queue.Add(e, 1, kPrefetch, 1, 0);
  EXPECT_TRUE(queue.NextPacket(0).has_value());
  EXPECT_TRUE(queue.NextPacket(0).has_value());
  EXPECT_FALSE(queue.NextPacket(0).has_value());
  queue.Add(9, 1, kOnDemand, 0, 0);
  EXPECT_EQ(queue.NextPacket(0)->expert, 9);
}

TEST(TransferQueueTest, ALoneLaneServesPrefetchesToo) {
  TransferQueue queue(10, 1, 4, 0);
  queue.Add(0, 1, kPrefetch, 1, 0);
  EXPECT_EQ(Drain(queue), (std::vector<ExpertIndex>{0}));
}

TEST(TransferQueueTest, ALaneIsHeldUntilRemove) {
  TransferQueue queue(10, 1, 4, 0);
  queue.Add(0, 1, kOnDemand, 0, 0);
  queue.Add(1, 1, kOnDemand, 0, 0);
  const auto packet = queue.NextPacket(0);
  queue.CompletePacket(0, packet->packet, PacketResult::kOk, 0);
  EXPECT_FALSE(queue.NextPacket(0).has_value());  // its bytes are still in the staging buffer
  queue.Remove(0);
  EXPECT_EQ(queue.NextPacket(0)->expert, 1);
}

TEST(TransferQueueTest, FailedPacketsAreTriedAgain) {
  TransferQueue queue(4, 2, 4, 2);
  queue.Add(0, 2, kOnDemand, 0, 0);
  for (int failure = 0; failure < 2; ++failure) {
    const auto packet = queue.NextPacket(0);
    ASSERT_TRUE(packet.has_value());
    EXPECT_EQ(packet->packet, 0);
    EXPECT_EQ(queue.CompletePacket(0, 0, PacketResult::kError, 0), TransferState::kMoving);
  }
  EXPECT_EQ(Drain(queue).size(), 2u);
  EXPECT_EQ(queue.counters().packets_failed, 2u);
  EXPECT_EQ(queue.counters().packets_issued, 4u);
  EXPECT_EQ(queue.counters().packets_done, 2u);
  EXPECT_EQ(queue.counters().failed, 0u);
}

TEST(TransferQueueTest, GivesUpAfterTheLastRetryWhenNothingIsInFlight) {
  TransferQueue queue(4, 2, 4, 1);
  queue.Add(0, 3, kOnDemand, 0, 0);
  queue.NextPacket(0);
  queue.NextPacket(0);
  EXPECT_EQ(queue.CompletePacket(0, 0, PacketResult::kError, 0), TransferState::kMoving);
  EXPECT_EQ(queue.NextPacket(0)->packet, 0);  // the retry comes before the third packet
  EXPECT_EQ(queue.CompletePacket(0, 0, PacketResult::kError, 0), TransferState::kMoving);
  EXPECT_FALSE(queue.NextPacket(0).has_value());  // hopeless: no more of it
  EXPECT_EQ(queue.CompletePacket(0, 1, PacketResult::kOk, 0), TransferState::kFailed);
  EXPECT_EQ(queue.counters().failed, 1u);
  queue.Remove(0);
  queue.Add(0, 1, kOnDemand, 0, 0);  // a fresh start
  EXPECT_EQ(Drain(queue).size(), 1u);
}

TEST(TransferQueueTest, HopelessIsNotTriedAgain) {
  TransferQueue queue(4, 2, 4, 5);
  queue.Add(0, 3, kOnDemand, 0, 0);
  queue.NextPacket(0);
  EXPECT_EQ(queue.CompletePacket(0, 0, PacketResult::kHopeless, 0), TransferState::kFailed);
}

TEST(TransferQueueTest, CancelBeforeTheStartIsImmediate) {
  TransferQueue queue(4, 2, 4, 0);
  queue.Add(0, 3, kPrefetch, 0, 0);
  EXPECT_EQ(queue.Cancel(0), TransferState::kCancelled);
  EXPECT_FALSE(queue.NextPacket(0).has_value());
  queue.Remove(0);
  EXPECT_EQ(queue.counters().cancelled, 1u);
}

TEST(TransferQueueTest, CancelWaitsForThePacketsInFlight) {
  TransferQueue queue(4, 2, 4, 0);
  queue.Add(0, 3, kPrefetch, 0, 0);
  queue.NextPacket(0);
  EXPECT_EQ(queue.Cancel(0), TransferState::kMoving);
  EXPECT_TRUE(queue.cancelling(0));
  EXPECT_FALSE(queue.NextPacket(0).has_value());
  EXPECT_EQ(queue.CompletePacket(0, 0, PacketResult::kOk, 0), TransferState::kCancelled);
  queue.Remove(0);
}

TEST(TransferQueueTest, ACancelThatComesTooLateIsDone) {
  TransferQueue queue(4, 2, 4, 0);
  queue.Add(0, 1, kPrefetch, 0, 0);
  queue.NextPacket(0);
  queue.Cancel(0);
  EXPECT_EQ(queue.CompletePacket(0, 0, PacketResult::kOk, 0), TransferState::kDone);
  EXPECT_EQ(queue.counters().cancelled, 0u);
}

TEST(TransferQueueTest, OnDemandRevivesWhatIsBeingCancelled) {
  TransferQueue queue(4, 2, 4, 0);
  queue.Add(0, 3, kPrefetch, 0, 0);
  queue.NextPacket(0);
  queue.NextPacket(0);
  queue.Cancel(0);
  queue.Update(0, kPrefetch, 5);  // a prediction is no reason to
  EXPECT_TRUE(queue.cancelling(0));
  queue.Update(0, kOnDemand, 0);
  EXPECT_FALSE(queue.cancelling(0));
  EXPECT_EQ(queue.NextPacket(0)->packet, 2);
  queue.CompletePacket(0, 0, PacketResult::kOk, 0);
  queue.CompletePacket(0, 2, PacketResult::kOk, 0);
  EXPECT_EQ(queue.CompletePacket(0, 1, PacketResult::kOk, 0), TransferState::kDone);
}

TEST(TransferQueueTest, DemotionKeepsProgress) {
  TransferQueue queue(4, 2, 4, 0);
  queue.Add(0, 3, kOnDemand, 0, 0);
  queue.NextPacket(0);
  queue.Update(0, kPrefetch, 0.1f);
  queue.Add(1, 1, kPrefetch, 0.5f, 0);
  queue.CompletePacket(0, 0, PacketResult::kOk, 0);
  // The better prefetch would go first, but prefetches leave the last lane free.
  EXPECT_EQ(Drain(queue), (std::vector<ExpertIndex>{0, 0, 1}));
}

TEST(TransferQueueDeathTest, NothingIsCountedTwice) {
  TransferQueue queue(4, 2, 4, 0);
  queue.Add(0, 2, kOnDemand, 0, 0);
  EXPECT_DEATH(queue.Add(0, 2, kOnDemand, 0, 0), "");
  EXPECT_DEATH(queue.CompletePacket(0, 0, PacketResult::kOk, 0), "");  // not issued
  queue.NextPacket(0);
  queue.CompletePacket(0, 0, PacketResult::kOk, 0);
  EXPECT_DEATH(queue.CompletePacket(0, 0, PacketResult::kOk, 0), "");  // twice
  EXPECT_DEATH(queue.Remove(0), "");                                   // still moving
  EXPECT_DEATH(queue.Update(1, kOnDemand, 0), "");
  EXPECT_DEATH(queue.Cancel(1), "");
  EXPECT_DEATH(queue.Add(1, 5, kOnDemand, 0, 0), "");  // more than max_packets
  EXPECT_DEATH(queue.Add(1, 1, kOnDemand, std::numeric_limits<float>::quiet_NaN(), 0), "");
}

// Random schedules: every packet of every finished transfer arrived exactly once, the order is that
// of a linear search, and the counters add up.
TEST(TransferQueuePropertyTest, RandomSchedules) {
  struct Model {
    TransferClass kind = kOnDemand;
    float priority = 0;
    uint64_t age = 0;
    int packets = 0;
    std::vector<int> state;  // 0 pending, 1 in flight, 2 done
    std::vector<int> failures;
    bool started = false;
    bool cancelling = false;
    bool failing = false;
    int Count(int wanted) const {
      return static_cast<int>(std::count(state.begin(), state.end(), wanted));
    }
    bool pending() const { return !cancelling && !failing && Count(0) > 0; }
  };
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int schedule = 0; schedule < 2000; ++schedule) {
    const int lanes = 1 + static_cast<int>(random() % 4);
    const int retries = static_cast<int>(random() % 3);
    TransferQueue queue(12, lanes, 5, retries);
    std::map<ExpertIndex, Model> model;
    std::vector<std::pair<ExpertIndex, int>> in_flight;
    uint64_t age = 0;
    uint64_t finished = 0;
    for (int step = 0; step < 120; ++step) {
      const auto expert = static_cast<ExpertIndex>(random() % 12);
      const TransferClass kind = random() % 2 == 0 ? kOnDemand : kPrefetch;
      const auto priority = static_cast<float>(random() % 4);
      const auto it = model.find(expert);
      const auto end = [&](ExpertIndex e, TransferState state) {
        const Model& m = model[e];
        if (m.Count(1) > 0 || state == TransferState::kMoving) {
          ASSERT_EQ(state, TransferState::kMoving);
          return;
        }
        ASSERT_EQ(state == TransferState::kDone, m.Count(2) == m.packets);
        if (state == TransferState::kFailed) {
          ASSERT_TRUE(m.failing);
        }
        queue.Remove(e);
        model.erase(e);
        ++finished;
      };
      switch (random() % 6) {
        case 0:
          if (it != model.end()) break;
          {
            Model m;
            m.kind = kind;
            m.priority = priority;
            m.age = ++age;
            m.packets = 1 + static_cast<int>(random() % 5);
            m.state.assign(static_cast<size_t>(m.packets), 0);
            m.failures.assign(static_cast<size_t>(m.packets), 0);
            queue.Add(expert, m.packets, kind, priority, step);
            model[expert] = m;
          }
          break;
        case 1:
          if (it == model.end()) break;
          queue.Update(expert, kind, priority);
          it->second.kind = kind;
          it->second.priority = priority;
          if (kind == kOnDemand) it->second.cancelling = false;
          break;
        case 2: {
          if (it == model.end() || random() % 3 != 0) break;
          it->second.cancelling = true;
          const TransferState state = queue.Cancel(expert);
          ASSERT_EQ(state == TransferState::kCancelled, it->second.Count(1) == 0);
          if (state == TransferState::kCancelled) {
            queue.Remove(expert);
            model.erase(expert);
            ++finished;
          }
          break;
        }
        case 3:
        case 4: {
          int free_lanes = lanes;
          for (const auto& [e, m] : model) free_lanes -= m.started ? 1 : 0;
          std::optional<ExpertIndex> best;
          for (const auto& [e, m] : model) {
            if (!m.pending()) continue;
            const int needed = m.kind == kPrefetch && lanes > 1 ? 2 : 1;
            // A waiting transfer stands behind better waiting ones of its queue.
            if (!m.started && free_lanes < needed) continue;
            const auto before = [](const Model& a, const Model& b) {
              if (a.kind != b.kind) return a.kind == kOnDemand;
              if (a.priority != b.priority) return a.priority > b.priority;
              return a.age < b.age;
            };
            if (!best || before(m, model[*best])) best = e;
          }
          const auto packet = queue.NextPacket(step);
          ASSERT_EQ(packet.has_value(), best.has_value());
          if (!packet) break;
          ASSERT_EQ(packet->expert, *best);
          Model& m = model[*best];
          ASSERT_EQ(packet->first, !m.started);
          ASSERT_EQ(m.state[static_cast<size_t>(packet->packet)], 0);
          m.started = true;
          m.state[static_cast<size_t>(packet->packet)] = 1;
          in_flight.emplace_back(*best, packet->packet);
          break;
        }
        default: {
          if (in_flight.empty()) break;
          std::swap(in_flight[random() % in_flight.size()], in_flight.back());
          const auto [e, p] = in_flight.back();
          in_flight.pop_back();
          Model& m = model[e];
          const uint64_t roll = random() % 8;
          const PacketResult result = roll == 0                        ? PacketResult::kError
                                      : roll == 1 && random() % 4 == 0 ? PacketResult::kHopeless
                                                                       : PacketResult::kOk;
          auto& failures = m.failures[static_cast<size_t>(p)];
          m.state[static_cast<size_t>(p)] = result == PacketResult::kOk ? 2 : 0;
          if (result == PacketResult::kHopeless ||
              (result == PacketResult::kError && failures++ >= retries)) {
            m.failing = true;
          }
          end(e, queue.CompletePacket(e, p, result, step));
        }
      }
      ASSERT_EQ(queue.size(), static_cast<int64_t>(model.size()));
      ASSERT_EQ(queue.packets_in_flight(), static_cast<int64_t>(in_flight.size()));
    }
    const TransferCounters& c = queue.counters();
    EXPECT_EQ(c.done + c.failed + c.cancelled, finished);
    EXPECT_EQ(c.packets_issued, c.packets_done + c.packets_failed + in_flight.size());
  }
}

}  // namespace
}  // namespace moesaic
