#include "serving/simulate/simulator.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/predict/predictor.h"

namespace moesaic {
namespace {

constexpr int64_t kCopyNs = 1'000'000;

const RoutingTrace& Part() {
  static const RoutingTrace trace = ReadRoutingTrace(std::filesystem::path(MOESAIC_TEST_DATA_DIR) /
                                                     "traces" / "gpt_oss_20b_part.jsonl.gz");
  return trace;
}

// One token per entry; every layer of it uses the same experts.
RoutingTrace Handmade(int layers, int experts, std::vector<std::vector<uint16_t>> tokens) {
  RoutingTrace trace;
  trace.header.num_layers = layers;
  trace.header.num_experts = experts;
  trace.header.top_k = static_cast<int32_t>(tokens.front().size());
  TraceSequence& sequence = trace.sequences.emplace_back();
  for (const std::vector<uint16_t>& token : tokens) {
    for (int layer = 0; layer < layers; ++layer) {
      sequence.experts.insert(sequence.experts.end(), token.begin(), token.end());
    }
  }
  return trace;
}

std::vector<int> All(const RoutingTrace& trace) {
  std::vector<int> order(trace.sequences.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

SimulationOptions OnDemand(int64_t slots) {
  SimulationOptions options;
  options.slots = slots;
  options.predictor = "none";
  options.policy = "lru";
  options.expert_copy_ns = kCopyNs;
  return options;
}

SimulationResult Serve(const RoutingTrace& trace, const SimulationOptions& options) {
  Simulator simulator(trace, options, SelectKernels());
  return simulator.Run(All(trace));
}

TEST(SimulatorTest, LruHitsAreThoseOfAnIndependentCount) {
  for (const auto& [slots, hits] :
       {std::pair<int64_t, uint64_t>{192, 66713}, {96, 46921}, {768, 109840}}) {
    const SimulationResult result = Serve(Part(), OnDemand(slots));
    EXPECT_EQ(result.expert_accesses, 110592u);
    EXPECT_EQ(result.hits, hits) << slots << " slots";
    // Without prefetching every miss is one copy, and the layer waits for the whole of it.
    EXPECT_EQ(result.copies, result.expert_accesses - result.hits);
    EXPECT_EQ(result.blocked_ns, static_cast<int64_t>(result.copies) * kCopyNs);
    EXPECT_EQ(result.requests, 12);
    EXPECT_EQ(result.tokens, 1152);
  }
}

TEST(SimulatorTest, IsDeterministic) {
  SimulationOptions options;
  options.slots = 192;
  options.host_expert_ns = kCopyNs / 2;
  options.miss = MissMode::kAuto;
  const SimulationResult first = Serve(Part(), options);
  const SimulationResult second = Serve(Part(), options);
  EXPECT_EQ(first.blocked_ns, second.blocked_ns);
  EXPECT_EQ(first.packets_copied, second.packets_copied);
  EXPECT_EQ(first.hits, second.hits);
  EXPECT_EQ(first.host_computed, second.host_computed);
}

TEST(SimulatorTest, PredictionBeatsOnDemandOnARealTrace) {
  const SimulationResult on_demand = Serve(Part(), OnDemand(192));
  SimulationOptions options;
  options.slots = 192;
  const SimulationResult predicted = Serve(Part(), options);
  EXPECT_LT(predicted.blocked_ns, on_demand.blocked_ns * 3 / 4);
  EXPECT_GT(predicted.hits, on_demand.hits);
  EXPECT_GT(predicted.prefetched_used, predicted.prefetched_unused);
  // What was copied is what arrived or was given up.
  EXPECT_GE(predicted.packets_copied, predicted.copies * 8);
}

TEST(SimulatorTest, AnOracleWithTimeEnoughWaitsOnlyForTheFirstExperts) {
  SimulationOptions options;
  options.slots = 192;
  options.predictor = "oracle";
  options.layer_compute_ns = 8 * kCopyNs;
  const SimulationResult result = Serve(Part(), options);
  EXPECT_LE(result.blocked_ns, 4 * kCopyNs);
  EXPECT_EQ(result.prefetched_unused, 0u);
}

TEST(SimulatorTest, WhatIsOnItsWayIsALateHit) {
  // The next layer's expert is fetched for half of the time that its copy takes.
  const RoutingTrace trace = Handmade(4, 4, {{0}, {1}, {2}});
  SimulationOptions options;
  options.slots = 16;
  options.predictor = "oracle";
  options.layer_compute_ns = kCopyNs / 2;
  const SimulationResult result = Serve(trace, options);
  EXPECT_GT(result.late_hits, 0u);
  EXPECT_EQ(result.hits + result.late_hits, 11u);  // all but the first, which nobody could foresee
}

TEST(SimulatorTest, BeladyIsTheMostThatOnDemandCanHit) {
  uint64_t best = 0;
  for (const std::string& policy : CountingPolicyNames()) {
    SimulationOptions options = OnDemand(192);
    options.policy = policy;
    best = std::max(best, Serve(Part(), options).hits);
  }
  SimulationOptions options = OnDemand(192);
  options.policy = "belady";
  EXPECT_GT(Serve(Part(), options).hits, best);
}

TEST(SimulatorTest, TheHostComputesWhatIsMissing) {
  SimulationOptions options = OnDemand(192);
  options.miss = MissMode::kHost;
  options.host_expert_ns = kCopyNs / 2;
  const SimulationResult result = Serve(Part(), options);
  // Nothing is ever fetched, so nothing is ever resident.
  EXPECT_EQ(result.hits, 0u);
  EXPECT_EQ(result.host_computed, result.expert_accesses);
  EXPECT_EQ(result.blocked_ns, static_cast<int64_t>(result.expert_accesses) * kCopyNs / 2);
  EXPECT_EQ(result.packets_copied, 0u);
}

TEST(SimulatorTest, LinkAndHostMeetInTheMiddle) {
  // Four misses, host and link equally fast: two each.
  const RoutingTrace trace = Handmade(1, 4, {{0, 1, 2, 3}});
  SimulationOptions options = OnDemand(4);
  options.miss = MissMode::kAuto;
  options.host_expert_ns = kCopyNs;
  const SimulationResult result = Serve(trace, options);
  EXPECT_EQ(result.host_computed, 2u);
  EXPECT_EQ(result.blocked_ns, 2 * kCopyNs);
}

TEST(SimulatorTest, SeveralDevicesCopyAtTheSameTime) {
  const RoutingTrace trace = Handmade(1, 4, {{0, 1, 2, 3}});
  SimulationOptions options = OnDemand(16);
  EXPECT_EQ(Serve(trace, options).blocked_ns, 4 * kCopyNs);
  options.devices = 4;
  EXPECT_EQ(Serve(trace, options).blocked_ns, kCopyNs);
}

TEST(SimulatorTest, SlotsLeftOverAreTheFirstDevices) {
  const RoutingTrace trace = Handmade(1, 4, {{0}, {2}, {0}, {2}});  // all on the first device
  SimulationOptions options = OnDemand(3);
  options.devices = 2;
  EXPECT_EQ(Serve(trace, options).hits, 2u);
}

TEST(SimulatorTest, WhatAnEndedRequestUsedIsForgotten) {
  RoutingTrace trace = Handmade(1, 3, {{0}, {0}, {0}, {1}});
  trace.sequences.push_back(Handmade(1, 3, {{1}, {2}, {1}}).sequences.front());
  SimulationOptions options = OnDemand(2);
  options.policy = "request-eam";
  // 0 twice; then 1, and again when 2 has taken the place of 0.
  EXPECT_EQ(Serve(trace, options).hits, 4u);
}

TEST(SimulatorTest, WithoutACacheEverythingIsCopiedEachTime) {
  const RoutingTrace trace = Handmade(2, 8, {{0, 1}, {0, 1}, {0, 1}});
  SimulationOptions options = OnDemand(16);
  EXPECT_EQ(Serve(trace, options).hits, 8u);
  options.cache_between_layers = false;
  const SimulationResult result = Serve(trace, options);
  EXPECT_EQ(result.hits, 0u);
  EXPECT_EQ(result.copies, 12u);
}

TEST(SimulatorTest, EveryPredictorAndPolicyServesEveryAccess) {
  RoutingTrace trace = Part();
  trace.sequences.resize(2);
  for (TraceSequence& sequence : trace.sequences) {
    sequence.experts.resize(8 * 24 * 4);
    sequence.token_ids.resize(8);
  }
  std::vector<std::string> predictors = PredictorNames();
  std::erase(predictors, "next-gate");  // a trace has no hidden states
  predictors.emplace_back("oracle");
  std::vector<std::string> policies = SimulatedPolicyNames();
  std::erase(policies, "belady");
  for (const std::string& predictor : predictors) {
    for (const std::string& policy : policies) {
      for (const int devices : {1, 3}) {
        SimulationOptions options;
        options.slots = 24;  // few enough that prefetches and demand fight for slots
        options.devices = devices;
        options.predictor = predictor;
        options.policy = policy;
        options.host_expert_ns = 2 * kCopyNs;
        options.miss = devices == 1 ? MissMode::kFetch : MissMode::kAuto;
        const SimulationResult result = Serve(trace, options);
        EXPECT_EQ(result.expert_accesses, uint64_t{2 * 8 * 24 * 4});
        EXPECT_EQ(result.compute_ns, int64_t{2 * 8 * 24} * kCopyNs);
        EXPECT_LE(result.hits + result.late_hits, result.expert_accesses);
        EXPECT_LE(result.copies * 8, result.packets_copied);
      }
    }
  }
}

TEST(SimulatorTest, RefusesOptionsThatCannotWork) {
  const auto refused = [](SimulationOptions options) {
    try {
      Serve(Part(), options);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refused(OnDemand(3)).find("--slots"), std::string::npos);
  SimulationOptions options = OnDemand(192);
  options.miss = MissMode::kAuto;
  EXPECT_NE(refused(options).find("--host-expert-us"), std::string::npos);
  options = OnDemand(192);
  options.policy = "mru";
  EXPECT_NE(refused(options).find("mru"), std::string::npos);
  options = OnDemand(192);
  options.policy = "next-use";
  EXPECT_NE(refused(options).find("--predictor"), std::string::npos);
  options = OnDemand(192);
  options.devices = 0;
  EXPECT_NE(refused(options).find("--devices"), std::string::npos);
  options = OnDemand(192);
  options.predictor = "tarot";
  EXPECT_NE(refused(options).find("tarot"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
