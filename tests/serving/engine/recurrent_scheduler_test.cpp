// The scheduler with recurrent state: a made-up model whose state is what it has read says of every
// step that it goes on from the state of exactly the tokens before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "serving/engine/scheduler.h"

namespace moesaic {
namespace {

std::unique_ptr<Sequence> RecurrentSequence(RequestId id, std::vector<int32_t> prompt,
                                            int64_t max_tokens) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->prompt_tokens = static_cast<int64_t>(prompt.size());
  sequence->tokens = std::move(prompt);
  sequence->request.max_tokens = static_cast<int32_t>(max_tokens);
  return sequence;
}

std::vector<int32_t> Counting(int32_t first, int64_t count) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<int32_t>(i));
  return tokens;
}

class RecurrentModel {
 public:
  using State = std::vector<int32_t>;

  explicit RecurrentModel(int64_t slots) : states_(static_cast<size_t>(slots)) {}

  // Runs a step; false when a state is not what it should be.
  bool Run(std::span<const ScheduledSlice> plan) {
    for (const ScheduledSlice& slice : plan) {
      const Sequence& s = *slice.sequence;
      const auto begin = s.tokens.begin() + s.computed_tokens;
      State state;
      if (s.computed_tokens > 0) {
        if (s.state.from < 0) return false;
        state = states_[static_cast<size_t>(s.state.from)];
      }
      if (state != State(s.tokens.begin(), begin)) return false;
      if (s.state.snapshot >= 0 && s.state.snapshot_tokens > 0) {
        if (s.state.snapshot_tokens >= slice.num_tokens) return false;
        State middle = state;
        middle.insert(middle.end(), begin, begin + s.state.snapshot_tokens);
        states_[static_cast<size_t>(s.state.snapshot)] = std::move(middle);
      }
      state.insert(state.end(), begin, begin + slice.num_tokens);
      states_[static_cast<size_t>(s.state.slot)] = std::move(state);
    }
    return true;
  }

  State& state(int32_t slot) { return states_[static_cast<size_t>(slot)]; }

 private:
  std::vector<State> states_;
};

// Keeps the states that it is told of, with all blocks before them, and reads with some luck.
class RecurrentStore : public PrefixStore {
 public:
  RecurrentStore(RecurrentModel& model, std::mt19937& random) : model_(model), random_(random) {}

  void UseStates(const StateSlots& states) override { states_ = &states; }
  int64_t Begin(Sequence& sequence, int64_t most) override {
    while (most > 0 && !kept_.contains(PrefixOf(sequence, most))) --most;
    return most;
  }
  void Read(Sequence& sequence, int64_t first, int64_t count, int64_t /*until*/) override {
    EXPECT_EQ(first, sequence.blocks.sealed);
    sequence.stored.read = static_cast<uint64_t>(count);
  }
  void ReadState(Sequence& sequence, int64_t blocks, int32_t slot) override {
    EXPECT_EQ(blocks, sequence.blocks.sealed);
    EXPECT_EQ(blocks * kKvBlockTokens, sequence.computed_tokens);
    sequence.stored.read = 1;
    sequence.stored.reads_state = true;
    model_.state(slot) = {-1};  // a part of it
  }
  Progress Poll(const Sequence& sequence) const override {
    if (random_() % 2 == 0) return {};
    const auto asked = static_cast<int64_t>(sequence.stored.read);
    if (random_() % 6 == 0) return {.done = asked - 1, .from_memory = 0, .ended = true};
    if (sequence.stored.reads_state) {
      model_.state(sequence.state.slot) = kept_.at(PrefixOf(sequence, sequence.blocks.sealed));
    }
    return {.done = asked, .from_memory = asked / 2, .ended = true};
  }
  void Stop(Sequence& sequence) override {
    sequence.stored.read = 0;
    sequence.stored.reads_state = false;
  }
  void Sealed(Sequence& /*sequence*/, int64_t /*block*/) override {}
  void StateKept(Sequence& sequence, int64_t blocks, PrefixId prefix, bool /*rolling*/) override {
    const RecurrentModel::State& state = model_.state(states_->SlotOf(prefix));
    EXPECT_EQ(state, PrefixOf(sequence, blocks));
    kept_[PrefixOf(sequence, blocks)] = state;
  }
  void End(Sequence& sequence) override { Stop(sequence); }

 private:
  static std::vector<int32_t> PrefixOf(const Sequence& sequence, int64_t blocks) {
    return {sequence.tokens.begin(), sequence.tokens.begin() + blocks * kKvBlockTokens};
  }

  RecurrentModel& model_;
  std::mt19937& random_;
  const StateSlots* states_ = nullptr;
  std::map<std::vector<int32_t>, RecurrentModel::State> kept_;
};

