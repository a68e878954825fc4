// The simulator pinned to what serves: a loader with its threads, stepped through a piece of a real
// trace on a virtual clock, takes the same decisions at the same times.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <numeric>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "prefetch/link/expert_loader.h"
#include "serving/simulate/simulator.h"
#include "tests/serving/simulate/flat_source.h"
#include "tests/serving/simulate/stepped_link.h"

namespace moesaic {

void PrintTo(const FlowEvent& event, std::ostream* out) {
  *out << "at " << event.now_ns << " ns decision " << static_cast<int>(event.kind) << " on expert "
       << event.expert << ", " << event.detail;
}

namespace {

constexpr int kPackets = 8;
constexpr uint32_t kPacketBytes = 4096;
constexpr int64_t kPacketNs = 125'000;

// Every decision, and with them what is resident.
class Log final : public FlowLog {
 public:
  void OnDecision(const FlowEvent& event) override {
    MutexLock lock(mutex_);
    events_.push_back(event);
    using Kind = FlowEvent::Kind;
    if (event.kind == Kind::kArrived) resident_.insert(event.expert);
    if (event.kind == Kind::kLoad || event.kind == Kind::kPrefetch) {
      resident_.erase(static_cast<ExpertIndex>(event.detail));
    }
  }
  bool resident(ExpertIndex expert) {
    MutexLock lock(mutex_);
    return resident_.count(expert) > 0;
  }
  std::vector<FlowEvent> events() {
    MutexLock lock(mutex_);
    return events_;
  }

 private:
  Mutex mutex_;
  std::vector<FlowEvent> events_ GUARDED_BY(mutex_);
  std::set<ExpertIndex> resident_ GUARDED_BY(mutex_);
};

RoutingTrace Piece() {
  RoutingTrace trace = ReadRoutingTrace(std::filesystem::path(MOESAIC_TEST_DATA_DIR) / "traces" /
                                        "gpt_oss_20b_part.jsonl.gz");
  trace.sequences.resize(2);
  const RoutingTraceHeader& header = trace.header;
  for (TraceSequence& sequence : trace.sequences) {
    const size_t tokens = 24;
    sequence.experts.resize(tokens * static_cast<size_t>(header.num_layers * header.top_k));
    if (!sequence.token_ids.empty()) sequence.token_ids.resize(tokens);
  }
  return trace;
}

// What the simulator's semantics say, done by a loader and its threads.
class LiveRun {
 public:
  LiveRun(const RoutingTrace& trace, const SimulationOptions& options)
      : trace_(trace),
        options_(options),
        shape_{trace.header.num_layers, trace.header.num_experts, trace.header.top_k, 1},
        grid_(shape_.num_layers, shape_.num_experts),
        source_(grid_, uint64_t{kPackets} * kPacketBytes),
        link_(clock_, kPacketNs) {
    ExpertLoaderOptions loader;
    loader.budget_bytes = static_cast<uint64_t>(options.slots) * source_.layout().slot_bytes;
    loader.packet_bytes = kPacketBytes;
    loader.depth = 1;
    loader.clock = &clock_;
    loader.log = &log_;
    if (options.predictor != "none") {
      predictor_ = MakePredictor(options.predictor, shape_, SelectKernels());
      step_predictor_ = std::make_unique<StepPredictor>(shape_, *predictor_, options.prefetch);
      loader.step_predictor = step_predictor_.get();
    }
    loader_ = std::make_unique<ExpertLoader>(
        source_, shape_.num_layers, shape_.num_experts,
        options.policy == "lru" ? MakeLruPolicy(grid_.total()) : nullptr, loader,
        std::make_unique<SteppedReader>(link_));
  }
  // The loader waits for the read in flight.
  ~LiveRun() {
    if (link_.end_ns()) AdvanceTo(*link_.end_ns());
    loader_.reset();
  }

  void Run() {
    for (const TraceSequence& sequence : trace_.sequences) {
      if (step_predictor_) step_predictor_->BeginRequest(0);
      for (int64_t token = 0; token < trace_.tokens(sequence); ++token) {
        if (step_predictor_) {
          const StepRequest request = {
              .token = sequence.token_ids.empty() ? Predictor::kUnknownToken
                                                  : sequence.token_ids[static_cast<size_t>(token)],
              .num_rows = 1};
          step_predictor_->BeginStep({&request, 1});
          loader_->StepBegan();
        }
        for (int layer = 0; layer < shape_.num_layers; ++layer) {
          const auto routed = trace_.Experts(sequence, token, layer);
          RunLayer(layer, {routed.begin(), routed.end()});
        }
      }
      if (step_predictor_) step_predictor_->EndRequest(0);
    }
  }

  std::vector<FlowEvent> events() { return log_.events(); }
  const ExpertStats& stats() const { return stats_; }
  int64_t blocked_ns() const { return blocked_ns_; }

