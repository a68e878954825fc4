#include "serving/simulate/simulator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/link/expert_flow.h"
#include "prefetch/predict/predictor.h"
#include "serving/simulate/future_uses.h"

namespace moesaic {
namespace {

constexpr int kRecallDistances = 4;
constexpr int kRecallBins = 20;
constexpr int kRequest = 0;  // one at a time

struct Device {
  std::unique_ptr<ExpertFlow> flow;
  int64_t link_ns = 0;  // the link has moved, or was idle, up to here
  std::optional<ExpertFlow::Packet> packet;
  int64_t packet_end_ns = 0;
  std::vector<ExpertIndex> needed;  // of the running layer
  std::vector<ExpertIndex> held;    // of these, handed out
};

int32_t TokenAt(const TraceSequence& sequence, int64_t token) {
  return sequence.token_ids.empty() ? Predictor::kUnknownToken
                                    : sequence.token_ids[static_cast<size_t>(token)];
}

}  // namespace

class Simulator::Impl {
 public:
  Impl(const RoutingTrace& trace, const SimulationOptions& options, const CpuKernels& kernels)
      : trace_(trace),
        options_(options),
        kernels_(kernels),
        shape_{trace.header.num_layers, trace.header.num_experts, trace.header.top_k, 1},
        grid_(trace.header.num_layers, trace.header.num_experts),
        packet_ns_(options.expert_copy_ns / options.packets) {
    if (options.devices < 1 || options.devices > kMaxLinks) {
      Fail(ErrorKind::kInvalidArgument, "--devices: {} is not between 1 and {}", options.devices,
           kMaxLinks);
    }
    if (options.slots / options.devices < shape_.top_k) {
      Fail(ErrorKind::kInvalidArgument,
           "--slots: {} slots on {} devices are fewer than the {} experts that a token may use in "
           "one layer of one device",
           options.slots, options.devices, shape_.top_k);
    }
    if (packet_ns_ <= 0 || options.layer_compute_ns < 0) {
      Fail(ErrorKind::kInvalidArgument, "--expert-copy-us and --layer-compute-us must be positive");
    }
    if (options.miss != MissMode::kFetch && options.host_expert_ns <= 0) {
      Fail(ErrorKind::kInvalidArgument, "--miss host and auto need --host-expert-us");
    }
    if (options.predictor != "none" && options.predictor != "oracle") {
      predictor_ = MakePredictor(options.predictor, shape_, kernels_);
    }
    stated_.resize(static_cast<size_t>(kRecallDistances) * Cells());
  }

  void Train(const RoutingTrace& trace, const TraceSequence& sequence);
  SimulationResult Run(std::span<const int> order);

 private:
  size_t Cells() const { return static_cast<size_t>(grid_.total()); }
  Device& On(ExpertIndex expert) {
    // Spreads every layer's experts evenly, and not the same ones to the same device in each.
    return devices_[static_cast<size_t>(
        (expert % grid_.num_experts() + expert / grid_.num_experts()) % options_.devices)];
  }

  void SetUp(std::span<const int> order);
  std::unique_ptr<EvictionPolicy> MakePolicy() const;
  void Step(const TraceSequence& sequence, int64_t token);
  void Layer(const TraceSequence& sequence, int64_t token, int layer);
  void Advance(Device& device, int64_t until_ns);
  void NoteRecall(int layer);
  void StatePredictions(int layer);

  const RoutingTrace& trace_;
  const SimulationOptions options_;
  const CpuKernels& kernels_;
  const PredictorShape shape_;
  const ExpertGrid grid_;
  const int64_t packet_ns_;
  std::unique_ptr<Predictor> predictor_;
  std::unique_ptr<StepPredictor> step_predictor_;
  std::unique_ptr<PolicyCounts> counts_;
  std::unique_ptr<FutureUses> future_;
  std::vector<Device> devices_;
  int64_t now_ns_ = 0;
  SimulationResult result_;

