// Where memory of experts goes, on a clock of the test's.
#include "serving/multi/expert_balancer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "serving/engine/resizable_kv.h"
#include "serving/multi/expert_pools.h"
#include "serving/multi/kv_balancer.h"

namespace moesaic {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// A model that runs so many tokens a second over experts of which the e-th is used with the
// probability that its rank has. What is taken from it comes back after some ticks.
class MadeUpModel : public ResizableSlots {
 public:
  MadeUpModel(uint64_t slot_bytes, int64_t slots, int64_t most, double tokens_per_s, double skew)
      : tokens_per_s_(tokens_per_s), uses_(static_cast<size_t>(most)) {
    now_ = {.slot_bytes = slot_bytes, .held = slots, .usable = slots, .least = 1, .most = most};
    double sum = 0;
    for (int64_t e = 0; e < most; ++e) {
      share_.push_back(std::pow(static_cast<double>(e + 1), -skew));
      sum += share_.back();
    }
    for (double& share : share_) share /= sum;
  }

  SlotsInUse LookAtSlots(std::vector<uint32_t>& uses) const override {
    uses.clear();
    uses.reserve(uses_.size());
    for (const double used : uses_) uses.push_back(static_cast<uint32_t>(used));
    return now_;
  }
  void SetSlots(int64_t slots) override {
    EXPECT_GE(slots, now_.least);
    EXPECT_LE(slots, now_.most);
    now_.usable = slots;
    now_.held = std::max(now_.held, slots);
    if (now_.held > slots) give_back_in_ = return_ticks;
  }

  // `seconds` pass. Who is not among the most used that fit is waited for.
  void Run(double seconds) {
    double missing = 0;
    for (size_t e = 0; e < uses_.size(); ++e) {
      const double used = tokens_per_s_ * seconds * 8 * share_[e];
      uses_[e] += used;
      if (static_cast<int64_t>(e) >= now_.usable) missing += used;
    }
    loads_ += missing;
    now_.loads = static_cast<uint64_t>(loads_);
    now_.blocked_us = static_cast<uint64_t>(loads_ * static_cast<double>(now_.slot_bytes) / 5e8 *
                                            1e6);  // 500 MB/s
    waited_s += missing * static_cast<double>(now_.slot_bytes) / 5e8;
    if (now_.held > now_.usable && --give_back_in_ <= 0) now_.held = now_.usable;
  }
  void SetLoad(double tokens_per_s) { tokens_per_s_ = tokens_per_s; }
  const SlotsInUse& now() const { return now_; }
  uint64_t bytes() const {
    return static_cast<uint64_t>(std::max(now_.held, now_.usable)) * now_.slot_bytes;
  }

  int return_ticks = 0;
  double waited_s = 0;

 private:
  SlotsInUse now_;
  double tokens_per_s_;
  std::vector<double> share_;
  std::vector<double> uses_;
  double loads_ = 0;
  int give_back_in_ = 0;
};

// Models in one pool, of which `free_bytes` are nobody's at first.
class Pool {
 public:
  Pool(std::vector<std::unique_ptr<MadeUpModel>> models, uint64_t floor_bytes, uint64_t free_bytes)
      : models_(std::move(models)),
        pools_(std::vector<ExpertPools::Rules>(models_.size(), {0, floor_bytes})),
        floor_bytes_(floor_bytes),
        all_bytes_(free_bytes) {
    for (size_t i = 0; i < models_.size(); ++i) {
      all_bytes_ += models_[i]->bytes();
      pools_.Loaded(i, models_[i]->bytes() + kOtherBytes, models_[i].get());
    }
  }

  // Half a second. Returns how many models were told another size.
  int64_t Tick() {
    for (const auto& model : models_) model->Run(0.5);
    now_ns_ += 500'000'000;
    pools_.Look(now_ns_);
    uint64_t held = 0;
    for (size_t i = 0; i < models_.size(); ++i) {
      EXPECT_EQ(pools_.held(i).bytes, models_[i]->bytes() + kOtherBytes);
      held += models_[i]->bytes();
    }
    EXPECT_LE(held, all_bytes_);
    const int64_t changes = pools_.Move(all_bytes_ - std::min(all_bytes_, held));
    uint64_t after = 0;
    for (const auto& model : models_) {
      after += model->bytes();
      const auto usable = static_cast<uint64_t>(model->now().usable);
      EXPECT_GE(usable * model->now().slot_bytes, floor_bytes_);
    }
    EXPECT_LE(after, all_bytes_);
    return changes;
  }
  int64_t Ticks(int count) {
    int64_t changes = 0;
    for (int i = 0; i < count; ++i) changes += Tick();
    return changes;
  }
  MadeUpModel& model(size_t i) { return *models_[i]; }
  ExpertPools& pools() { return pools_; }
  uint64_t all_bytes() const { return all_bytes_; }