class RecurrentRig {
 public:
  RecurrentRig(const SchedulerOptions& options, int64_t blocks, std::mt19937* luck = nullptr)
      : kv_({{0}, kKvBlockTokens, kAttentionChunkTokens}, blocks),
        model(options.state_slots),
        store_(luck != nullptr ? std::make_unique<RecurrentStore>(model, *luck) : nullptr),
        scheduler(options, kv_, store_.get()) {}

  // Until all has ended; what was found of each prompt, by the order in which they began.
  std::vector<int64_t> RunAll() {
    std::vector<int64_t> cached;
    while (!scheduler.empty()) {
      const auto plan = scheduler.Plan();
      EXPECT_TRUE(model.Run(plan));
      steps_ += 1;
      const std::vector<ScheduledSlice> slices(plan.begin(), plan.end());
      for (const ScheduledSlice& slice : slices) {
        if (seen_.insert(slice.sequence->id).second)
          cached.push_back(slice.sequence->cached_tokens);
      }
      scheduler.Advance();
      for (const ScheduledSlice& slice : slices) End(*slice.sequence);
    }
    return cached;
  }

  void End(Sequence& sequence) {
    if (sequence.computed_tokens < static_cast<int64_t>(sequence.tokens.size())) return;
    sequence.tokens.push_back(static_cast<int32_t>(7000 + sequence.tokens.size()));
    if (sequence.output_tokens() >= sequence.request.max_tokens) {
      ended[sequence.id] = sequence.tokens;
      scheduler.Remove(&sequence);
    }
  }

  int64_t steps() const { return steps_; }

 private:
  KvManager kv_;
  int64_t steps_ = 0;
  std::set<RequestId> seen_;

 public:
  RecurrentModel model;

 private:
  std::unique_ptr<RecurrentStore> store_;  // null: none

 public:
  Scheduler scheduler;
  std::map<RequestId, std::vector<int32_t>> ended;
};

SchedulerOptions WithSnapshots(int64_t snapshots) {
  return {.max_num_seqs = 4,
          .max_batch_tokens = 256,
          .prefix_cache = true,
          .state_slots = 4 + snapshots,
          .state_snapshots = snapshots};
}

TEST(RecurrentSchedulerTest, APromptAndItsAnswerAreTheBeginningOfTheNext) {
  RecurrentRig rig(WithSnapshots(4), 64);
  rig.scheduler.Add(RecurrentSequence(1, Counting(100, 50), 40));
  EXPECT_EQ(rig.RunAll(), (std::vector<int64_t>{0}));
  // The same prompt: up to its last whole block.
  rig.scheduler.Add(RecurrentSequence(2, Counting(100, 50), 1));
  EXPECT_EQ(rig.RunAll(), (std::vector<int64_t>{48}));
  // A turn more: 89 tokens of 90 were computed, 80 in whole blocks.
  std::vector<int32_t> next = rig.ended[1];
  for (const int32_t token : Counting(500, 20)) next.push_back(token);
  rig.scheduler.Add(RecurrentSequence(3, next, 1));
  EXPECT_EQ(rig.RunAll(), (std::vector<int64_t>{80}));
}

TEST(RecurrentSchedulerTest, WhatSeveralPromptsShareIsKeptWhenTheSecondOneLeavesIt) {
  RecurrentRig rig(WithSnapshots(4), 64);
  std::vector<std::vector<int32_t>> prompts;
  for (int32_t i = 0; i < 3; ++i) {
    prompts.push_back(Counting(100, 70));  // 64 in whole blocks
    for (const int32_t token : Counting(1000 * (i + 1), 60)) prompts.back().push_back(token);
  }
  std::vector<int64_t> cached;
  for (size_t i = 0; i < prompts.size(); ++i) {
    rig.scheduler.Add(RecurrentSequence(i + 1, prompts[i], 1));
    cached.push_back(rig.RunAll().front());
  }
  EXPECT_EQ(cached, (std::vector<int64_t>{0, 0, 64}));
}

TEST(RecurrentSchedulerTest, WithoutSnapshotsNothingIsReused) {
  RecurrentRig rig(WithSnapshots(0), 64);
  for (RequestId id = 1; id <= 2; ++id) {
    rig.scheduler.Add(RecurrentSequence(id, Counting(100, 50), 3));
    EXPECT_EQ(rig.RunAll().front(), 0);
  }
}