  std::vector<int32_t> needed_;
  std::vector<MissedExpert> missed_;
  std::vector<float> stated_;  // [distances, layers, experts] of the running iteration
  std::vector<int> ranking_;
  std::vector<double> bin_stated_ = std::vector<double>(kRecallDistances * kRecallBins, 0.0);
  std::vector<double> bin_happened_ = std::vector<double>(kRecallDistances * kRecallBins, 0.0);
};

void Simulator::Impl::Train(const RoutingTrace& trace, const TraceSequence& sequence) {
  if (predictor_ == nullptr) return;
  predictor_->BeginRequest(kRequest);
  for (int64_t token = 0; token < trace.tokens(sequence); ++token) {
    predictor_->BeginIteration(kRequest, TokenAt(sequence, token), 1);
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      const auto experts = trace.Experts(sequence, token, layer);
      needed_.assign(experts.begin(), experts.end());
      predictor_->Observe(kRequest, layer, needed_);
    }
  }
  predictor_->EndRequest(kRequest);
}

void Simulator::Impl::SetUp(std::span<const int> order) {
  if (options_.predictor == "oracle") predictor_ = MakeOraclePredictor(trace_, order);
  if (predictor_) {
    step_predictor_ = std::make_unique<StepPredictor>(shape_, *predictor_, options_.prefetch);
  }
  if (options_.policy == "next-use" && !step_predictor_) {
    Fail(ErrorKind::kInvalidArgument,
         "--policy next-use evicts by predictions: give --predictor, or use --policy lru");
  }
  if (options_.policy == "belady") future_ = std::make_unique<FutureUses>(trace_, order);
  counts_ = std::make_unique<PolicyCounts>(grid_);
  devices_.resize(static_cast<size_t>(options_.devices));
  std::vector<std::vector<ExpertIndex>> experts(devices_.size());
  for (ExpertIndex expert = 0; expert < grid_.total(); ++expert) {
    experts[static_cast<size_t>(&On(expert) - devices_.data())].push_back(expert);
  }
  for (int i = 0; i < options_.devices; ++i) {
    LinkParameters link;
    link.experts = experts[static_cast<size_t>(i)];
    link.copies.assign(Cells(), {options_.packets, 1});
    link.slots =
        options_.slots / options_.devices + (i < options_.slots % options_.devices ? 1 : 0);
    link.lanes = static_cast<int>(link.slots);
    link.max_packets = options_.packets;
    ExpertFlowOptions flow;
    flow.link = i;
    flow.copy_ns = options_.expert_copy_ns;
    flow.step_predictor = step_predictor_.get();
    flow.log = options_.log;
    devices_[static_cast<size_t>(i)].flow =
        std::make_unique<ExpertFlow>(grid_, std::move(link), MakePolicy(), flow);
  }
  result_.recall.resize(kRecallDistances);
}

std::unique_ptr<EvictionPolicy> Simulator::Impl::MakePolicy() const {
  if (options_.policy == "next-use") return nullptr;  // the flow's own
  if (future_) return MakeBeladyPolicy(*future_);
  return MakeCountingPolicy(options_.policy, *counts_);
}