 private:
  static constexpr uint64_t kOtherBytes = 7 * kMiB;

  std::vector<std::unique_ptr<MadeUpModel>> models_;
  ExpertPools pools_;
  uint64_t floor_bytes_;
  uint64_t all_bytes_;
  int64_t now_ns_ = 1;
};

std::unique_ptr<MadeUpModel> Make(uint64_t slot_bytes, int64_t slots, int64_t most, double load,
                                  double skew = 0.5) {
  return std::make_unique<MadeUpModel>(slot_bytes, slots, most, load, skew);
}

std::vector<std::unique_ptr<MadeUpModel>> Two(std::unique_ptr<MadeUpModel> a,
                                              std::unique_ptr<MadeUpModel> b) {
  std::vector<std::unique_ptr<MadeUpModel>> models;
  models.push_back(std::move(a));
  models.push_back(std::move(b));
  return models;
}

TEST(ExpertBalancerTest, AnIdleModelShrinksToItsFloorAndComesBack) {
  Pool pool(Two(Make(kMiB, 100, 300, 10), Make(kMiB, 100, 300, 0)), 10 * kMiB, 0);
  pool.Ticks(120);
  EXPECT_EQ(pool.model(1).now().usable, 10);
  EXPECT_GE(pool.model(0).now().usable, 187);  // all but less than a slab
  EXPECT_LT(pool.pools().fragment_bytes(), 4 * kMiB);
  EXPECT_TRUE(pool.pools().held(1).shrunk);
  EXPECT_FALSE(pool.pools().held(0).shrunk);
  EXPECT_EQ(pool.pools().held(1).taken_bytes, 90 * kMiB);
  EXPECT_GE(pool.pools().held(0).given_bytes, 87 * kMiB);
  pool.model(0).SetLoad(0);
  pool.model(1).SetLoad(10);
  pool.Ticks(600);
  EXPECT_GT(pool.model(1).now().usable, 170);
  EXPECT_FALSE(pool.pools().held(1).shrunk);
}

// Of two idle ones nobody has use for the other's.
TEST(ExpertBalancerTest, NothingMovesWithoutUse) {
  Pool pool(Two(Make(kMiB, 100, 300, 0), Make(3 * kMiB, 30, 300, 0)), 10 * kMiB, 50 * kMiB);
  EXPECT_EQ(pool.Ticks(100), 0);
}

TEST(ExpertBalancerTest, EvenLoadStaysAsItIs) {
  Pool pool(Two(Make(kMiB, 100, 300, 10), Make(kMiB, 100, 300, 10)), 10 * kMiB, 0);
  EXPECT_EQ(pool.Ticks(600), 0);
}

TEST(ExpertBalancerTest, FreeMemoryGoesToWhoSavesMost) {
  Pool pool(Two(Make(kMiB, 20, 300, 10), Make(kMiB, 20, 300, 1)), 10 * kMiB, 60 * kMiB);
  pool.Ticks(60);
  EXPECT_GE(pool.model(0).now().usable, 80);
  // All that has a use: then the other one gets some, too.
  Pool roomy(Two(Make(kMiB, 20, 50, 10), Make(kMiB, 20, 300, 1)), 10 * kMiB, 500 * kMiB);
  roomy.Ticks(600);  // until each expert has been used
  EXPECT_EQ(roomy.model(0).now().usable, 50);
  EXPECT_EQ(roomy.model(1).now().usable, 300);
}

// A gigabyte that saves as much is where it is: by bytes, not by experts.
TEST(ExpertBalancerTest, LargeExpertsAreWorthTheirBytes) {
  // As often used, four times as large, as long to read a byte: each byte saves the same.
  Pool pool(Two(Make(kMiB, 100, 400, 10, 0), Make(4 * kMiB, 25, 100, 2.5, 0)), 10 * kMiB, 0);
  EXPECT_LE(pool.Ticks(400), 4);
}

TEST(ExpertBalancerTest, LoadedLatelyNeitherGetsNorGives) {
  Pool pool(Two(Make(kMiB, 100, 300, 10), Make(kMiB, 100, 300, 0)), 10 * kMiB, 0);
  EXPECT_EQ(pool.Ticks(10), 0);
  EXPECT_GT(pool.Ticks(10), 0);
}

TEST(ExpertBalancerTest, ReclaimTakesFromWhoHasMost) {
  Pool pool(Two(Make(kMiB, 100, 300, 0), Make(kMiB, 50, 300, 0)), 10 * kMiB, 0);
  pool.Tick();
  EXPECT_FALSE(pool.pools().Reclaim(131 * kMiB));
  EXPECT_EQ(pool.model(0).now().usable, 100);
  EXPECT_TRUE(pool.pools().Reclaim(100 * kMiB));
  EXPECT_EQ(pool.model(0).now().usable, 10);
  EXPECT_EQ(pool.model(1).now().usable, 40);
}

TEST(ExpertBalancerTest, ModelsOfAnotherPoolKeepTheirs) {
  auto busy = Make(kMiB, 50, 300, 10);
  auto idle = Make(kMiB, 50, 300, 0);
  auto alone = Make(kMiB, 50, 300, 0);
  ExpertPools pools({{1, kMiB}, {1, kMiB}, {0, kMiB}});
  pools.Loaded(0, 50 * kMiB, busy.get());
  pools.Loaded(1, 50 * kMiB, idle.get());
  pools.Loaded(2, 50 * kMiB, alone.get());
  for (int64_t tick = 1; tick < 200; ++tick) {
    for (MadeUpModel* model : {busy.get(), idle.get(), alone.get()}) model->Run(0.5);
    pools.Look(tick * 500'000'000);
    pools.Move(200 * kMiB);  // free in the process: none of pool 1's business
    EXPECT_LE(busy->bytes() + idle->bytes(), 100 * kMiB);
  }
  EXPECT_GE(busy->now().usable, 97);
  EXPECT_EQ(idle->now().usable, 1);
  EXPECT_EQ(alone->now().usable, 50);
}

// Whatever the models are and do: no more memory than there is, floors stand (both in Tick), what
// is free and of use to somebody is less than a slab, and under a load that stays nothing moves
// back and forth.
TEST(ExpertBalancerPropertyTest, BoundedAndAtRest) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<std::unique_ptr<MadeUpModel>> models;
    const size_t count = 2 + random() % 3;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t slot_bytes = (1 + random() % 9) * kMiB / 2;
      const auto most = static_cast<int64_t>(20 + random() % 300);
      const int64_t slots = 10 + static_cast<int64_t>(random() % 100) % (most - 9);
      models.push_back(Make(slot_bytes, slots, most, static_cast<double>(random() % 5) * 600,
                            static_cast<double>(random() % 12) / 10));
      models.back()->return_ticks = static_cast<int>(random() % 4);
    }
    Pool pool(std::move(models), 4 * kMiB, random() % 200 * kMiB);
    for (int change = 0; change < 3; ++change) {
      pool.Ticks(40);
      pool.model(random() % count).SetLoad(static_cast<double>(random() % 5000));
    }
    pool.Ticks(700);
    // What still grows or decays may move a little, but nobody gets back what it gave.
    std::vector<ExpertPools::Held> before;
    before.reserve(count);
    for (size_t i = 0; i < count; ++i) before.push_back(pool.pools().held(i));
    EXPECT_LE(pool.Ticks(200), 12);
    for (size_t i = 0; i < count; ++i) {
      const ExpertPools::Held& after = pool.pools().held(i);
      EXPECT_TRUE(after.given_bytes == before[i].given_bytes ||
                  after.taken_bytes == before[i].taken_bytes);
    }
  }
}

