// ExpertUse without a model: steps of requests, one after another and preempted, and what its
// observers have seen of them.

#include "serving/engine/expert_use.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/metrics.h"
#include "kernels/cpu/kernels.h"
#include "tests/core/base/temp_dir.h"
#include "tests/core/config/made_up_layers.h"
#include "tests/serving/engine/collector.h"
#include "tests/serving/engine/idle_provider.h"
#include "tracer/binary_trace.h"

namespace moesaic {
namespace {

constexpr int kLayers = 4;  // of which 1 and 3 have experts
constexpr int kExperts = 8;
constexpr int64_t kTopK = 2;

ModelConfig TwoSparseLayers() {
  ModelConfig config;
  for (int layer = 0; layer < kLayers; ++layer) {
    config.layers.push_back(layer % 2 == 0 ? LayerSpec{} : SparseLayer(kExperts, kTopK));
  }
  return config;
}

// Counts what it is told.
class FakeExperts : public IdleProvider {
 public:
  void StepBegan() override { ++steps; }
  void StopPrefetching() override { ++stops; }
  std::vector<ResidentExpert> Residents() const override {
    ExpertId id;
    id.layer = 3;
    id.index = 5;
    return {{id}};
  }
  int64_t slots() const override { return 1; }
  int64_t resident() const override { return 1; }

