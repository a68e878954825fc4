// ExpertCache and TransferQueue as one link drives them together, several links side by side,
// through random schedules: layers that want experts, prefetches, cancellations, packets that come
// back late, out of order or failed. Every answer is compared with a model that knows neither
// class: it keeps a record per expert and searches them all.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/expert_cache.h"
#include "prefetch/link/expert_placement.h"
#include "prefetch/link/transfer_queue.h"

namespace moesaic {
namespace {

constexpr uint64_t kSlotBytes = 1000;
using enum TransferClass;

struct LinkShape {
  int64_t slots = 1;
  int lanes = 1;
  int depth = 1;  // packets in flight
  int max_packets = 1;
  int retries = 0;
};

// What the model knows of an expert.
struct ModelExpert {
  enum class Where { kAbsent, kOnItsWay, kResident } where = Where::kAbsent;
  int pins = 0;
  int wants = 0;
  uint64_t last_use = 0;
  // While on its way:
  TransferClass kind = kOnDemand;
  float priority = 0;
  uint64_t age = 0;
  std::vector<char> packets;  // p: to issue, f: in flight, d: arrived
  std::vector<int> failures;
  bool has_lane = false;
  bool cancelling = false;
  bool failing = false;

  int64_t Count(char state) const { return std::count(packets.begin(), packets.end(), state); }
  bool CanIssue() const { return !cancelling && !failing && Count('p') > 0; }
  bool Evictable() const { return where == Where::kResident && pins == 0 && wants == 0; }
};
using Where = ModelExpert::Where;

// One link: the real state machines, the model, and the rules by which the owner of a link uses
// them.
class Link {
 public:
  Link(int64_t experts_total, const LinkShape& shape)
      : shape_(shape),
        cache_(experts_total, shape.slots, kSlotBytes, MakeLruPolicy(experts_total)),
        queue_(experts_total, shape.lanes, shape.max_packets, shape.retries) {}

  // The running layer needs it.
  void Want(ExpertIndex expert) {
    ModelExpert& model = experts_[expert];
    cache_.Want(expert);
    ++model.wants;
    if (model.where == Where::kAbsent) missing_.push_back(expert);
    if (model.where == Where::kOnItsWay) {
      queue_.Update(expert, kOnDemand, 0);
      model.kind = kOnDemand;
      model.priority = 0;
      model.cancelling = false;
    }
    StartMissing();
  }

  void Prefetch(ExpertIndex expert, float priority, bool may_evict) {
    ModelExpert& model = experts_[expert];
    if (model.where == Where::kOnItsWay && model.kind == kPrefetch) {
      queue_.Update(expert, kPrefetch, priority);
      model.priority = priority;
    }
    if (model.where != Where::kAbsent || model.wants > 0) return;
    Start(expert, kPrefetch, priority, may_evict);
  }

  void CancelPrefetch(ExpertIndex expert) {
    ModelExpert& model = experts_[expert];
    if (model.where != Where::kOnItsWay || model.kind != kPrefetch) return;
    const TransferState state = queue_.Cancel(expert);
    model.cancelling = true;
    EXPECT_EQ(state == TransferState::kCancelled, model.Count('f') == 0);
    if (state == TransferState::kCancelled) End(expert, state);
  }

  // The link takes its next packet, if it may have one more in flight.
  bool Issue() {
    if (static_cast<int>(in_flight_.size()) == shape_.depth) return false;
    const std::optional<ExpertIndex> expected = NextOnPaper();
    const std::optional<TransferQueue::Packet> packet = queue_.NextPacket(++now_);
    EXPECT_EQ(packet.has_value(), expected.has_value());
    if (!packet || !expected) return false;
    EXPECT_EQ(packet->expert, *expected);
    ModelExpert& model = experts_[packet->expert];
    EXPECT_EQ(packet->first, !model.has_lane);
    // What an urgent transfer waits for is in flight already: while one can go, no prefetch does.
    if (model.kind == kPrefetch) {
      for (const auto& [other, m] : experts_) {
        const bool could_go = m.where == Where::kOnItsWay && m.kind == kOnDemand && m.CanIssue() &&
                              (m.has_lane || LanesTaken() < shape_.lanes);
        EXPECT_FALSE(could_go) << "prefetch " << packet->expert << " goes before " << other;
      }
    }
    model.has_lane = true;
    char& state = model.packets.at(static_cast<size_t>(packet->packet));
    EXPECT_EQ(state, 'p') << "a packet that has arrived, or is about to, is moved again";
    state = 'f';
    in_flight_.emplace_back(packet->expert, packet->packet);
    return true;
  }