// What it is for: less waiting than with equal parts when the load is uneven, no more when not.
TEST(ExpertBalancerTest, SavesWaiting) {
  const auto waited = [](double a, double b, bool moves) {
    Pool pool(Two(Make(kMiB, 100, 200, a), Make(kMiB, 100, 200, b)), moves ? 10 * kMiB : 100 * kMiB,
              0);
    pool.Ticks(1200);
    return pool.model(0).waited_s + pool.model(1).waited_s;
  };
  EXPECT_LT(waited(20, 1, true), waited(20, 1, false) / 1.5);
  EXPECT_LE(waited(10, 10, true), waited(10, 10, false) * 1.001);
}

// --- keys and values

constexpr int64_t kSlab = 16;  // blocks, of 64 KiB: a mebibyte

class MadeUpKv : public ResizableKv {
 public:
  MadeUpKv(int64_t blocks, int64_t most) {
    now_ = {.block_bytes = kMiB / kSlab,
            .slab_blocks = kSlab,
            .held = blocks,
            .usable = blocks,
            .least = kSlab,
            .most = most};
  }
  KvInUse LookAtKv() override { return now_; }
  void SetKvBlocks(int64_t blocks) override {
    EXPECT_TRUE(now_.least <= blocks && blocks <= now_.most && blocks % kSlab == 0);
    now_.usable = blocks;
    now_.held = std::max(now_.held, blocks);
  }
  // So many sequences of `of_one` blocks want to run.
  void Run(double seconds, int64_t sequences, int64_t of_one) {
    const int64_t room = std::min(sequences, now_.usable / of_one);
    now_.running = room;
    now_.most_used = room * of_one;
    waited_s_ += seconds * static_cast<double>(sequences - room);
    now_.waited_us = static_cast<uint64_t>(waited_s_ * 1e6);
    now_.held = now_.usable;
  }
  KvInUse& now() { return now_; }