SimulationResult Simulator::Impl::Run(std::span<const int> order) {
  SetUp(order);
  for (const int index : order) {
    const TraceSequence& sequence = trace_.sequences[static_cast<size_t>(index)];
    const int64_t blocked_before = result_.blocked_ns;
    const uint64_t hits_before = result_.hits;
    const uint64_t accesses_before = result_.expert_accesses;
    counts_->BeginRequest(kRequest);
    if (step_predictor_) step_predictor_->BeginRequest(kRequest);
    for (int64_t token = 0; token < trace_.tokens(sequence); ++token) Step(sequence, token);
    counts_->EndRequest(kRequest);
    if (step_predictor_) step_predictor_->EndRequest(kRequest);
    ++result_.requests;
    result_.request_blocked_ns.push_back(result_.blocked_ns - blocked_before);
    result_.request_hit_rate.push_back(
        static_cast<double>(result_.hits - hits_before) /
        static_cast<double>(std::max<uint64_t>(1, result_.expert_accesses - accesses_before)));
  }
  for (const Device& device : devices_) {
    const ExpertCacheCounters& cache = device.flow->cache().counters();
    result_.copies += cache.inserted;
    result_.prefetched_used += cache.prefetched_used;
    result_.prefetched_unused += cache.prefetched_unused;
    result_.packets_copied += device.flow->queue().counters().packets_issued;
  }
  const double packet_bytes =
      static_cast<double>(std::max<uint64_t>(1, options_.expert_bytes)) / options_.packets;
  result_.bytes_copied = static_cast<uint64_t>(
      std::llround(packet_bytes * static_cast<double>(result_.packets_copied)));
  for (int distance = 0; distance < kRecallDistances; ++distance) {
    for (int bin = 0; bin < kRecallBins; ++bin) {
      const auto at = static_cast<size_t>(distance * kRecallBins + bin);
      result_.recall[static_cast<size_t>(distance)].absolute_error +=
          std::abs(bin_stated_[at] - bin_happened_[at]);
    }
  }
  return std::move(result_);
}

void Simulator::Impl::Step(const TraceSequence& sequence, int64_t token) {
  ++result_.tokens;
  counts_->BeginIteration(kRequest, 1);
  if (step_predictor_) {
    const StepRequest request = {kRequest, TokenAt(sequence, token), 0, 1};
    step_predictor_->BeginStep({&request, 1});
    StatePredictions(-1);
    for (Device& device : devices_) device.flow->StepBegan(now_ns_);
  }
  for (int layer = 0; layer < shape_.num_layers; ++layer) Layer(sequence, token, layer);
}

void Simulator::Impl::Layer(const TraceSequence& sequence, int64_t token, int layer) {
  const auto routed = trace_.Experts(sequence, token, layer);
  needed_.assign(routed.begin(), routed.end());
  if (step_predictor_) {
    NoteRecall(layer);
    step_predictor_->OnRouting(layer, needed_);
    StatePredictions(layer);
  }
  counts_->BeginLayer(layer);
  counts_->Observe(kRequest, needed_);
  for (int32_t& expert : needed_) expert += layer * shape_.num_experts;
  if (future_) future_->Pass();
  for (const ExpertIndex expert : needed_) On(expert).needed.push_back(expert);
  result_.expert_accesses += needed_.size();

  const int64_t begin_ns = now_ns_;
  missed_.clear();
  for (Device& device : devices_) {
    device.flow->BeginLayer(device.needed, begin_ns);
    device.flow->Missed(missed_);
  }
  PlanMisses(options_.miss, options_.host_expert_ns, options_.devices, missed_);
  int64_t host_ns = 0;
  for (const MissedExpert& miss : missed_) {
    if (!miss.on_host) continue;
    host_ns += options_.host_expert_ns;
    CHECK(On(miss.expert).flow->ComputeOnHost(miss.expert, begin_ns));
  }
  for (Device& device : devices_) {
    device.flow->StartLoads(begin_ns);
    device.flow->TakeReady(device.held, begin_ns);
    while (device.flow->waiting() > 0) {
      Advance(device, device.packet ? device.packet_end_ns : device.link_ns + packet_ns_);
      device.flow->TakeReady(device.held, device.link_ns);
    }
    now_ns_ = std::max(now_ns_, device.link_ns);
  }
  now_ns_ = std::max(now_ns_, begin_ns + host_ns);
  result_.blocked_ns += now_ns_ - begin_ns;
  result_.compute_ns += options_.layer_compute_ns;
  now_ns_ += options_.layer_compute_ns;
  for (Device& device : devices_) {
    Advance(device, now_ns_);
    for (const ExpertIndex expert : device.held) {
      device.flow->Release(expert, now_ns_);
      if (!options_.cache_between_layers) device.flow->Evict(expert, now_ns_);
    }
    device.held.clear();
    device.needed.clear();
    const ExpertStats stats = device.flow->EndLayer(now_ns_);
    result_.hits += stats.hits;
    result_.late_hits += stats.late_hits;
    result_.host_computed += stats.on_host;
    result_.prefetches += stats.prefetched;
  }
}