  void CompleteOne(size_t which, PacketResult result) {
    std::swap(in_flight_.at(which), in_flight_.back());
    const auto [expert, packet] = in_flight_.back();
    in_flight_.pop_back();
    ModelExpert& model = experts_[expert];
    const auto p = static_cast<size_t>(packet);
    model.packets.at(p) = result == PacketResult::kOk ? 'd' : 'p';
    if (result == PacketResult::kHopeless ||
        (result == PacketResult::kError && ++model.failures.at(p) > shape_.retries)) {
      model.failing = true;
    }
    const bool all_there = model.Count('d') == static_cast<int64_t>(model.packets.size());
    const bool over = model.Count('f') == 0 && (all_there || model.failing || model.cancelling);
    const TransferState state = queue_.CompletePacket(expert, packet, result, ++now_);
    EXPECT_EQ(state == TransferState::kMoving, !over);
    if (!over) {
      EXPECT_EQ(queue_.packets_done(expert), model.Count('d'));  // progress is kept
      return;
    }
    EXPECT_EQ(state == TransferState::kDone, all_there);
    if (!all_there) {
      EXPECT_EQ(state == TransferState::kFailed, model.failing);
    }
    End(expert, state);
  }

  // Hands a wanted resident to the layer; false when it is not there.
  bool Take(ExpertIndex expert) {
    ModelExpert& model = experts_[expert];
    const bool there = model.where == Where::kResident;
    EXPECT_EQ(cache_.Pin(expert, ++now_).has_value(), there);
    if (!there) return false;
    ++model.pins;
    model.last_use = ++uses_;
    cache_.Unwant(expert);
    --model.wants;
    return true;
  }

  void Release(ExpertIndex expert) {
    cache_.Unpin(expert);
    --experts_[expert].pins;
    StartMissing();
  }

  // Wanted experts whose copy failed for good since the last call: they go to the host.
  std::vector<ExpertIndex> TakeFailed() { return std::exchange(failed_, {}); }

  size_t in_flight() const { return in_flight_.size(); }
  const TransferCounters& counters() const { return queue_.counters(); }
  int64_t unfinished() const { return queue_.size(); }

  void CheckInvariants() const {
    int64_t resident = 0;
    int64_t on_its_way = 0;
    int64_t pinned = 0;
    std::set<ExpertCache::Slot> slots;
    for (const auto& [expert, model] : experts_) {
      const ExpertCache::State state = cache_.state(expert);
      ASSERT_EQ(state == ExpertCache::State::kResident, model.where == Where::kResident);
      ASSERT_EQ(state == ExpertCache::State::kLoading, model.where == Where::kOnItsWay);
      // Never both in the cache and on the link.
      ASSERT_EQ(queue_.state(expert) != TransferState::kNone, model.where == Where::kOnItsWay);
      ASSERT_EQ(cache_.pins(expert), model.pins);
      ASSERT_EQ(cache_.wanted(expert), model.wants > 0);
      if (model.pins > 0) {
        ASSERT_EQ(model.where, Where::kResident);
      }
      if (model.where != Where::kAbsent) {
        ASSERT_TRUE(slots.insert(cache_.slot(expert)).second) << "two experts in one slot";
      }
      resident += model.where == Where::kResident ? 1 : 0;
      on_its_way += model.where == Where::kOnItsWay ? 1 : 0;
      pinned += model.pins > 0 ? 1 : 0;
    }
    ASSERT_EQ(cache_.resident(), resident);
    ASSERT_EQ(cache_.loading(), on_its_way);
    ASSERT_EQ(queue_.size(), on_its_way);
    ASSERT_EQ(queue_.packets_in_flight(), static_cast<int64_t>(in_flight_.size()));
    ASSERT_EQ(cache_.used_bytes(), static_cast<uint64_t>(resident + on_its_way) * kSlotBytes);
    ASSERT_LE(cache_.used_bytes(), static_cast<uint64_t>(shape_.slots) * kSlotBytes);
    ASSERT_EQ(cache_.pinned_bytes(), static_cast<uint64_t>(pinned) * kSlotBytes);
    ASSERT_LE(LanesTaken(), shape_.lanes);
  }

