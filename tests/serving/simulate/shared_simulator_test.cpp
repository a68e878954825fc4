#include "serving/simulate/shared_simulator.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace moesaic {
namespace {

constexpr int64_t kMs = 1'000'000;

// A sequence of so many tokens, all of which use these experts in each of two layers.
RoutingTrace Fixed(int experts, const std::vector<uint16_t>& used, int tokens = 4) {
  RoutingTrace trace;
  trace.header.num_layers = 2;
  trace.header.num_experts = experts;
  trace.header.top_k = static_cast<int32_t>(used.size());
  TraceSequence& sequence = trace.sequences.emplace_back();
  for (int i = 0; i < 2 * tokens; ++i) {
    sequence.experts.insert(sequence.experts.end(), used.begin(), used.end());
  }
  return trace;
}

const RoutingTrace& RealTrace() {
  static const RoutingTrace trace = ReadRoutingTrace(std::filesystem::path(MOESAIC_TEST_DATA_DIR) /
                                                     "traces" / "gpt_oss_20b_part.jsonl.gz");
  return trace;
}

// An expert is read in a millisecond, and computed in one, as the rest of a layer is.
SharedModel ModelOf(const RoutingTrace& trace) {
  return {.trace = &trace, .expert_bytes = 1000, .layer_compute_ns = kMs, .expert_compute_ns = kMs};
}

SharedOptions OptionsOf(MemorySharing sharing, uint64_t memory_bytes) {
  SharedOptions options;
  options.sharing = sharing;
  options.memory_bytes = memory_bytes;
  options.link_bytes_per_s = 1'000'000;
  options.predictor = "none";
  return options;
}

SharedResult Simulate(const std::vector<SharedModel>& models,
                      const std::vector<SharedRequest>& requests, const SharedOptions& options) {
  return SimulateShared(models, requests, options, SelectKernels());
}

// Of the second half, when memory has moved.
double MeanMs(const SharedResult& result) {
  const auto half = static_cast<std::ptrdiff_t>(result.latency_ns.size() / 2);
  const double sum =
      std::accumulate(result.latency_ns.begin() + half, result.latency_ns.end(), 0.0);
  return sum / kMs / static_cast<double>(std::ssize(result.latency_ns) - half);
}

TEST(SharedSimulatorTest, ARequestTakesWhatItsLayersTake) {
  const RoutingTrace trace = Fixed(4, {0, 1});
  for (const MemorySharing sharing :
       {MemorySharing::kPool, MemorySharing::kSplit, MemorySharing::kSwap}) {
    // The second one comes when all that it needs is there, and finds the model at rest.
    const SharedResult result =
        Simulate({ModelOf(trace)}, {{0, 0, 1, 2}, {100 * kMs, 0, 3, 1}}, OptionsOf(sharing, 8000));
    // Two experts are read in each layer, the second one while the first is computed; a step with
    // all of them takes 2 * (1 + 2) ms. As a whole, all eight are read first.
    const int64_t reading = sharing == MemorySharing::kSwap ? 8 : 2;
    EXPECT_EQ(result.latency_ns[0], (12 + reading) * kMs);
    EXPECT_EQ(result.latency_ns[1], 6 * kMs);  // three tokens of one step choose the same experts
    EXPECT_EQ(result.models[0].steps, 3);
    EXPECT_EQ(result.models[0].read_bytes, sharing == MemorySharing::kSwap ? 8000u : 4000u);
    EXPECT_EQ(result.models[0].blocked_ns, sharing == MemorySharing::kSwap ? 0 : 2 * kMs);
    EXPECT_EQ(result.models[0].expert_accesses, 12u);
    EXPECT_EQ(result.models[0].hits, sharing == MemorySharing::kSwap ? 12u : 8u);
  }
}

TEST(SharedSimulatorTest, WhoComputesAtTheSameTimeSharesTheProcessors) {
  const RoutingTrace trace = Fixed(2, {0});
  // When both have their experts.
  const std::vector<SharedRequest> requests = {
      {0, 0, 1, 1}, {50 * kMs, 1, 1, 1}, {100 * kMs, 0, 1, 1}, {100 * kMs, 1, 1, 1}};
  const SharedResult split =
      Simulate({ModelOf(trace), ModelOf(trace)}, requests, OptionsOf(MemorySharing::kSplit, 8000));
  EXPECT_EQ(split.latency_ns[2], 8 * kMs);
  EXPECT_EQ(split.latency_ns[3], 8 * kMs);
  // One server: the second one's step begins when the first one's has ended.
  const SharedResult pool =
      Simulate({ModelOf(trace), ModelOf(trace)}, requests, OptionsOf(MemorySharing::kPool, 8000));
  EXPECT_EQ(pool.latency_ns[2] + pool.latency_ns[3], (4 + 8) * kMs);
}

TEST(SharedSimulatorTest, AStepThatWaitsForExpertsGivesItsTurnAway) {
  const RoutingTrace trace = Fixed(2, {0});
  SharedModel computes_long = ModelOf(trace);
  computes_long.layer_compute_ns = 0;
  const std::vector<SharedRequest> requests = {{0, 0, 1, 1}, {0, 1, 1, 1}};
  const SharedResult pool =
      Simulate({computes_long, computes_long}, requests, OptionsOf(MemorySharing::kPool, 8000));
  // Four experts, of each model in turn, a millisecond each; each is computed while the next one is
  // read.
  EXPECT_EQ(pool.latency_ns[0] + pool.latency_ns[1], (4 + 5) * kMs);
}

TEST(SharedSimulatorTest, ModelsThatDoNotFitTogetherAreLoadedForEachOther) {
  const RoutingTrace trace = Fixed(2, {0});
  SharedModel model = ModelOf(trace);
  model.other_bytes = 6000;
  const SharedOptions options = OptionsOf(MemorySharing::kSwap, 12'000);  // one has 10,000
  const SharedResult result =
      Simulate({model, model},
               {{0, 0, 1, 1}, {kMs, 1, 1, 1}, {2 * kMs, 0, 1, 1}, {200 * kMs, 0, 1, 1}}, options);
  EXPECT_EQ(result.models[0].loads, 2);
  EXPECT_EQ(result.models[1].loads, 1);
  EXPECT_EQ(result.models[0].read_bytes, 20'000u);
  EXPECT_LE(result.most_bytes, options.memory_bytes);
  // Ten milliseconds to read it, four to answer. The third one comes while the first model is
  // being loaded; the second model leaves when it has answered.
  EXPECT_EQ(result.latency_ns[0], 14 * kMs);
  EXPECT_EQ(result.latency_ns[2], result.latency_ns[0] - 2 * kMs);
  EXPECT_EQ(result.latency_ns[1], (14 - 1 + 14) * kMs);
  EXPECT_EQ(result.latency_ns[3], 14 * kMs);
}

TEST(SharedSimulatorTest, LoadingTakesItsTimeBeforeItReads) {
  const RoutingTrace trace = Fixed(2, {0});
  SharedModel model = ModelOf(trace);
  model.other_bytes = 6000;
  model.load_ns = 5 * kMs;
  const SharedResult result = Simulate({model, model}, {{0, 0, 1, 1}, {50 * kMs, 0, 1, 1}},
                                       OptionsOf(MemorySharing::kSwap, 12'000));
  EXPECT_EQ(result.latency_ns[0], (5 + 10 + 4) * kMs);
  EXPECT_EQ(result.latency_ns[1], 4 * kMs);
}

// As a server that has just started: layer after layer, as far as there is room.
TEST(SharedSimulatorTest, MayBeginWithFullCaches) {
  const RoutingTrace trace = Fixed(4, {0, 1});
  for (const MemorySharing sharing : {MemorySharing::kPool, MemorySharing::kSplit}) {
    SharedOptions options = OptionsOf(sharing, 8000);
    options.preload = true;
    const SharedResult all = Simulate({ModelOf(trace)}, {{0, 0, 1, 1}}, options);
    EXPECT_EQ(all.latency_ns[0], 6 * kMs);
    EXPECT_EQ(all.models[0].read_bytes, 0u);
    // The first layer's four and one of the second's two.
    options.memory_bytes = 5000;
    const SharedResult part = Simulate({ModelOf(trace)}, {{0, 0, 1, 1}}, options);
    EXPECT_EQ(part.models[0].hits, 3u);
    EXPECT_EQ(part.models[0].read_bytes, 1000u);
  }
}

// Requests to two models with the routing of one, so many of a hundred to the first.
std::vector<SharedRequest> Mixed(int of_first, int count, int64_t every_ns) {
  std::vector<SharedRequest> requests;
  for (int i = 0; i < count; ++i) {
    const size_t model = (i * 37) % 100 < of_first ? 0 : 1;
    requests.push_back({i * every_ns, model, 4, 8});
  }
  return requests;
}

std::vector<SharedModel> TwoRealModels() {
  SharedModel model;
  model.trace = &RealTrace();
  model.expert_bytes = uint64_t{3} << 20;
  model.other_bytes = uint64_t{64} << 20;
  model.floor_bytes = uint64_t{115} << 20;
  model.layer_compute_ns = kMs / 4;
  model.expert_compute_ns = kMs / 16;
  return {model, model};
}

SharedOptions HalfOfTwo(MemorySharing sharing) {
  SharedOptions options = OptionsOf(sharing, uint64_t{2432} << 20);  // of 2 * (2304 + 64) MiB
  options.link_bytes_per_s = 2'000'000'000;
  options.predictor = "blend";
  return options;
}

TEST(SharedSimulatorTest, MemoryGoesToTheModelThatIsAsked) {
  const auto requests = Mixed(96, 300, 250 * kMs);
  const SharedResult pool = Simulate(TwoRealModels(), requests, HalfOfTwo(MemorySharing::kPool));
  const SharedResult split = Simulate(TwoRealModels(), requests, HalfOfTwo(MemorySharing::kSplit));
  EXPECT_GT(pool.models[0].given_bytes, uint64_t{200} << 20);
  EXPECT_GT(pool.models[0].expert_bytes, pool.models[1].expert_bytes * 3 / 2);
  EXPECT_GE(pool.models[1].expert_bytes, uint64_t{115} << 20);  // its floor
  EXPECT_EQ(split.models[0].expert_bytes, split.models[1].expert_bytes);
  EXPECT_EQ(split.models[0].given_bytes, 0u);
  EXPECT_LT(MeanMs(pool), 0.8 * MeanMs(split));
  EXPECT_LE(pool.most_bytes, HalfOfTwo(MemorySharing::kPool).memory_bytes);
}

TEST(SharedSimulatorTest, NothingMovesWhenBothAreAskedAlike) {
  const auto requests = Mixed(50, 200, 250 * kMs);
  const SharedResult pool = Simulate(TwoRealModels(), requests, HalfOfTwo(MemorySharing::kPool));
  EXPECT_EQ(pool.models[0].given_bytes + pool.models[1].given_bytes, 0u);
}

TEST(SharedSimulatorTest, IsDeterministicAndAnswersEverything) {
  // More requests at once than run, in the least memory there may be: layers run in waves.
  std::vector<SharedModel> models = TwoRealModels();
  for (SharedModel& model : models) model.floor_bytes = 0;
  const auto requests = Mixed(50, 60, kMs);
  for (const MemorySharing sharing :
       {MemorySharing::kPool, MemorySharing::kSplit, MemorySharing::kSwap}) {
    SharedOptions options = HalfOfTwo(sharing);
    options.memory_bytes = 2 * ((uint64_t{64} << 20) + 6 * (uint64_t{3} << 20));
    options.most_seqs = 8;
    options.step_tokens = 16;
    const SharedResult first = Simulate(models, requests, options);
    const SharedResult second = Simulate(models, requests, options);
    EXPECT_EQ(first.latency_ns, second.latency_ns);
    for (const int64_t latency : first.latency_ns) EXPECT_GT(latency, 0);
    EXPECT_EQ(first.models[0].read_bytes, second.models[0].read_bytes);
    EXPECT_LE(first.most_bytes, options.memory_bytes);
  }
}

TEST(SharedSimulatorTest, RefusesTooLittleMemory) {
  const auto refused = [](MemorySharing sharing, uint64_t bytes) {
    try {
      Simulate(TwoRealModels(), {}, OptionsOf(sharing, bytes));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  // Each needs 64 MiB, and 115 MiB of experts.
  const uint64_t one = uint64_t{179} << 20;
  EXPECT_EQ(refused(MemorySharing::kPool, 2 * one), "");
  EXPECT_NE(refused(MemorySharing::kPool, 2 * one - 1).find("--memory"), std::string::npos);
  EXPECT_EQ(refused(MemorySharing::kSplit, 2 * one), "");
  EXPECT_NE(refused(MemorySharing::kSplit, 2 * one - 2).find("358.0 MiB"), std::string::npos);
  EXPECT_EQ(refused(MemorySharing::kSwap, one), "");
  EXPECT_NE(refused(MemorySharing::kSwap, one - 1).find("'swap'"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