TEST(RecurrentSchedulerTest, AfterAFailedStepItsSequencesBeginAnew) {
  RecurrentRig rig(WithSnapshots(2), 64);
  rig.scheduler.Add(RecurrentSequence(1, Counting(100, 300), 4));
  EXPECT_TRUE(rig.model.Run(rig.scheduler.Plan()));
  rig.scheduler.Advance();
  rig.model.Run(rig.scheduler.Plan());
  rig.scheduler.Abandon();
  const auto plan = rig.scheduler.Plan();
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].sequence->computed_tokens, 0);
  EXPECT_EQ(plan[0].num_tokens, 256);
  EXPECT_TRUE(rig.model.Run(plan));
  rig.scheduler.Advance();
  rig.RunAll();
  EXPECT_EQ(rig.ended[1].size(), 304u);
}

// Whatever arrives, is preempted, cancelled or fails, and whatever a store reads or has lost: every
// step goes on from the right state, and prefixes are found now and then.
TEST(RecurrentSchedulerTest, RandomWorkloadsGoOnFromTheRightState) {
  int64_t reused = 0;
  int64_t preemptions = 0;
  PrefixCounters found;
  for (int round = 0; round < 60; ++round) {
    const auto seed = static_cast<uint32_t>(round * 104729 + 3);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto uniform = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    const int64_t blocks = uniform(6, 40);
    SchedulerOptions options;
    options.max_num_seqs = uniform(1, 6);
    options.max_batch_tokens = uniform(8, 100);
    options.state_snapshots = uniform(0, 5);
    options.state_slots = options.max_num_seqs + options.state_snapshots;
    options.share_only_prompts = uniform(0, 3) == 0;
    options.piece_tokens = uniform(0, 1) * uniform(8, 300);
    RecurrentRig rig(options, blocks, round % 2 == 0 ? &random : nullptr);
    RequestId next = 0;
    std::set<RequestId> alive;
    for (int step = 0; step < 3000 && (next < 40 || !rig.scheduler.empty()); ++step) {
      if (next < 40 && uniform(0, 3) == 0) {
        const int64_t longest = blocks * kKvBlockTokens;
        std::vector<int32_t> prompt = Counting(0, uniform(1, longest - 1));
        // Some leave the common beginning somewhere.
        for (int64_t i = uniform(0, 2) == 0 ? uniform(0, longest) : longest; i < std::ssize(prompt);
             ++i) {
          prompt[static_cast<size_t>(i)] += static_cast<int32_t>(uniform(1, 2)) * 1000;
        }
        const int64_t room = longest - std::ssize(prompt);
        rig.scheduler.Add(RecurrentSequence(++next, std::move(prompt), uniform(1, room)));
        alive.insert(next);
      }
      if (!alive.empty() && uniform(0, 30) == 0) {
        const RequestId id = *alive.begin();
        if (Sequence* const sequence = rig.scheduler.Find(id)) rig.scheduler.Remove(sequence);
        alive.erase(id);
      }
      if (rig.scheduler.piece().empty()) {
        rig.scheduler.PlanPiece([&](int64_t) { return uniform(0, 2) > 0; });
      } else if (uniform(0, 4) == 0) {
        rig.scheduler.AbandonPiece();
      } else if (uniform(0, 2) == 0) {
        const std::vector<ScheduledSlice> piece(rig.scheduler.piece().begin(),
                                                rig.scheduler.piece().end());
        ASSERT_TRUE(rig.model.Run(piece));
        rig.scheduler.AdvancePiece();
        for (const ScheduledSlice& slice : piece) rig.End(*slice.sequence);
        for (const auto& [id, tokens] : rig.ended) alive.erase(id);
      }
      const auto plan = rig.scheduler.Plan();
      ASSERT_EQ(plan.empty() && rig.scheduler.piece().empty() && rig.scheduler.restoring() == 0,
                rig.scheduler.empty());
      ASSERT_TRUE(rig.model.Run(plan));
      const std::vector<ScheduledSlice> slices(plan.begin(), plan.end());
      for (const ScheduledSlice& slice : slices) reused += slice.sequence->cached_tokens;
      if (uniform(0, 50) == 0) {
        rig.scheduler.Abandon();
        continue;
      }
      rig.scheduler.Advance();
      for (const ScheduledSlice& slice : slices) rig.End(*slice.sequence);
      for (const auto& [id, tokens] : rig.ended) alive.erase(id);
    }
    EXPECT_TRUE(rig.scheduler.empty());
    preemptions += rig.scheduler.preemptions();
    found.from_memory += rig.scheduler.prefixes().from_memory;
    found.from_store += rig.scheduler.prefixes().from_store;
  }
  EXPECT_GT(found.from_memory, 0);
  EXPECT_GT(found.from_store, 0);
  EXPECT_GT(reused, 0);
  EXPECT_GT(preemptions, 0);
}

}  // namespace
}  // namespace moesaic