 private:
  int LanesTaken() const {
    return static_cast<int>(std::count_if(experts_.begin(), experts_.end(), [](const auto& e) {
      return e.second.where == Where::kOnItsWay && e.second.has_lane;
    }));
  }

  // On demand before prefetch, then priority, then age; prefetches leave a lane free if there are
  // two.
  std::optional<ExpertIndex> NextOnPaper() const {
    const int free_lanes = shape_.lanes - LanesTaken();
    std::optional<ExpertIndex> best;
    for (const auto& [expert, model] : experts_) {
      if (model.where != Where::kOnItsWay || !model.CanIssue()) continue;
      const int needed = model.kind == kPrefetch && shape_.lanes > 1 ? 2 : 1;
      if (!model.has_lane && free_lanes < needed) continue;
      if (best) {
        const ModelExpert& other = experts_.at(*best);
        if (model.kind != other.kind) {
          if (model.kind == kPrefetch) continue;
        } else if (model.priority != other.priority) {
          if (model.priority < other.priority) continue;
        } else if (model.age > other.age) {
          continue;
        }
      }
      best = expert;
    }
    return best;
  }

  bool Start(ExpertIndex expert, TransferClass kind, float priority, bool may_evict) {
    // Who is to leave: nobody while there is a free slot, else the one used longest ago of those
    // that nobody holds or waits for.
    int64_t taken = 0;
    ExpertIndex victim = kNoExpert;
    for (const auto& [other, m] : experts_) {
      taken += m.where != Where::kAbsent ? 1 : 0;
      if (m.Evictable() && (victim == kNoExpert || m.last_use < experts_[victim].last_use)) {
        victim = other;
      }
    }
    const bool is_free = taken < shape_.slots;
    const bool can = is_free || (may_evict && victim != kNoExpert);
    EXPECT_EQ(cache_.free_slots() > 0, is_free);
    if (!is_free && !may_evict) return false;
    const LoadReason reason = kind == kOnDemand ? LoadReason::kOnDemand : LoadReason::kPrefetch;
    const std::optional<ExpertCache::Reservation> reservation =
        cache_.Reserve(expert, reason, ++now_);
    EXPECT_EQ(reservation.has_value(), can);
    if (!reservation || !can) return false;
    EXPECT_EQ(reservation->evicted, is_free ? kNoExpert : victim);
    if (!is_free) experts_[victim].where = Where::kAbsent;
    // Some experts have nothing to read, and are one packet all the same.
    const int packets = static_cast<int>((static_cast<unsigned>(expert) * 7u + 3u) %
                                         static_cast<unsigned>(shape_.max_packets + 1));
    queue_.Add(expert, packets, kind, priority, ++now_);
    ModelExpert& model = experts_[expert];
    model.where = Where::kOnItsWay;
    model.kind = kind;
    model.priority = priority;
    model.age = ++ages_;
    model.packets.assign(static_cast<size_t>(std::max(packets, 1)), 'p');
    model.failures.assign(model.packets.size(), 0);
    model.has_lane = model.cancelling = model.failing = false;
    return true;
  }

  // Missing experts get slots in the order in which they were wanted. One that finds none has a
  // prefetch cancelled for it, the one that is worth least.
  void StartMissing() {
    while (!missing_.empty()) {
      const ExpertIndex expert = missing_.front();
      if (Start(expert, kOnDemand, 0, true)) {
        missing_.pop_front();
        continue;
      }
      std::optional<ExpertIndex> least;
      for (const auto& [other, m] : experts_) {
        if (m.where != Where::kOnItsWay || m.kind != kPrefetch || m.cancelling) continue;
        if (!least || m.priority < experts_[*least].priority) least = other;
      }
      if (!least) return;
      CancelPrefetch(*least);
      if (experts_[*least].where == Where::kOnItsWay) return;  // after its packets
    }
  }