 private:
  KvInUse now_;
  double waited_s_ = 0;
};

TEST(KvBalancerTest, ASlabIsWorthThoseThatItHasRoomFor) {
  KvBalancer balancer(1);
  MadeUpKv kv(64, 256);
  int64_t now_ns = 0;
  const auto value = [&](int64_t sequences, int64_t of_one) {
    for (int tick = 0; tick < 60; ++tick) {
      kv.Run(0.5, sequences, of_one);
      balancer.Observe(0, kv.now(), now_ns += 500'000'000);
    }
    return balancer.Value(0) * static_cast<double>(kMiB);
  };
  EXPECT_EQ(value(8, 8), 0);              // all run
  EXPECT_NEAR(value(20, 8), 2, 1e-3);     // a slab has room for two
  EXPECT_NEAR(value(9, 8), 1, 1e-3);      // one waits
  EXPECT_NEAR(value(20, 32), 0.5, 1e-3);  // two slabs for one
  kv.now().most = kv.now().usable;
  EXPECT_EQ(value(20, 8), 0);  // it may have no more
}

TEST(KvBalancerTest, WhatWasNotUsedForLongIsNotNeeded) {
  KvBalancer balancer(1);
  MadeUpKv kv(160, 160);
  int64_t now_ns = 0;
  const auto spare = [&](int ticks, int64_t sequences) {
    for (int tick = 0; tick < ticks; ++tick) {
      kv.Run(0.5, sequences, 8);
      balancer.Observe(0, kv.now(), now_ns += 500'000'000);
    }
    return balancer.SpareSlabs(0);
  };
  EXPECT_EQ(spare(100, 4), 0);  // nobody knows yet
  EXPECT_EQ(spare(30, 4), 7);   // of 160 blocks 32 are used, and a slab is kept besides
  EXPECT_EQ(spare(1, 12), 3);
  EXPECT_EQ(spare(100, 4), 3);  // that was not long ago
  EXPECT_EQ(spare(30, 4), 7);
  kv.now().revived += 50;  // prefixes of so many blocks were found
  EXPECT_EQ(spare(1, 4), 3);
  EXPECT_EQ(spare(130, 0), 9);
}

