#include "serving/simulate/simulator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "cache/expert_cache.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "prefetch/count_predictors.h"
#include "prefetch/eviction_policies.h"
#include "prefetch/transfer_queue.h"
#include "serving/simulate/future_uses.h"

namespace moesaic {
namespace {

constexpr int kRecallDistances = 4;
constexpr int kRecallBins = 20;
constexpr int kRequest = 0;  // one at a time

struct Device {
  std::unique_ptr<ExpertCache> cache;
  std::unique_ptr<TransferQueue> queue;
  int64_t link_ns = 0;  // the link has moved, or was idle, up to here
  std::optional<TransferQueue::Packet> packet;
  int64_t packet_end_ns = 0;
};

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
  int DeviceOf(ExpertIndex expert) const {
    // Spreads every layer's experts evenly, and not the same ones to the same device in each.
    return (expert % grid_.num_experts() + expert / grid_.num_experts()) % options_.devices;
  }
  Device& On(ExpertIndex expert) { return devices_[static_cast<size_t>(DeviceOf(expert))]; }

  void SetUp(std::span<const int> order);
  void Step(const TraceSequence& sequence, int64_t token);
  void Layer(const TraceSequence& sequence, int64_t token, int layer);
  void MakeRoom(ExpertIndex expert);
  void Advance(Device& device, int64_t until_ns);
  bool StartPacket(Device& device);
  bool StartPrefetch(Device& device);
  void CompletePacket(Device& device);
  void DropStalePrefetches(Device& device);
  void NoteRecall(int layer);
  void StatePredictions(int layer);

  const RoutingTrace& trace_;
  const SimulationOptions options_;
  const CpuKernels& kernels_;
  const PredictorShape shape_;
  const ExpertGrid grid_;
  const int64_t packet_ns_;
  std::unique_ptr<Predictor> predictor_;
  std::unique_ptr<Prefetcher> prefetcher_;
  std::unique_ptr<PolicyCounts> counts_;
  std::unique_ptr<FutureUses> future_;
  bool comparable_ = false;  // the policy's priorities are on the scale of the prefetcher's worth
  std::vector<Device> devices_;
  int64_t now_ns_ = 0;
  int64_t compute_end_ns_ = 0;  // when the running layer's computation ends; for deadlines
  SimulationResult result_;