 private:
  void RunLayer(int layer, const std::vector<int32_t>& routed) {
    if (step_predictor_) step_predictor_->OnRouting(layer, routed);
    needed_.clear();
    std::vector<ExpertId> ids;
    for (const int32_t index : routed) {
      needed_.insert(layer * shape_.num_experts + index);
      ids.push_back(grid_.Id(layer * shape_.num_experts + index));
    }
    const int64_t begin_ns = clock_.NowNs();
    loader_->BeginLayer(ids);
    std::vector<PinnedExpert> held;
    TakeReady(held);
    while (!needed_.empty()) {
      link_.Open();
      ASSERT_TRUE(link_.end_ns().has_value()) << "the layer waits for nothing";
      AdvanceTo(*link_.end_ns());
      TakeReady(held);
    }
    blocked_ns_ += clock_.NowNs() - begin_ns;
    const int64_t end_ns = clock_.NowNs() + options_.layer_compute_ns;
    while (clock_.NowNs() < end_ns) {
      link_.Open();
      AdvanceTo(std::min(end_ns, link_.end_ns().value_or(end_ns)));
    }
    for (const PinnedExpert& expert : held) loader_->Release(expert);
    stats_ += loader_->EndLayer();
  }

  void TakeReady(std::vector<PinnedExpert>& held) {
    const size_t before = needed_.size();
    std::erase_if(needed_, [this](ExpertIndex expert) { return log_.resident(expert); });
    if (needed_.size() == before) return;  // NextReady would wait
    const size_t had = held.size();
    ASSERT_TRUE(loader_->NextReady(held));
    ASSERT_EQ(held.size() - had, before - needed_.size());
  }

  void AdvanceTo(int64_t now_ns) {
    clock_.AdvanceNs(now_ns - clock_.NowNs());
    if (link_.end_ns() == now_ns) link_.Arrive();
  }

  const RoutingTrace& trace_;
  const SimulationOptions& options_;
  const PredictorShape shape_;
  const ExpertGrid grid_;
  const FlatSource source_;
  Log log_;
  VirtualClock clock_;
  SteppedLink link_;
  std::unique_ptr<Predictor> predictor_;
  std::unique_ptr<StepPredictor> step_predictor_;
  std::unique_ptr<ExpertLoader> loader_;
  std::set<ExpertIndex> needed_;  // of the open layer, and not handed out
  ExpertStats stats_;
  int64_t blocked_ns_ = 0;
};

struct Setting {
  std::string predictor;
  std::string policy;
  int64_t slots;
  int64_t layer_compute_ns;
};

class SimulatorThreadsTest : public testing::TestWithParam<Setting> {};

TEST_P(SimulatorThreadsTest, TheLoaderDecidesAsTheSimulatorDoes) {
  const RoutingTrace trace = Piece();
  SimulationOptions options;
  options.slots = GetParam().slots;
  options.layer_compute_ns = GetParam().layer_compute_ns;
  options.expert_copy_ns = kPackets * kPacketNs;
  options.packets = kPackets;
  options.predictor = GetParam().predictor;
  options.policy = GetParam().policy;
  Log simulated;
  options.log = &simulated;
  Simulator simulator(trace, options, SelectKernels());
  std::vector<int> order(trace.sequences.size());
  std::iota(order.begin(), order.end(), 0);
  const SimulationResult result = simulator.Run(order);

  LiveRun live(trace, options);
  live.Run();
  EXPECT_EQ(live.blocked_ns(), result.blocked_ns);
  EXPECT_EQ(live.stats().hits, result.hits);
  EXPECT_EQ(live.stats().late_hits, result.late_hits);
  EXPECT_EQ(live.stats().prefetched, result.prefetches);
  const std::vector<FlowEvent> expected = simulated.events();
  const std::vector<FlowEvent> happened = live.events();
  ASSERT_EQ(happened.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(happened[i], expected[i]) << "decision " << i << " of " << expected.size();
  }
  // The piece has everything in it that is to be compared.
  const auto count = [&](FlowEvent::Kind kind) {
    return std::count_if(expected.begin(), expected.end(),
                         [kind](const FlowEvent& event) { return event.kind == kind; });
  };
  EXPECT_GT(count(FlowEvent::Kind::kLoad), 1000);
  if (GetParam().predictor != "none") {
    EXPECT_GT(count(FlowEvent::Kind::kPrefetch), 100);
    EXPECT_GT(count(FlowEvent::Kind::kCancel), 10);
    EXPECT_GT(result.late_hits, 5u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, SimulatorThreadsTest,
    testing::Values(Setting{"none", "lru", 192, 1'000'000},
                    // Times that are no multiples of each other: copies end within layers.
                    Setting{"blend", "next-use", 192, 730'000},
                    Setting{"transition", "lru", 192, 2'345'678},
                    // Few slots: layers and prefetches fight for them.
                    Setting{"blend", "next-use", 10, 730'000}),
    [](const auto& setting) {
      return setting.param.predictor + "_" + std::to_string(setting.param.slots);
    });

}  // namespace
}  // namespace moesaic