  void End(ExpertIndex expert, TransferState state) {
    ModelExpert& model = experts_[expert];
    queue_.Remove(expert);
    if (state == TransferState::kDone) {
      cache_.Commit(expert, ++now_);
      model.where = Where::kResident;
      model.last_use = ++uses_;
    } else {
      cache_.Abandon(expert);
      model.where = Where::kAbsent;
      if (model.wants > 0) {
        EXPECT_EQ(state, TransferState::kFailed) << "what a layer waits for was cancelled";
        failed_.push_back(expert);
        cache_.Unwant(expert);
        --model.wants;
      }
    }
    if (!ending_) {  // CancelPrefetch under StartMissing comes here too
      ending_ = true;
      StartMissing();
      ending_ = false;
    }
  }

  const LinkShape shape_;
  ExpertCache cache_;
  TransferQueue queue_;
  std::map<ExpertIndex, ModelExpert> experts_;
  std::vector<std::pair<ExpertIndex, int32_t>> in_flight_;
  std::deque<ExpertIndex> missing_;
  std::vector<ExpertIndex> failed_;
  bool ending_ = false;
  int64_t now_ = 0;
  uint64_t uses_ = 0;
  uint64_t ages_ = 0;
};

// What happened over all schedules, so that a test which never gets anywhere is found out.
struct Coverage {
  int64_t handed_out = 0;
  int64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t retried = 0;
  int64_t layers = 0;
};

class Schedule {
 public:
  explicit Schedule(uint64_t seed)
      : random_(seed),
        layers_of_model_(Up(4)),
        grid_(layers_of_model_, Up(8)),
        placement_(Place()) {
    for (int d = 0; d < placement_.num_devices(); ++d) {
      LinkShape shape;
      shape.slots = Up(6);
      shape.lanes = Up(4);
      shape.depth = Up(4);
      shape.max_packets = Up(6);
      shape.retries = static_cast<int>(random_() % 3);
      links_.push_back(std::make_unique<Link>(grid_.total(), shape));
    }
  }

  void Run(Coverage& coverage) {
    for (int step = 0; step < 150 && !testing::Test::HasFailure(); ++step) {
      RandomStep();
      for (const auto& link : links_) link->CheckInvariants();
    }
    // From here on nothing new comes and nothing fails: all that was asked for must arrive, in no
    // more steps than there are packets and slots to wait for.
    faults_ = false;
    for (int round = 0; !AllQuiet() && !testing::Test::HasFailure(); ++round) {
      ASSERT_LT(round, 2000) << "no progress: an expert that a layer waits for does not come";
      for (const auto& link : links_) {
        while (link->Issue()) {
        }
        if (link->in_flight() > 0) Complete(*link);
      }
      TakeWhatIsThere();
      while (!held_.empty()) ReleaseOne();
      for (const auto& link : links_) link->CheckInvariants();
    }
    coverage.handed_out += handed_out_;
    coverage.failed += failed_;
    coverage.layers += layers_;
    for (const auto& link : links_) {
      const TransferCounters& c = link->counters();
      EXPECT_EQ(c.packets_issued, c.packets_done + c.packets_failed);
      coverage.cancelled += c.cancelled;
      coverage.retried += c.packets_failed;
    }
    EXPECT_EQ(asked_for_, handed_out_ + failed_);  // every wish has come to an end, once
  }

 private:
  int Up(uint64_t most) { return 1 + static_cast<int>(random_() % most); }
  bool OneIn(uint64_t n) { return random_() % n == 0; }
  ExpertPlacement Place() {
    std::vector<int> nodes(static_cast<size_t>(Up(3)));
    for (int& node : nodes) node = static_cast<int>(random_() % 2);
    return ExpertPlacement(grid_, nodes, random_());
  }
  Link& LinkOf(ExpertIndex expert) {
    return *links_[static_cast<size_t>(placement_.device(expert))];
  }
  Link& AnyLink() { return *links_[random_() % links_.size()]; }
  ExpertIndex AnyExpert() {
    return static_cast<ExpertIndex>(random_() % static_cast<uint64_t>(grid_.total()));
  }

