// How near the simulator is to the wall clock: the same piece of a real trace through the
// simulator, and through a loader with its threads over the link of an emulated device, whose
// copies take on the wall clock what the simulator says. A layer computes by sleeping. Aims: hits
// and bytes within 2 %, blocked time within 10 %, on an otherwise idle machine.
#include <fmt/format.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/check.h"
#include "core/base/mutex.h"
#include "core/device/emulated_device.h"
#include "core/device/stream.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/expert_loader.h"
#include "serving/simulate/simulator.h"

namespace moesaic {
namespace {

constexpr int kPackets = 8;  // of an expert
constexpr uint32_t kPacketBytes = 64 * 1024;
constexpr int64_t kPacketNs = 1'000'000;
constexpr int64_t kCopyNs = kPackets * kPacketNs;
constexpr int kDepth = 8;  // hides how long threads take to wake up; two of it are for prefetches
constexpr size_t kSequences = 2;
constexpr size_t kTokens = 12;  // of each

// Reads are copies from host memory to the emulated device, queued on one stream; a second one
// reports each when it has ended.
class EmulatedLinkReader final : public AsyncReader {
 public:
  explicit EmulatedLinkReader(const DeviceSpan& slots)
      : slots_(slots), host_(kPacketBytes, std::byte{1}) {
    for (std::unique_ptr<Event>& event : events_) event = slots.device()->CreateEvent();
    copying_ = slots.device()->CreateStream();
    reporting_ = slots.device()->CreateStream();
  }

  ReadBackend backend() const override { return ReadBackend::kThreads; }
  bool aligned_only() const override { return false; }
  int free_slots() const override { return kDepth - in_flight_; }
  void Submit(const ReadRequest& request) override {
    CHECK_EQ(request.bytes, kPacketBytes);
    Event& event = *events_[next_++ % kDepth];
    ++in_flight_;
    copying_->CopyToDevice(
        slots_.Subspan(static_cast<uint64_t>(request.destination - slots_.data()), kPacketBytes),
        host_);
    copying_->Record(event);
    reporting_->Wait(event);
    reporting_->Call([this, tag = request.tag](const Error* error) {
      MutexLock lock(mutex_);
      done_.push_back({tag, error != nullptr ? -EIO : int64_t{kPacketBytes}});
      changed_.NotifyAll();
    });
  }
  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    CHECK_LT(timeout_us, 0);
    MutexLock lock(mutex_);
    while (done_.empty() && !woken_) changed_.Wait(mutex_);
    woken_ = false;
    in_flight_ -= static_cast<int>(done_.size());
    out.insert(out.end(), done_.begin(), done_.end());
    done_.clear();
  }
  void Wake() override {
    MutexLock lock(mutex_);
    woken_ = true;
    changed_.NotifyAll();
  }

 private:
  const DeviceSpan slots_;
  const std::vector<std::byte> host_;
  int in_flight_ = 0;
  size_t next_ = 0;
  Mutex mutex_;
  CondVar changed_;
  std::vector<ReadCompletion> done_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<Event> events_[kDepth];
  std::unique_ptr<Stream> copying_;
  std::unique_ptr<Stream> reporting_;
};

// Experts of kPackets each, whose bytes are blobs.
class HostSource final : public ExpertSource {
 public:
  explicit HostSource(const ExpertGrid& grid) {
    layout_.blob_bytes = layout_.slot_bytes = uint64_t{kPackets} * kPacketBytes;
    for (ExpertIndex expert = 0; expert < grid.total(); ++expert) {
      extents_.push_back(
          {0, static_cast<uint64_t>(expert) * layout_.slot_bytes, layout_.slot_bytes});
    }
    num_experts_ = grid.num_experts();
  }
  const std::vector<std::filesystem::path>& files() const override { return files_; }
  const ExpertLayout& layout() const override { return layout_; }
  bool HasLayer(int64_t) const override { return true; }
  std::span<const Extent> Extents(ExpertId id) const override {
    return {&extents_[static_cast<size_t>(id.layer * num_experts_ + id.index)], 1};
  }
  bool direct() const override { return true; }
  void Pack(ExpertId, std::span<const std::span<const std::byte>>,
            std::span<std::byte>) const override {
    CHECK(false);
  }

 private:
  int num_experts_ = 0;
  std::vector<std::filesystem::path> files_ = {"host memory"};
  ExpertLayout layout_;
  std::vector<Extent> extents_;
};

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
  const HostSource source(grid);
  const uint64_t slot_bytes = source.layout().slot_bytes;

  EmulatedSystem system;
  EmulatedDeviceOptions machine;
  machine.capacity_bytes = (static_cast<uint64_t>(options.slots) + 1) * slot_bytes;
  machine.host_to_device.bytes_per_s = kPacketBytes / (static_cast<double>(kPacketNs) * 1e-9);
  EmulatedDevice device(system, machine);
  const auto slots = device.Allocate(static_cast<uint64_t>(options.slots) * slot_bytes);
  CHECK(slots.has_value());

  ExpertLoaderOptions live;
  live.slot_memory = {slots->data(), static_cast<size_t>(slots->bytes())};
  live.packet_bytes = kPacketBytes;
  live.depth = kDepth;
  std::unique_ptr<Predictor> predictor;
  std::unique_ptr<Prefetcher> prefetcher;
  if (options.predictor != "none") {
    predictor = MakePredictor(options.predictor, shape, SelectKernels());
    prefetcher = std::make_unique<Prefetcher>(shape, *predictor, options.prefetch);
    live.prefetcher = prefetcher.get();
  }
  ExpertLoader loader(source, shape.num_layers, shape.num_experts,
                      options.policy == "lru" ? MakeLruPolicy(grid.total()) : nullptr, live,
                      std::make_unique<EmulatedLinkReader>(slots->span()));
  ExpertStats stats;
  std::vector<PinnedExpert> held;
  for (const TraceSequence& sequence : trace.sequences) {
    if (prefetcher) prefetcher->BeginRequest(0);
    for (int64_t token = 0; token < trace.tokens(sequence); ++token) {
      if (prefetcher) {
        const StepRequest request = {.token = sequence.token_ids.empty()
                                                  ? Predictor::kUnknownToken
                                                  : sequence.token_ids[static_cast<size_t>(token)],
                                     .num_rows = 1};
        prefetcher->BeginStep({&request, 1});
        loader.StepBegan();
      }
      for (int layer = 0; layer < shape.num_layers; ++layer) {
        const auto routed = trace.Experts(sequence, token, layer);
        const std::vector<int32_t> experts(routed.begin(), routed.end());
        if (prefetcher) prefetcher->OnRouting(layer, experts);
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
    if (prefetcher) prefetcher->EndRequest(0);
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
