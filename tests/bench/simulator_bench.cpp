// How near the simulator is to the wall clock: the same piece of a real trace through the
// simulator, and through a loader with its threads over the link of an emulated device, whose
// copies take on the wall clock what the simulator says. A layer computes by sleeping. Aims: hits
// and bytes within 2 %, blocked time within 10 %, on an otherwise idle machine.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/check.h"
#include "core/device/emulated_device.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/link/device_reader.h"
#include "prefetch/link/expert_loader.h"
#include "serving/simulate/simulator.h"
#include "tests/serving/simulate/flat_source.h"

namespace moesaic {
namespace {

constexpr int kPackets = 8;  // of an expert
constexpr uint32_t kPacketBytes = 64 * 1024;
constexpr int64_t kPacketNs = 1'000'000;
constexpr int64_t kCopyNs = kPackets * kPacketNs;
constexpr int kDepth = 8;  // hides how long threads take to wake up; two of it are for prefetches
constexpr size_t kSequences = 2;
constexpr size_t kTokens = 12;  // of each

struct Outcome {
  double hits = 0;
  double bytes = 0;
  double blocked_s = 0;
};

Outcome Simulate(const RoutingTrace& trace, const SimulationOptions& options) {
  Simulator simulator(trace, options, SelectKernels());
  std::vector<int> order(trace.sequences.size());
  std::iota(order.begin(), order.end(), 0);
  const SimulationResult result = simulator.Run(order);
  return {static_cast<double>(result.hits), static_cast<double>(result.bytes_copied),
          static_cast<double>(result.blocked_ns) * 1e-9};
}

Outcome RunLive(const RoutingTrace& trace, const SimulationOptions& options) {
  const PredictorShape shape{trace.header.num_layers, trace.header.num_experts, trace.header.top_k,
                             1};
  const ExpertGrid grid(shape.num_layers, shape.num_experts);
  constexpr uint64_t kSlotBytes = uint64_t{kPackets} * kPacketBytes;
  const FlatSource source(grid, kSlotBytes);
  const std::vector<std::byte> home(static_cast<size_t>(grid.total()) * kSlotBytes, std::byte{1});

  EmulatedSystem system;
  EmulatedDeviceOptions machine;
  machine.capacity_bytes = (static_cast<uint64_t>(options.slots) + 1) * kSlotBytes;
  machine.host_to_device.bytes_per_s = kPacketBytes / (static_cast<double>(kPacketNs) * 1e-9);
  EmulatedDevice device(system, machine);
  const auto slots = device.Allocate(static_cast<uint64_t>(options.slots) * kSlotBytes);
  CHECK(slots.has_value());

  ExpertLoaderOptions live;
  live.slot_memory = {slots->data(), static_cast<size_t>(slots->bytes())};
  live.packet_bytes = kPacketBytes;
  live.depth = kDepth;
  std::unique_ptr<Predictor> predictor;
  std::unique_ptr<StepPredictor> step_predictor;
  if (options.predictor != "none") {
    predictor = MakePredictor(options.predictor, shape, SelectKernels());
    step_predictor = std::make_unique<StepPredictor>(shape, *predictor, options.prefetch);
    live.step_predictor = step_predictor.get();
  }
  ExpertLoader loader(source, shape.num_layers, shape.num_experts,
                      options.policy == "lru" ? MakeLruPolicy(grid.total()) : nullptr, live,
                      std::make_unique<DeviceReader>(std::vector<std::span<const std::byte>>{home},
                                                     slots->span(), kDepth));
  ExpertStats stats;
  std::vector<PinnedExpert> held;
  for (const TraceSequence& sequence : trace.sequences) {
    if (step_predictor) step_predictor->BeginRequest(0);
    for (int64_t token = 0; token < trace.tokens(sequence); ++token) {
      if (step_predictor) {
        const StepRequest request = {.token = sequence.token_ids.empty()
                                                  ? Predictor::kUnknownToken
                                                  : sequence.token_ids[static_cast<size_t>(token)],
                                     .num_rows = 1};
        step_predictor->BeginStep({&request, 1});
        loader.StepBegan();
      }
      for (int layer = 0; layer < shape.num_layers; ++layer) {
        const auto routed = trace.Experts(sequence, token, layer);
        const std::vector<int32_t> experts(routed.begin(), routed.end());
        if (step_predictor) step_predictor->OnRouting(layer, experts);
        std::vector<ExpertId> needed;
        for (const int32_t index : experts) {
          needed.push_back(grid.Id(layer * shape.num_experts + index));
        }
        loader.BeginLayer(needed);
        held.clear();
        while (loader.NextReady(held)) {
        }
        std::this_thread::sleep_for(std::chrono::nanoseconds(options.layer_compute_ns));
        for (const PinnedExpert& expert : held) loader.Release(expert);
        stats += loader.EndLayer();
      }
    }
    if (step_predictor) step_predictor->EndRequest(0);
  }
  return {static_cast<double>(stats.hits),
          static_cast<double>(loader.transfer_counters().packets_issued) * kPacketBytes,
          static_cast<double>(stats.blocked_us) * 1e-6};
}

std::string Compared(double live, double simulated, const char* format) {
  return fmt::format("{} | {} | {:+.1f}%", fmt::format(fmt::runtime(format), simulated),
                     fmt::format(fmt::runtime(format), live), 100 * (live / simulated - 1));
}

void Main() {
  RoutingTrace trace = ReadRoutingTrace(std::filesystem::path(MOESAIC_BENCH_DATA_DIR) / "traces" /
                                        "gpt_oss_20b_part.jsonl.gz");
  trace.sequences.resize(kSequences);
  for (TraceSequence& sequence : trace.sequences) {
    sequence.experts.resize(kTokens *
                            static_cast<size_t>(trace.header.num_layers * trace.header.top_k));
    if (!sequence.token_ids.empty()) sequence.token_ids.resize(kTokens);
  }
  fmt::print(
      "{} tokens, {} layers; a copy takes {} ms in {} packets\n\n"
      "| predictor, policy, c/f | hits simulated | live | | MiB simulated | live | | blocked s "
      "simulated | live | |\n|---|---|---|---|---|---|---|---|---|---|\n",
      kSequences * kTokens, trace.header.num_layers, kCopyNs / 1'000'000, kPackets);
  for (const auto& [predictor, policy, ratio] :
       {std::tuple{"none", "lru", 1.0}, std::tuple{"blend", "next-use", 1.0},
        std::tuple{"blend", "next-use", 2.0}}) {
    SimulationOptions options;
    options.slots = 192;
    options.predictor = predictor;
    options.policy = policy;
    options.expert_copy_ns = kCopyNs;
    options.packets = kPackets;
    options.expert_bytes = uint64_t{kPackets} * kPacketBytes;
    options.layer_compute_ns = static_cast<int64_t>(ratio * static_cast<double>(kCopyNs));
    const Outcome simulated = Simulate(trace, options);
    const Outcome live = RunLive(trace, options);
    fmt::print("| {}, {}, {} | {} | {} | {} |\n", predictor, policy, ratio,
               Compared(live.hits, simulated.hits, "{:.0f}"),
               Compared(live.bytes / (1 << 20), simulated.bytes / (1 << 20), "{:.0f}"),
               Compared(live.blocked_s, simulated.blocked_s, "{:.2f}"));
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace moesaic

int main() { moesaic::Main(); }