  void RandomStep() {
    switch (random_() % 10) {
      case 0:
        if (waiting_.empty() && held_.empty()) BeginLayer();
        break;
      case 1:
      case 2: {
        const ExpertIndex expert = AnyExpert();
        LinkOf(expert).Prefetch(expert, static_cast<float>(random_() % 4), OneIn(2));
        break;
      }
      case 3: {
        const ExpertIndex expert = AnyExpert();
        if (OneIn(2)) LinkOf(expert).CancelPrefetch(expert);
        break;
      }
      case 4:
      case 5:
      case 6:
        AnyLink().Issue();
        break;
      case 7:
      case 8: {
        Link& link = AnyLink();
        if (link.in_flight() > 0) Complete(link);
        break;
      }
      default:
        if (!held_.empty() && OneIn(2)) {
          ReleaseOne();
        } else {
          TakeWhatIsThere();
        }
    }
  }

  void BeginLayer() {
    ++layers_;
    const auto layer =
        static_cast<ExpertIndex>(random_() % static_cast<uint64_t>(grid_.num_layers()));
    for (int index = 0; index < grid_.num_experts(); ++index) {
      if (OneIn(2)) waiting_.push_back(layer * grid_.num_experts() + index);
    }
    std::shuffle(waiting_.begin(), waiting_.end(), random_);
    asked_for_ += static_cast<int64_t>(waiting_.size());
    for (const ExpertIndex expert : waiting_) LinkOf(expert).Want(expert);
  }

  void Complete(Link& link) {
    const uint64_t roll = faults_ ? random_() % 16 : 2;
    link.CompleteOne(random_() % link.in_flight(), roll == 0 ? PacketResult::kHopeless
                                                   : roll == 1 || roll == 3 ? PacketResult::kError
                                                                            : PacketResult::kOk);
    for (const ExpertIndex expert : link.TakeFailed()) {
      ASSERT_EQ(std::erase(waiting_, expert), 1u);
      ++failed_;
    }
  }

  void TakeWhatIsThere() {
    std::erase_if(waiting_, [this](ExpertIndex expert) {
      if (!LinkOf(expert).Take(expert)) return false;
      held_.push_back(expert);
      ++handed_out_;
      return true;
    });
  }

  void ReleaseOne() {
    std::swap(held_[random_() % held_.size()], held_.back());
    const ExpertIndex expert = held_.back();
    held_.pop_back();
    LinkOf(expert).Release(expert);
  }

  bool AllQuiet() const {
    return waiting_.empty() && held_.empty() &&
           std::all_of(links_.begin(), links_.end(),
                       [](const auto& link) { return link->unfinished() == 0; });
  }

  std::mt19937_64 random_;
  const int layers_of_model_;
  const ExpertGrid grid_;
  const ExpertPlacement placement_;
  std::vector<std::unique_ptr<Link>> links_;  // [devices]
  std::vector<ExpertIndex> waiting_;          // of the open layer
  std::vector<ExpertIndex> held_;             // pinned
  bool faults_ = true;
  int64_t asked_for_ = 0;
  int64_t handed_out_ = 0;
  int64_t failed_ = 0;
  int64_t layers_ = 0;
};

// Ten thousand schedules, in parts that ctest can run side by side.
constexpr int kParts = 4;
class LinkSchedulesPropertyTest : public testing::TestWithParam<int> {};

TEST_P(LinkSchedulesPropertyTest, AgreesWithASimpleModel) {
  const uint64_t seed = std::random_device{}();
  Coverage coverage;
  for (uint64_t schedule = 0; schedule < 10000 / kParts; ++schedule) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", schedule " + std::to_string(schedule));
    Schedule(seed + schedule).Run(coverage);
    ASSERT_FALSE(HasFailure());
  }
  // About half of what is usual.
  EXPECT_GT(coverage.layers, 13000 / kParts);
  EXPECT_GT(coverage.handed_out, 20000 / kParts);
  EXPECT_GT(coverage.failed, 3000 / kParts);
  EXPECT_GT(coverage.cancelled, 6000u / kParts);
  EXPECT_GT(coverage.retried, 12000u / kParts);
}

INSTANTIATE_TEST_SUITE_P(Parts, LinkSchedulesPropertyTest, testing::Range(0, kParts));

}  // namespace
}  // namespace moesaic