// The link works until then. Packets that end at until_ns have arrived.
void Simulator::Impl::Advance(Device& device, int64_t until_ns) {
  for (;;) {
    if (device.packet) {
      if (device.packet_end_ns > until_ns) return;
      device.link_ns = device.packet_end_ns;
      const ExpertFlow::Packet packet = *std::exchange(device.packet, std::nullopt);
      if (device.flow->CompletePacket(packet, PacketResult::kOk, device.link_ns) ==
          TransferState::kDone) {
        device.flow->Commit(packet.expert, device.link_ns);
      }
    }
    if (device.link_ns >= until_ns) return;
    device.packet = device.flow->NextPacket(device.link_ns);
    if (!device.packet) {
      device.link_ns = until_ns;
      return;
    }
    device.packet_end_ns = device.link_ns + packet_ns_;
  }
}

// As the step predictor has predicted; only beyond what it looks at is the predictor asked again.
void Simulator::Impl::StatePredictions(int layer) {
  const int ahead = std::min(kRecallDistances, shape_.num_layers - 1 - layer);
  for (int distance = 1; distance <= ahead; ++distance) {
    float* to = &stated_[static_cast<size_t>(distance - 1) * Cells() +
                         static_cast<size_t>((layer + distance) * shape_.num_experts)];
    if (distance <= step_predictor_->look_ahead()) {
      const std::span<const float> predicted = step_predictor_->predicted(distance);
      std::copy(predicted.begin(), predicted.end(), to);
    } else {
      predictor_->Predict(kRequest, distance, {to, static_cast<size_t>(shape_.num_experts)});
    }
  }
}

void Simulator::Impl::NoteRecall(int layer) {
  const int k = shape_.top_k;
  ranking_.resize(static_cast<size_t>(shape_.num_experts));
  for (int distance = 1; distance <= std::min(kRecallDistances, layer + 1); ++distance) {
    const float* stated = &stated_[static_cast<size_t>(distance - 1) * Cells() +
                                   static_cast<size_t>(layer * shape_.num_experts)];
    SimulationResult::Recall& recall = result_.recall[static_cast<size_t>(distance - 1)];
    std::iota(ranking_.begin(), ranking_.end(), 0);
    const auto most = std::min<int>(2 * k, shape_.num_experts);
    std::partial_sort(ranking_.begin(), ranking_.begin() + most, ranking_.end(), [&](int a, int b) {
      return std::pair(-stated[a], a) < std::pair(-stated[b], b);
    });
    recall.used += needed_.size();
    for (const int32_t expert : needed_) {
      const auto rank =
          std::find(ranking_.begin(), ranking_.begin() + most, expert) - ranking_.begin();
      if (rank < k) ++recall.found[0];
      if (rank < k * 3 / 2) ++recall.found[1];
      if (rank < most) ++recall.found[2];
    }
    for (int j = 0; j < shape_.num_experts; ++j) {
      const int bin = std::min(kRecallBins - 1, static_cast<int>(stated[j] * kRecallBins));
      const auto at = static_cast<size_t>((distance - 1) * kRecallBins + bin);
      bin_stated_[at] += static_cast<double>(stated[j]);
      if (std::find(needed_.begin(), needed_.end(), j) != needed_.end()) bin_happened_[at] += 1;
    }
    recall.stated += static_cast<uint64_t>(shape_.num_experts);
  }
}

Simulator::Simulator(const RoutingTrace& trace, const SimulationOptions& options,
                     const CpuKernels& kernels)
    : impl_(std::make_unique<Impl>(trace, options, kernels)) {}
Simulator::~Simulator() = default;

void Simulator::Train(const RoutingTrace& trace, const TraceSequence& sequence) {
  impl_->Train(trace, sequence);
}

SimulationResult Simulator::Run(std::span<const int> order) { return impl_->Run(order); }

}  // namespace moesaic