// Two models of one pool, the first of which has keys and values that change.
class KvPool {
 public:
  KvPool(double load_a, double load_b, int64_t blocks, int64_t most)
      : kv_(blocks, most),
        a_(Make(kMiB, 100, 300, load_a)),
        b_(Make(kMiB, 100, 300, load_b)),
        pools_({{0, 10 * kMiB}, {0, 10 * kMiB}}),
        all_bytes_(Bytes()) {
    pools_.Loaded(0, 100 * kMiB + KvBytes(), a_.get(), &kv_);
    pools_.Loaded(1, 100 * kMiB, b_.get());
  }
  void Ticks(int count, int64_t sequences, int64_t of_one) {
    for (int tick = 0; tick < count; ++tick) {
      kv_.Run(0.5, sequences, of_one);
      a_->Run(0.5);
      b_->Run(0.5);
      pools_.Look(now_ns_ += 500'000'000);
      ASSERT_EQ(pools_.held(0).bytes + pools_.held(1).bytes, Bytes());
      ASSERT_LE(Bytes(), all_bytes_);
      pools_.Move(all_bytes_ - Bytes());
      ASSERT_LE(Bytes(), all_bytes_);
      ASSERT_GE(a_->now().usable, 10);
      ASSERT_GE(b_->now().usable, 10);
    }
  }
  MadeUpKv& kv() { return kv_; }
  MadeUpModel& a() { return *a_; }
  MadeUpModel& b() { return *b_; }
  ExpertPools& pools() { return pools_; }

 private:
  uint64_t KvBytes() { return static_cast<uint64_t>(kv_.now().held / kSlab) * kMiB; }
  uint64_t Bytes() { return a_->bytes() + b_->bytes() + KvBytes(); }

  MadeUpKv kv_;
  std::unique_ptr<MadeUpModel> a_;
  std::unique_ptr<MadeUpModel> b_;
  ExpertPools pools_;
  uint64_t all_bytes_;
  int64_t now_ns_ = 0;
};

TEST(KvBalancerTest, WhoLacksBlocksGetsThemFromWhoLosesLeast) {
  KvPool pool(1, 0.1, 2 * kSlab, 64 * kSlab);
  pool.Ticks(400, 20, kSlab);  // twenty sequences of a slab each
  EXPECT_EQ(pool.kv().now().usable, 20 * kSlab);
  EXPECT_EQ(pool.pools().held(0).kv_given_bytes, 18 * kMiB);
  EXPECT_LT(pool.b().now().usable, 90);
  // Nobody waits: nothing moves any more.
  const int64_t slots = pool.a().now().usable + pool.b().now().usable;
  pool.Ticks(100, 20, kSlab);
  EXPECT_EQ(pool.kv().now().usable, 20 * kSlab);
  EXPECT_EQ(pool.a().now().usable + pool.b().now().usable, slots);
}

TEST(KvBalancerTest, ExpertsThatAreWorthMoreStay) {
  // One in ten seconds waits for blocks; layers wait for experts all the time.
  KvPool pool(20'000, 20'000, 2 * kSlab, 64 * kSlab);
  pool.Ticks(60, 2, kSlab);
  for (int round = 0; round < 20; ++round) {
    pool.Ticks(19, 2, kSlab);
    pool.Ticks(1, 3, kSlab);
  }
  EXPECT_EQ(pool.kv().now().usable, 2 * kSlab);
}

TEST(KvBalancerTest, WhatIsNotNeededGoesToExpertsAndComesBack) {
  KvPool pool(1, 1, 64 * kSlab, 64 * kSlab);
  pool.Ticks(400, 2, kSlab);
  EXPECT_EQ(pool.kv().now().usable, 3 * kSlab);
  EXPECT_EQ(pool.pools().held(0).kv_taken_bytes, 61 * kMiB);
  EXPECT_GE(pool.a().now().usable + pool.b().now().usable, 255);
  pool.Ticks(400, 10, kSlab);
  EXPECT_EQ(pool.kv().now().usable, 10 * kSlab);
}

TEST(KvBalancerTest, ReclaimTakesUnusedBlocksLast) {
  KvPool pool(0, 0, 32 * kSlab, 32 * kSlab);
  pool.Ticks(2, 4, kSlab);
  EXPECT_FALSE(pool.pools().Reclaim((2 * 90 + 29) * kMiB));
  EXPECT_TRUE(pool.pools().Reclaim(100 * kMiB));
  EXPECT_EQ(pool.kv().now().usable, 32 * kSlab);
  EXPECT_TRUE(pool.pools().Reclaim((2 * 90 + 20) * kMiB));
  EXPECT_EQ(pool.a().now().usable + pool.b().now().usable, 20);
  EXPECT_EQ(pool.kv().now().usable, 12 * kSlab);
}

}  // namespace
}  // namespace moesaic
