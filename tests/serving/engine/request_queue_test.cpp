// Who is next among sequences that wait, and who gets a place in an engine's queue.

#include "serving/engine/request_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "serving/engine/queue_places.h"
#include "tests/core/base/caught.h"
#include "tests/serving/engine/scheduler_rig.h"

namespace moesaic {
namespace {

std::unique_ptr<Sequence> Of(std::string client, RequestId id, int32_t priority = 0,
                             int64_t prompt = 10) {
  auto sequence = MakeSequence(id, prompt, 1);
  sequence->request.client = std::move(client);
  sequence->request.priority = priority;
  return sequence;
}

// Takes the next one and has all of its prompt computed.
RequestId Serve(RequestQueue& queue) {
  const std::unique_ptr<Sequence> next = queue.Take(queue.front());
  queue.Charge(*next, next->prompt_tokens);
  return next->id;
}

std::vector<RequestId> ServeAll(RequestQueue& queue) {
  std::vector<RequestId> ids;
  while (!queue.empty()) ids.push_back(Serve(queue));
  return ids;
}

using Ids = std::vector<RequestId>;

TEST(RequestQueueTest, AClientsRequestsGoAsTheyCame) {
  RequestQueue queue;
  for (RequestId id = 1; id <= 5; ++id) queue.Add(Of("", id, 0, static_cast<int64_t>(9 - id)));
  EXPECT_EQ(queue.size(), 5);
  EXPECT_EQ(queue.Find(3)->id, 3u);
  EXPECT_EQ(queue.Find(6), nullptr);
  EXPECT_EQ(ServeAll(queue), (Ids{1, 2, 3, 4, 5}));
}

TEST(RequestQueueTest, LowerPrioritiesGoFirst) {
  RequestQueue queue;
  queue.Add(Of("a", 1, 5));
  queue.Add(InBackground(Of("a", 2, -9)));
  queue.Add(Of("b", 3, 0));
  queue.Add(Of("a", 4, -1));
  queue.Add(Of("b", 5, 5));
  queue.Add(InBackground(Of("", 6, -10)));
  Ids listed;
  queue.ForEach([&](Sequence& sequence) { listed.push_back(sequence.id); });
  EXPECT_EQ(listed, (Ids{4, 3, 1, 5, 6, 2}));
  // What has run and was preempted comes before all of its rank.
  auto back = queue.Take(*queue.Find(5));
  queue.PutBack(std::move(back));
  EXPECT_EQ(ServeAll(queue), (Ids{4, 3, 5, 1, 6, 2}));
  // Also before one whose client was given less.
  queue.Add(Of("c", 7));
  queue.Add(Of("d", 8, 1));
  queue.Add(Of("c", 9));
  EXPECT_EQ(ServeAll(queue), (Ids{7, 9, 8}));
}

TEST(RequestQueueTest, ClientsTakeTurns) {
  RequestQueue queue;
  for (RequestId id = 1; id <= 4; ++id) queue.Add(Of("a", id));
  for (RequestId id = 5; id <= 6; ++id) queue.Add(Of("b", id));
  queue.Add(Of("c", 7));
  EXPECT_EQ(ServeAll(queue), (Ids{1, 5, 7, 2, 6, 3, 4}));
}

// Turns are of tokens, those of answers too.
TEST(RequestQueueTest, WhoHasHadMoreTokensWaits) {
  RequestQueue queue;
  queue.Add(Of("long", 1, 0, 100));
  queue.Add(Of("long", 2, 0, 100));
  for (RequestId id = 3; id <= 9; ++id) queue.Add(Of("short", id, 0, 40));
  EXPECT_EQ(Serve(queue), 1u);
  EXPECT_EQ(Serve(queue), 3u);
  EXPECT_EQ(Serve(queue), 4u);
  EXPECT_EQ(Serve(queue), 5u);
  EXPECT_EQ(queue.front().id, 2u);
  queue.Charge(*Of("long", 1), 50);  // its answer goes on meanwhile
  EXPECT_EQ(Serve(queue), 6u);
  EXPECT_EQ(Serve(queue), 2u);
  EXPECT_EQ(Serve(queue), 7u);
}

// Neither who comes nor who comes back has a claim to what others were given meanwhile.
TEST(RequestQueueTest, NobodySavesUp) {
  RequestQueue queue;
  for (RequestId id = 1; id <= 12; ++id) queue.Add(Of("a", id, 0, 1000));
  for (int i = 0; i < 6; ++i) Serve(queue);
  queue.Add(Of("b", 20, 0, 1000));
  queue.Add(Of("b", 21, 0, 1000));
  queue.Add(Of("b", 22, 0, 1000));
  const Ids order = ServeAll(queue);
  EXPECT_EQ(order, (Ids{7, 20, 8, 21, 9, 22, 10, 11, 12}));
  // With nobody waiting the one who was served last says how much that is.
  for (RequestId id = 30; id <= 32; ++id) queue.Add(Of("c", id, 0, 600));
  queue.Add(Of("a", 33, 0, 10));  // which has had the last 1000
  EXPECT_EQ(ServeAll(queue), (Ids{30, 31, 33, 32}));
  // Nor is anything kept of a client once all is done.
  queue.Charge(*Of("a", 1), 1'000'000);
  queue.Forget();
  queue.Add(Of("a", 40));
  queue.Add(Of("b", 41));
  EXPECT_EQ(ServeAll(queue), (Ids{40, 41}));
}

TEST(RequestQueueTest, BatchesAreOnNobodysAccount) {
  RequestQueue queue;
  auto line = InBackground(Of("a", 1, 0, 1000));
  queue.Charge(*line, 1000);
  queue.Add(std::move(line));
  queue.Add(Of("b", 2));
  queue.Add(Of("a", 3));
  queue.Add(Of("b", 4));
  EXPECT_EQ(ServeAll(queue), (Ids{2, 3, 4, 1}));
  // Nor is one that waits the measure of who comes.
  queue.Forget();
  queue.Add(InBackground(Of("a", 5)));
  for (RequestId id = 6; id <= 9; ++id) queue.Add(Of("b", id, 0, 100));
  Serve(queue);
  Serve(queue);
  for (RequestId id = 10; id <= 11; ++id) queue.Add(Of("c", id, 0, 100));
  EXPECT_EQ(ServeAll(queue), (Ids{8, 10, 9, 11, 5}));
}

// As long as all have something waiting they have been given as many tokens, but for the longest
// request.
TEST(RequestQueueTest, SharesDifferByARequest) {
  std::mt19937 random(3);
  for (int round = 0; round < 20; ++round) {
    RequestQueue queue;
    std::map<std::string, int64_t> served;
    RequestId id = 0;
    const std::vector<std::string> clients = {"a", "b", "c"};
    const auto add = [&](const std::string& client) {
      const int64_t most = client == "a" ? 400 : 20;
      queue.Add(Of(client, ++id, 0, 1 + static_cast<int64_t>(random()) % most));
    };
    for (const std::string& client : clients) {
      for (int i = 0; i < 3; ++i) add(client);
    }
    for (int step = 0; step < 500; ++step) {
      const std::string client = queue.front().request.client;
      served[client] += queue.front().prompt_tokens;
      Serve(queue);
      add(client);
      for (const std::string& one : clients) {
        for (const std::string& other : clients) ASSERT_LE(served[one] - served[other], 400);
      }
    }
  }
}

TEST(QueuePlacesTest, AClientLeavesSomeToOthers) {
  QueuePlaces places(90);
  for (int i = 0; i < 80; ++i) places.Take("a", 1);
  const Error refused = Caught([&] { places.Take("a", 1); });
  EXPECT_EQ(refused.kind(), ErrorKind::kUnavailable);
  EXPECT_TRUE(Contains(refused, "80 of the 90"));
  for (int i = 0; i < 8; ++i) places.Take("b", 1);
  EXPECT_EQ(Caught([&] { places.Take("a", 1); }).kind(), ErrorKind::kUnavailable);
  places.Take("b", 1);
  places.Take("c", 1);
  EXPECT_TRUE(Contains(Caught([&] { places.Take("d", 1); }), "full (90 of 90)"));
  for (int i = 0; i < 80; ++i) places.GiveBack("a", 1);
  for (int i = 0; i < 71; ++i) places.Take("a", 1);
}

TEST(QueuePlacesTest, NobodyInParticularMayHaveAll) {
  QueuePlaces places(20);
  for (int i = 0; i < 20; ++i) places.Take("", 1);
  EXPECT_TRUE(Contains(Caught([&] { places.Take("", 1); }), "full (20 of 20)"));
  EXPECT_TRUE(Contains(Caught([&] { places.Take("a", 1); }), "full (20 of 20)"));
  places.GiveBack("", 20);
  places.Take("a", 50);  // one place is enough to begin with
  places.GiveBack("a", 50);
  places.Take("a", 1);
}

}  // namespace
}  // namespace moesaic