  std::vector<int32_t> needed_;
  std::vector<MissedExpert> missed_;
  std::vector<ExpertIndex> pinned_;
  std::vector<float> stated_;  // [distances, layers, experts] of the running iteration
  std::vector<int> stated_at_ = std::vector<int>(kRecallDistances, -1);
  std::vector<int> ranking_;
  std::vector<double> bin_stated_ = std::vector<double>(kRecallDistances * kRecallBins, 0.0);
  std::vector<double> bin_happened_ = std::vector<double>(kRecallDistances * kRecallBins, 0.0);
};

void Simulator::Impl::Train(const RoutingTrace& trace, const TraceSequence& sequence) {
  if (predictor_ == nullptr) return;
  predictor_->BeginRequest(kRequest);
  for (int64_t token = 0; token < trace.tokens(sequence); ++token) {
    predictor_->BeginIteration(kRequest,
                               sequence.token_ids.empty()
                                   ? Predictor::kUnknownToken
                                   : sequence.token_ids[static_cast<size_t>(token)],
                               1);
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
    prefetcher_ = std::make_unique<Prefetcher>(shape_, *predictor_, options_.prefetch);
  }
  const bool needs_worth = options_.policy == "next-use";
  if (needs_worth && !prefetcher_) {
    Fail(ErrorKind::kInvalidArgument,
         "--policy next-use evicts by predictions: give --predictor, or use --policy lru");
  }
  if (options_.policy == "belady") future_ = std::make_unique<FutureUses>(trace_, order);
  counts_ = std::make_unique<PolicyCounts>(grid_);
  comparable_ = needs_worth || options_.policy == "request-eam";
  for (int i = 0; i < options_.devices; ++i) {
    Device& device = devices_.emplace_back();
    const int64_t slots =
        options_.slots / options_.devices + (i < options_.slots % options_.devices ? 1 : 0);
    std::unique_ptr<EvictionPolicy> policy;
    if (needs_worth) {
      policy = MakeNextUsePolicy(prefetcher_->worth());
    } else if (future_) {
      policy = MakeBeladyPolicy(*future_);
    } else {
      policy = MakeCountingPolicy(options_.policy, *counts_);
    }
    device.cache = std::make_unique<ExpertCache>(grid_.total(), slots, 1, std::move(policy));
    device.queue = std::make_unique<TransferQueue>(grid_.total(), static_cast<int>(slots),
                                                   options_.packets, 0);
  }
  result_.recall.resize(kRecallDistances);
}

SimulationResult Simulator::Impl::Run(std::span<const int> order) {
  SetUp(order);
  for (const int index : order) {
    const TraceSequence& sequence = trace_.sequences[static_cast<size_t>(index)];
    const int64_t blocked_before = result_.blocked_ns;
    const uint64_t hits_before = result_.hits;
    const uint64_t accesses_before = result_.expert_accesses;
    counts_->BeginRequest();
    if (prefetcher_) prefetcher_->BeginRequest(kRequest);
    for (int64_t token = 0; token < trace_.tokens(sequence); ++token) Step(sequence, token);
    if (prefetcher_) prefetcher_->EndRequest(kRequest);
    ++result_.requests;
    result_.request_blocked_ns.push_back(result_.blocked_ns - blocked_before);
    result_.request_hit_rate.push_back(
        static_cast<double>(result_.hits - hits_before) /
        static_cast<double>(std::max<uint64_t>(1, result_.expert_accesses - accesses_before)));
  }
  for (const Device& device : devices_) {
    result_.prefetched_used += device.cache->counters().prefetched_used;
    result_.prefetched_unused += device.cache->counters().prefetched_unused;
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
  if (prefetcher_) {
    prefetcher_->BeginIteration(kRequest,
                                sequence.token_ids.empty()
                                    ? Predictor::kUnknownToken
                                    : sequence.token_ids[static_cast<size_t>(token)],
                                1);
    StatePredictions(-1);
  }
  for (int layer = 0; layer < shape_.num_layers; ++layer) Layer(sequence, token, layer);
}

void Simulator::Impl::Layer(const TraceSequence& sequence, int64_t token, int layer) {
  const auto routed = trace_.Experts(sequence, token, layer);
  needed_.assign(routed.begin(), routed.end());
  if (prefetcher_) {
    NoteRecall(layer);
    prefetcher_->OnRouting(kRequest, layer, needed_);
    prefetcher_->Update(layer);
    StatePredictions(layer);
  }
  for (int32_t& expert : needed_) expert += layer * shape_.num_experts;
  counts_->Observe(needed_);
  if (future_) future_->Pass();
  for (Device& device : devices_) DropStalePrefetches(device);

  // Residents are touched before anything is evicted for the others.
  const int64_t begin_ns = now_ns_;
  missed_.clear();
  pinned_.clear();
  result_.expert_accesses += needed_.size();
  for (const ExpertIndex expert : needed_) {
    Device& device = On(expert);
    device.cache->Want(expert);
    if (device.cache->Pin(expert, now_ns_)) {
      device.cache->Unwant(expert);
      pinned_.push_back(expert);
      ++result_.hits;
      continue;
    }
    int64_t packets = options_.packets;
    if (device.cache->state(expert) == ExpertCache::State::kLoading) {
      ++result_.late_hits;
      packets -= device.queue->packets_done(expert);
    }
    missed_.push_back({expert, DeviceOf(expert), packets * packet_ns_,
                       prefetcher_ ? prefetcher_->worth().Worth(expert) : 0, false});
  }
  PlanMisses(options_.miss, options_.host_expert_ns, options_.devices, missed_);

  int64_t host_ns = 0;
  for (const MissedExpert& miss : missed_) {
    Device& device = On(miss.expert);
    if (miss.on_host) {
      host_ns += options_.host_expert_ns;
      ++result_.host_computed;
      device.cache->Unwant(miss.expert);
    } else if (device.cache->state(miss.expert) == ExpertCache::State::kLoading) {
      device.queue->Update(miss.expert, TransferClass::kOnDemand, 0);
    } else {
      MakeRoom(miss.expert);
      device.queue->Add(miss.expert, options_.packets, TransferClass::kOnDemand, 0, now_ns_);
    }
  }
  for (const MissedExpert& miss : missed_) {
    if (miss.on_host) continue;
    Device& device = On(miss.expert);
    while (device.cache->state(miss.expert) != ExpertCache::State::kResident) {
      Advance(device, device.packet ? device.packet_end_ns : device.link_ns + packet_ns_);
    }
    CHECK(device.cache->Pin(miss.expert, now_ns_).has_value());
    device.cache->Unwant(miss.expert);
    pinned_.push_back(miss.expert);
    now_ns_ = std::max(now_ns_, device.link_ns);
  }
  now_ns_ = std::max(now_ns_, begin_ns + host_ns);
  result_.blocked_ns += now_ns_ - begin_ns;
  result_.compute_ns += options_.layer_compute_ns;
  compute_end_ns_ = now_ns_ + options_.layer_compute_ns;
  for (Device& device : devices_) Advance(device, compute_end_ns_);
  now_ns_ = compute_end_ns_;
  for (const ExpertIndex expert : pinned_) {
    On(expert).cache->Unpin(expert);
    if (!options_.cache_between_layers) On(expert).cache->Release(expert, now_ns_);
  }
}

// Reserves a slot for an expert that the layer waits for; loads that nobody waits for yield.
void Simulator::Impl::MakeRoom(ExpertIndex expert) {
  Device& device = On(expert);
  while (!device.cache->Reserve(expert, LoadReason::kOnDemand, now_ns_)) {
    bool cancelled = false;
    for (const ExpertIndex other : device.cache->slot_experts()) {
      if (other == kNoExpert || device.cache->wanted(other) ||
          device.cache->state(other) != ExpertCache::State::kLoading ||
          device.queue->cancelling(other)) {
        continue;
      }
      if (device.queue->Cancel(other) == TransferState::kCancelled) {
        device.queue->Remove(other);
        device.cache->Abandon(other);
      }
      cancelled = true;
      break;
    }
    if (cancelled && device.cache->free_slots() > 0) continue;
    CHECK(device.packet.has_value());  // else nothing would ever become free
    Advance(device, device.packet_end_ns);
    now_ns_ = std::max(now_ns_, device.link_ns);
  }
}

// The link works until then. Packets that end at until_ns have arrived.
void Simulator::Impl::Advance(Device& device, int64_t until_ns) {
  for (;;) {
    if (device.packet) {
      if (device.packet_end_ns > until_ns) return;
      device.link_ns = device.packet_end_ns;
      CompletePacket(device);
    }
    if (device.link_ns >= until_ns) return;
    if (!StartPacket(device)) {
      device.link_ns = until_ns;
      return;
    }
  }
}

bool Simulator::Impl::StartPacket(Device& device) {
  device.packet = device.queue->NextPacket(device.link_ns);
  if (!device.packet && StartPrefetch(device)) {
    device.packet = device.queue->NextPacket(device.link_ns);
    CHECK(device.packet.has_value());
  }
  if (!device.packet) return false;
  device.packet_end_ns = device.link_ns + packet_ns_;
  ++result_.packets_copied;
  return true;
}

bool Simulator::Impl::StartPrefetch(Device& device) {
  if (!prefetcher_) return false;
  double victim_worth = 0;
  if (device.cache->free_slots() == 0) {
    const std::optional<double> worth = device.cache->VictimPriority(device.link_ns);
    if (!worth) return false;
    if (comparable_) victim_worth = *worth;
  }
  const int64_t next_layer_ns = std::max(compute_end_ns_, device.link_ns) - device.link_ns;
  const auto copies_before = [&](int distance) {
    return static_cast<double>(next_layer_ns + (distance - 1) * options_.layer_compute_ns) /
           static_cast<double>(options_.expert_copy_ns);
  };
  const auto may_copy = [&](ExpertIndex expert) {
    return &On(expert) == &device && device.cache->state(expert) == ExpertCache::State::kAbsent;
  };
  const auto candidate = prefetcher_->NextCandidate(may_copy, copies_before, victim_worth);
  if (!candidate) return false;
  if (!device.cache->Reserve(candidate->expert, LoadReason::kPrefetch, device.link_ns))
    return false;
  device.queue->Add(candidate->expert, options_.packets, TransferClass::kPrefetch,
                    static_cast<float>(candidate->worth), device.link_ns);
  ++result_.prefetches;
  return true;
}

void Simulator::Impl::CompletePacket(Device& device) {
  const TransferQueue::Packet packet = *std::exchange(device.packet, std::nullopt);
  const TransferState state =
      device.queue->CompletePacket(packet.expert, packet.packet, PacketResult::kOk, device.link_ns);
  if (state == TransferState::kMoving) return;
  device.queue->Remove(packet.expert);
  if (state == TransferState::kDone) {
    device.cache->Commit(packet.expert, device.link_ns);
    ++result_.copies;
  } else {
    device.cache->Abandon(packet.expert);
  }
}

void Simulator::Impl::DropStalePrefetches(Device& device) {
  if (!prefetcher_ || device.queue->size() == 0) return;
  for (const ExpertIndex expert : device.cache->slot_experts()) {
    if (expert == kNoExpert || device.cache->state(expert) != ExpertCache::State::kLoading ||
        std::find(needed_.begin(), needed_.end(), expert) != needed_.end() ||
        device.queue->cancelling(expert) ||
        prefetcher_->worth().Worth(expert) >= options_.prefetch.min_gain) {
      continue;
    }
    if (device.queue->Cancel(expert) == TransferState::kCancelled) {
      device.queue->Remove(expert);
      device.cache->Abandon(expert);
    }
  }
}

void Simulator::Impl::StatePredictions(int layer) {
  const int ahead = std::min(kRecallDistances, shape_.num_layers - 1 - layer);
  for (int distance = 1; distance <= ahead; ++distance) {
    float* to = &stated_[static_cast<size_t>(distance - 1) * Cells() +
                         static_cast<size_t>((layer + distance) * shape_.num_experts)];
    predictor_->Predict(kRequest, distance, {to, static_cast<size_t>(shape_.num_experts)});
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