  int steps = 0;
  int stops = 0;
};

std::unique_ptr<RequestTracer> Tracer() {
  return std::make_unique<RequestTracer>(kLayers, kExperts, 4);
}

std::unique_ptr<Sequence> NewSequence(RequestId id, int64_t prompt, int64_t tokens) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->request.id = "request-" + std::to_string(id);
  sequence->request.domain = "test";
  sequence->prompt_tokens = prompt;
  for (int64_t i = 0; i < tokens; ++i) {
    sequence->tokens.push_back(static_cast<int32_t>(100 * static_cast<int64_t>(id) + i));
  }
  return sequence;
}

// What the token at `position` uses in a layer that has experts.
int32_t First(int64_t position) { return static_cast<int32_t>(position % kExperts); }
int32_t Second(int64_t position, int layer) {
  return static_cast<int32_t>((position + layer) % kExperts);
}

// A step over these, as the engine's loop makes it.
StepStats Step(ExpertUse& use, const std::vector<std::pair<Sequence*, int64_t>>& sequences,
               const std::vector<int>& layers = {1, 3}) {
  std::vector<ScheduledSlice> plan;
  StepRows rows;
  std::vector<int64_t> positions;
  for (const auto& [sequence, tokens] : sequences) {
    if (!sequence->started) {
      sequence->started = true;
      use.BeginTrace(*sequence);
    }
    plan.push_back({sequence, tokens});
    rows.Add(plan.back());
    for (int64_t i = 0; i < tokens; ++i) positions.push_back(sequence->computed_tokens + i);
  }
  use.BeginStep(plan, rows);
  for (const int layer : layers) {
    std::vector<int32_t> experts;
    for (const int64_t position : positions) {
      experts.push_back(First(position));
      experts.push_back(Second(position, layer));
    }
    std::vector<float> weights(experts.size(), 0.5f);
    if (use.hook() != nullptr) {
      use.hook()->OnRouting(layer, {rows.tokens, rows.slices}, experts, weights);
    }
  }
  StepStats stats;
  use.EndStep(stats);
  for (const auto& [sequence, tokens] : sequences) sequence->computed_tokens += tokens;
  return stats;
}

// Sequences whose prompts run layer after layer are seen as in steps, whatever runs meanwhile.
TEST(ExpertUseTest, PiecesAreSeenBesideSteps) {
  FakeExperts experts;
  ExpertObservers observers;
  observers.tracer = Tracer();
  ExpertUse use(std::move(observers), kTopK, experts, nullptr);
  const auto other = NewSequence(1, 2, 8);
  const auto whole = NewSequence(2, 6, 7);
  const auto leaves = NewSequence(3, 5, 6);
  Step(use, {{other.get(), 2}});
  std::vector<ScheduledSlice> plan;
  StepRows rows;
  for (Sequence* const sequence : {whole.get(), leaves.get()}) {
    use.BeginTrace(*sequence);
    plan.push_back({sequence, sequence->prompt_tokens});
    rows.Add(plan.back());
  }
  ASSERT_TRUE(use.observes_layers());
  use.BeginBeside(ExpertUse::Beside::kPiece, plan, rows);
  const TracedRequest left = leaves->traced;
  for (const int layer : {1, 3}) {
    std::vector<int32_t> ids;
    for (const Sequence* const sequence : {whole.get(), leaves.get()}) {
      for (int64_t position = 0; position < sequence->prompt_tokens; ++position) {
        ids.push_back(First(position));
        ids.push_back(Second(position, layer));
      }
    }
    const std::vector<float> weights(ids.size(), 0.5f);
    use.RoutedBeside(ExpertUse::Beside::kPiece, layer, ids, weights);
    Step(use, {{other.get(), 1}});
    if (layer == 1) use.LeaveBeside(left);
  }
  use.EndBeside(ExpertUse::Beside::kPiece);
  // The same prompt in a step.
  const auto in_step = NewSequence(4, 6, 7);
  Step(use, {{in_step.get(), 6}});
  const auto of_piece = use.TraceOf(*whole);
  const auto of_step = use.TraceOf(*in_step);
  EXPECT_EQ(of_piece->prefill_tokens, 6);
  EXPECT_EQ(of_piece->iterations, 1);
  EXPECT_EQ(of_piece->prefill, of_step->prefill);
  EXPECT_EQ(use.TraceOf(*leaves)->prefill.row_sum(1), 5u * kTopK);
  EXPECT_EQ(use.TraceOf(*leaves)->prefill.row_sum(3), 0u);
  EXPECT_EQ(whole->observed_tokens, 6);
}

// One that is preempted in the middle of the model is seen as if that had not been.
TEST(ExpertUseTest, WhoIsPreemptedInAModuleBatchIsSeenAgain) {
  constexpr auto kBatch = ExpertUse::Beside::kModuleBatch;
  FakeExperts experts;
  ExpertObservers observers;
  observers.tracer = Tracer();
  ExpertUse use(std::move(observers), kTopK, experts, nullptr);
  const auto sequence = NewSequence(1, 3, 6);
  Step(use, {{sequence.get(), 2}});
  ScheduledSlice slice{sequence.get(), 3};
  StepRows rows;
  rows.Add(slice);
  use.BeginBeside(kBatch, {&slice, 1}, rows);
  const std::vector<int32_t> ids = {2, 3, 3, 4, 4, 5};
  const std::vector<float> weights(ids.size(), 0.5f);
  use.RoutedBeside(kBatch, 1, ids, weights);
  EXPECT_EQ(use.TraceOf(*sequence)->prefill.row_sum(1), 5u * kTopK);
  use.TakeBackBeside(kBatch, *sequence);
  use.LeaveBeside(sequence->traced);
  use.RoutedBeside(kBatch, 3, ids, weights);
  use.EndBeside(kBatch);
  EXPECT_EQ(sequence->observed_tokens, 2);
  EXPECT_EQ(use.TraceOf(*sequence)->prefill.row_sum(1), 2u * kTopK);
  sequence->computed_tokens = 0;
  Step(use, {{sequence.get(), 3}});
  EXPECT_EQ(use.TraceOf(*sequence)->prefill.row_sum(1), 3u * kTopK);
  EXPECT_EQ(use.TraceOf(*sequence)->prefill.row_sum(3), 3u * kTopK);
  EXPECT_EQ(use.TraceOf(*sequence)->prefill_tokens, 3);
}

TEST(ExpertUseTest, WithoutObserversNothingIsSeen) {
  ExpertUse use;
  EXPECT_EQ(use.hook(), nullptr);
  const auto sequence = NewSequence(1, 3, 4);
  StepStats stats = Step(use, {{sequence.get(), 3}});
  EXPECT_EQ(stats.predict_us, 0);
  EXPECT_EQ(use.TraceOf(*sequence), nullptr);
  use.EndRequest(*sequence);
  EXPECT_EQ(use.SaveDueAt(), ExpertUse::Clock::time_point::max());
  use.SaveIfDue(ExpertUse::Clock::now());
  use.SaveAndClose();
}

TEST(ExpertUseTest, EveryPositionIsTracedOnce) {
  FakeExperts experts;
  ExpertObservers observers;
  observers.tracer = Tracer();
  ExpertUse use(std::move(observers), kTopK, experts, {});
  ASSERT_NE(use.hook(), nullptr);
  EXPECT_TRUE(use.hook()->OnlyWatches());
  const auto sequence = NewSequence(1, 3, 6);
  const auto other = NewSequence(2, 3, 3);
  EXPECT_EQ(use.TraceOf(*sequence), nullptr);  // it has not begun
  Step(use, {{sequence.get(), 2}});
  Step(use, {{sequence.get(), 1}, {other.get(), 3}});
  Step(use, {{sequence.get(), 1}});
  // Preempted: all that it has is computed again, and one token more.
  sequence->computed_tokens = 0;
  Step(use, {{sequence.get(), 2}});
  Step(use, {{sequence.get(), 3}});
  const auto trace = use.TraceOf(*sequence);
  ASSERT_NE(trace, nullptr);
  EXPECT_EQ(trace->prefill_tokens, 3);
  EXPECT_EQ(trace->decode_tokens, 2);
  for (const int layer : {1, 3}) {
    std::vector<uint32_t> prefill(kExperts);
    std::vector<uint32_t> decode(kExperts);
    for (int64_t position = 0; position < 5; ++position) {
      auto& counts = position < 3 ? prefill : decode;
      ++counts[static_cast<size_t>(First(position))];
      ++counts[static_cast<size_t>(Second(position, layer))];
    }
    const auto prefilled = trace->prefill.Row(layer);
    const auto decoded = trace->decode.Row(layer);
    EXPECT_EQ(std::vector<uint32_t>(prefilled.begin(), prefilled.end()), prefill) << layer;
    EXPECT_EQ(std::vector<uint32_t>(decoded.begin(), decoded.end()), decode) << layer;
  }
  EXPECT_EQ(use.TraceOf(*other)->prefill_tokens, 3);
  // Their numbers are free again: as many requests as at first can begin.
  use.EndRequest(*sequence);
  use.EndRequest(*other);
  use.EndRequest(*NewSequence(3, 1, 1));  // never began
  std::vector<std::unique_ptr<Sequence>> four;
  for (RequestId id = 4; id < 8; ++id) four.push_back(NewSequence(id, 1, 1));
  for (const auto& one : four) Step(use, {{one.get(), 1}});
}

TEST(ExpertUseTest, TellsToWhomTokensWereRouted) {
  FakeExperts experts;
  ExpertObservers observers;
  observers.tracer = Tracer();
  ExpertUse use(std::move(observers), kTopK, experts, {});
  EXPECT_EQ(use.Residents().size(), experts.Residents().size());
  const auto sequence = NewSequence(1, 3, 6);
  const auto other = NewSequence(2, 3, 3);
  sequence->request.return_routed_experts = true;
  // The first position came from the prefix cache.
  sequence->computed_tokens = 1;
  Step(use, {{other.get(), 3}, {sequence.get(), 2}});
  Step(use, {{sequence.get(), 1}});
  // Preempted: what is computed again is not told again.
  sequence->computed_tokens = 0;
  Step(use, {{sequence.get(), 4}});
  Step(use, {{sequence.get(), 1}});
  EXPECT_EQ(other->routed, nullptr);
  ASSERT_NE(sequence->routed, nullptr);
  const RoutedExperts& routed = *sequence->routed;
  EXPECT_EQ(routed.tokens(), 5);
  EXPECT_EQ(routed.top_k(), kTopK);
  for (int64_t position = 0; position < routed.tokens(); ++position) {
    for (int layer = 0; layer < routed.num_layers(); ++layer) {
      const bool known = position >= 1 && (layer == 1 || layer == 3);
      const auto at = static_cast<size_t>((position * routed.num_layers() + layer) * kTopK);
      EXPECT_EQ(routed.experts()[at], known ? First(position) : RoutedExperts::kNone);
      EXPECT_EQ(routed.experts()[at + 1], known ? Second(position, layer) : RoutedExperts::kNone);
    }
  }
}

// A step that gives way ends before a layer: its positions are told when they are run again.
TEST(ExpertUseTest, AStepThatGaveWayIsSeenAgain) {
  FakeExperts experts;
  ExpertObservers observers;
  observers.tracer = Tracer();
  ExpertUse use(std::move(observers), kTopK, experts, nullptr);
  const auto sequence = NewSequence(1, 5, 6);
  sequence->request.return_routed_experts = true;
  Step(use, {{sequence.get(), 2}});
  sequence->computed_tokens = 1;  // of two positions one is run again as it is
  ScheduledSlice slice{sequence.get(), 4};
  StepRows rows;
  rows.Add(slice);
  use.BeginStep({&slice, 1}, rows);
  EXPECT_EQ(sequence->observed_tokens, 5);
  std::vector<int32_t> shown = {1, 2, 2, 3, 3, 4, 4, 5};  // of its first layer
  std::vector<float> weights(shown.size(), 0.5f);
  use.hook()->OnRouting(1, {rows.tokens, rows.slices}, shown, weights);
  use.StepGaveWay();
  EXPECT_EQ(sequence->observed_tokens, 2);
  Step(use, {{sequence.get(), 4}});
  const auto trace = use.TraceOf(*sequence);
  EXPECT_EQ(trace->prefill.row_sum(1), 5u * kTopK);
  EXPECT_EQ(trace->prefill.row_sum(3), 5u * kTopK);
  EXPECT_EQ(trace->prefill.count(1, First(4)), 2u);  // and the position before has it second
  EXPECT_EQ(trace->prefill_tokens, 5);
  EXPECT_EQ(trace->iterations, 2);
  ASSERT_EQ(sequence->routed->tokens(), 5);
  EXPECT_EQ(sequence->routed->experts()[(4 * kLayers + 3) * kTopK], First(4));
}

TEST(ExpertUseTest, PredictionsAreMeasuredAndEndWithTheLastRequest) {
  const PredictorShape shape = {kLayers, kExperts, static_cast<int>(kTopK), 4};
  const std::vector<int> all = {0, 1, 2, 3};
  FakeExperts experts;
  ExpertObservers observers;
  observers.tracer = Tracer();
  observers.predictor = MakePredictor("frequency", shape, SelectKernels());
  observers.step_predictor =
      std::make_unique<StepPredictor>(shape, *observers.predictor, PrefetchOptions{});
  observers.recall = std::make_unique<RecallMeter>(shape);
  const StepPredictor& step_predictor = *observers.step_predictor;
  ExpertUse use(std::move(observers), kTopK, experts, {});
  const auto first = NewSequence(1, 3, 9);
  const auto second = NewSequence(2, 1, 9);
  const StepStats prompt = Step(use, {{first.get(), 3}}, all);
  for (const uint64_t at_distance : prompt.recall.used) EXPECT_EQ(at_distance, 0u);
  EXPECT_EQ(experts.steps, 1);
  EXPECT_EQ(step_predictor.predictions(), 5u);  // at the begin, and behind each layer
  StepStats decoded;
  for (int step = 0; step < 4; ++step) {
    decoded += Step(use, {{first.get(), 1}, {second.get(), 1}}, all);
  }
  EXPECT_EQ(experts.steps, 5);
  uint64_t used = 0;
  for (const uint64_t at_distance : decoded.recall.used) used += at_distance;
  EXPECT_GT(used, 0u);
  // Of a step that computes again what was observed nothing is predicted.
  first->computed_tokens = 0;
  const uint64_t before = step_predictor.predictions();
  Step(use, {{first.get(), 3}}, all);
  EXPECT_EQ(step_predictor.predictions(), before);
  use.EndRequest(*first);
  EXPECT_EQ(experts.stops, 0);
  use.EndRequest(*second);
  EXPECT_EQ(experts.stops, 1);
}

TEST(ExpertUseTest, CountsForEvictionPolicies) {
  FakeExperts experts;
  ExpertObservers observers;
  observers.tracer = Tracer();
  const ExpertGrid grid(kLayers, kExperts);
  observers.policy_counts = std::make_unique<PolicyCounts>(grid);
  const PolicyCounts& counts = *observers.policy_counts;
  EXPECT_EQ(observers.Learned().size(), 1u);
  ExpertUse use(std::move(observers), kTopK, experts, {});
  const auto sequence = NewSequence(1, 2, 4);
  Step(use, {{sequence.get(), 2}});
  Step(use, {{sequence.get(), 1}});
  EXPECT_EQ(counts.running_tokens(), 3u);
  // Positions 0, 1 and 2 use 1, 2 and 3 as their second, and 0, 1 and 2 as their first in layer 1.
  const auto at = [&](int layer, int index) {
    return static_cast<ExpertIndex>(layer * kExperts + index);
  };
  for (const auto& [index, uses] : {std::pair{0, 1u}, {1, 2u}, {2, 2u}, {3, 1u}, {4, 0u}}) {
    EXPECT_EQ(counts.in_running(at(1, index)), uses) << index;
    EXPECT_EQ(counts.in_all(at(1, index)), uses) << index;
  }
  use.EndRequest(*sequence);
  EXPECT_EQ(counts.in_running(at(1, 1)), 0u);
  EXPECT_EQ(counts.in_all(at(1, 1)), 2u);
}

TEST(ExpertUseTest, RecordsAndReplays) {
  const TempDir dir;
  const auto file = dir.path() / "t.trace";
  FakeExperts experts;
  {
    ExpertObservers observers;
    observers.tracer = Tracer();
    observers.recorder = std::make_unique<RoutingRecorder>(file, TwoSparseLayers(), "model", 16);
    ExpertUse use(std::move(observers), kTopK, experts, {});
    const auto first = NewSequence(1, 3, 5);
    const auto second = NewSequence(2, 2, 3);
    Step(use, {{first.get(), 3}});
    Step(use, {{first.get(), 1}, {second.get(), 2}});
    use.EndRequest(*first);
    use.EndRequest(*second);
  }
  const RoutingTrace trace = ReadBinaryTrace(file);
  ASSERT_EQ(trace.sequences.size(), 2u);
  EXPECT_EQ(trace.sequences[0].id, "request-1");
  EXPECT_EQ(trace.sequences[0].domain, "test");
  EXPECT_EQ(trace.sequences[0].token_ids, (std::vector<int32_t>{100, 101, 102, 103}));
  EXPECT_EQ(trace.sequences[0].prefill_tokens, 3);
  EXPECT_EQ(trace.sequences[1].token_ids, (std::vector<int32_t>{200, 201}));
  // Layers 1 and 3 of positions 0 and 1.
  EXPECT_EQ(trace.sequences[1].experts, (std::vector<uint16_t>{0, 1, 0, 3, 1, 2, 1, 4}));

  // Request 2 takes sequence 2 modulo 2, the first, and its positions 5 and 6 the tokens 5 and 6
  // modulo 4.
  ExpertObservers observers;
  observers.tracer = Tracer();
  observers.replay = std::make_unique<RoutingReplay>(file, TwoSparseLayers());
  ExpertUse use(std::move(observers), kTopK, experts, {});
  EXPECT_FALSE(use.hook()->OnlyWatches());
  const auto sequence = NewSequence(2, 8, 8);
  sequence->computed_tokens = 5;
  sequence->started = true;
  use.BeginTrace(*sequence);
  const std::vector<ScheduledSlice> plan = {{sequence.get(), 2}};
  StepRows rows;
  rows.Add(plan.front());
  use.BeginStep(plan, rows);
  std::vector<int32_t> chosen = {7, 6, 7, 6};
  std::vector<float> weights = {0.25f, 0.75f, 0.25f, 0.75f};
  use.hook()->OnRouting(3, {rows.tokens, rows.slices}, chosen, weights);
  EXPECT_EQ(chosen, (std::vector<int32_t>{First(1), Second(1, 3), First(2), Second(2, 3)}));
  EXPECT_EQ(weights, std::vector<float>(4, 0.5f));
  EXPECT_EQ(use.TraceOf(*sequence)->prefill.Row(3)[7], 0u);  // what was taken, not what was chosen
  EXPECT_EQ(use.TraceOf(*sequence)->prefill.Row(3)[1], 1u);
}

TEST(ExpertUseTest, KeepsWhatWasLearned) {
  const TempDir dir;
  const auto file = dir.path() / "state";
  const ModelConfig config = TwoSparseLayers();
  FakeExperts experts;
  MetricsRegistry metrics;
  ExpertObservers observers;
  observers.tracer = Tracer();
  observers.state =
      std::make_unique<LearnedState>(file, 3600, config, observers.Learned(), metrics);
  ExpertUse use(std::move(observers), kTopK, experts, {});
  EXPECT_EQ(use.SaveDueAt(), ExpertUse::Clock::time_point::max());
  const auto sequence = NewSequence(1, 2, 4);
  Step(use, {{sequence.get(), 2}});
  const auto due = use.SaveDueAt();
  EXPECT_LT(due, ExpertUse::Clock::time_point::max());
  use.SaveIfDue(due - std::chrono::nanoseconds(1));
  EXPECT_EQ(use.SaveDueAt(), due);  // not saved
  use.SaveIfDue(due);
  EXPECT_EQ(use.SaveDueAt(), ExpertUse::Clock::time_point::max());
  use.SaveAndClose();
  LearnedState next(file, 0, config, {}, metrics);
  next.Restore();
  const std::vector<ExpertId> held = next.LastResidents();
  ASSERT_EQ(held.size(), 1u);
  EXPECT_EQ(held[0].layer, 3);
  EXPECT_EQ(held[0].index, 5);
}

}  // namespace
}  // namespace moesaic
