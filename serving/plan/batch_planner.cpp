#include "serving/plan/batch_planner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "serving/batch/batch_experts.h"
#include "serving/online/device_backend.h"
#include "serving/plan/batch_prediction.h"
#include "serving/plan/job_loads.h"

namespace moesaic {
namespace {

// More decode together than this only where the options say so: passes of such a batch are compute
// on any CPU, and answers come late.
constexpr int64_t kMostSequences = 4096;
// As many of the best estimates are simulated in full.
constexpr size_t kSimulated = 6;
// A larger batch that gains less than this is not worth its memory.
constexpr double kWorthItsMemory = 0.005;

// Steps of the search around the best of them, as factors, and how often it may go on.
constexpr double kSequencesStep = 1.15;
constexpr double kTokensStep = 1.15;
constexpr double kBuffersStep = 1.5;
constexpr int kMostSteps = 16;
// Where a step leads out of memory, memory's edge is looked for this often between.
constexpr int kHalvings = 6;

constexpr int64_t kMostBatchTokens = 8192;

struct ScoredSizes {
  BatchSizes sizes;
  BatchWish wish;
  double seconds = 0;
};

std::vector<int64_t> CountsToTry(const EngineOptions& options, int64_t requests) {
  if (options.max_num_seqs > 0) return {options.max_num_seqs};
  return SequenceCounts(requests, std::min(requests, kMostSequences), 8);
}

// Pages and groups are searched when the sizes are known; a device's passes take longer to play.
std::vector<BatchWish> Wishes(const EngineOptions& options, const ModelConfig& config,
                              const Workload& workload) {
  const bool device = options.devices.count > 0;
  const std::vector<double> parts =
      device ? std::vector{1.0, 2.0} : std::vector{0.7, 1.0, 2.0, 4.0};
  const std::vector<int64_t> buffers =
      device ? std::vector<int64_t>{2, 1} : std::vector<int64_t>{4, 2, 1};
  std::vector<BatchWish> wishes;
  const double per_decode = 1 + workload.mean_prompt() / std::max(1.0, workload.mean_generated());
  for (const int64_t sequences : CountsToTry(options, std::ssize(workload.requests))) {
    std::vector<int64_t> rows = {0};
    if (options.max_num_batched_tokens == 0) {
      rows.clear();
      for (const double part : parts) {
        rows.push_back(std::clamp<int64_t>(
            std::llround(static_cast<double>(sequences) * per_decode * part),
            std::max<int64_t>(sequences, 128), std::max(sequences, kMostBatchTokens)));
      }
      rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    }
    for (const int64_t batch_tokens : rows) {
      for (const int64_t part : buffers) {
        wishes.push_back(
            {sequences, batch_tokens, std::max<int64_t>(4, config.num_experts() / part)});
      }
    }
  }
  return wishes;
}

// Packets that are tried: their latencies against what an attention output waits for one. Larger
// ones than an expert make no difference; more for an expert than this take long to play.
constexpr uint32_t kLeastPacketBytes = uint32_t{64} << 10;
constexpr uint32_t kMostPacketBytes = uint32_t{16} << 20;
constexpr uint64_t kMostPackets = 32;

bool IsWorthTrying(uint64_t packet_bytes, uint64_t slot_bytes) {
  return packet_bytes >= kLeastPacketBytes && packet_bytes <= kMostPacketBytes &&
         packet_bytes < 2 * slot_bytes && packet_bytes * kMostPackets >= slot_bytes;
}

// Wishes a step away from this one, in what the options leave open.
std::vector<BatchWish> WishesAround(const EngineOptions& options, const ModelConfig& config,
                                    int64_t requests, uint64_t slot_bytes,
                                    const ScoredSizes& best) {
  const BatchWish& wish = best.wish;
  const auto scaled = [](int64_t value, double factor) -> int64_t {
    return std::llround(static_cast<double>(value) * factor);
  };
  std::vector<BatchWish> wishes;
  if (options.max_num_seqs == 0) {
    const int64_t most = std::min(requests, kMostSequences);
    for (const double factor : {kSequencesStep, 1 / kSequencesStep}) {
      const int64_t sequences = std::clamp<int64_t>(scaled(wish.sequences, factor), 1, most);
      for (const double tokens_factor : {1.0, factor}) {
        if (tokens_factor != 1 && options.max_num_batched_tokens > 0) continue;
        wishes.push_back(wish);
        wishes.back().sequences = sequences;
        wishes.back().batch_tokens = std::max(scaled(wish.batch_tokens, tokens_factor), sequences);
      }
    }
  }
  if (options.max_num_batched_tokens == 0) {
    for (const double factor : {kTokensStep, 1 / kTokensStep}) {
      wishes.push_back(wish);
      wishes.back().batch_tokens =
          std::clamp(scaled(wish.batch_tokens, factor), std::max<int64_t>(wish.sequences, 128),
                     std::max(wish.sequences, kMostBatchTokens));
    }
  }
  for (const double factor : {kBuffersStep, 1 / kBuffersStep}) {
    wishes.push_back(wish);
    wishes.back().buffers =
        std::clamp<int64_t>(scaled(wish.buffers, factor), 4, config.num_experts());
  }
  if (options.devices.count > 0 && options.device_packet_bytes == 0) {
    const uint32_t packet = PacketBytesOf(options, best.sizes);
    for (const uint32_t other : {packet * 2, packet / 2}) {
      if (!IsWorthTrying(other, slot_bytes)) continue;
      wishes.push_back(wish);
      wishes.back().packet_bytes = other;
    }
  }
  return wishes;
}

struct DeviceOrder {
  ScheduleKind schedule;
  int64_t micro_batches;
};
// Without devices one group overlaps with nothing but reads, which module batching does as well.
constexpr std::array kDeviceOrders = {
    DeviceOrder{ScheduleKind::kModuleBatching, 1}, DeviceOrder{ScheduleKind::kModuleBatching, 2},
    DeviceOrder{ScheduleKind::kModuleBatching, 4}, DeviceOrder{ScheduleKind::kOverlapped, 2},
    DeviceOrder{ScheduleKind::kPagedWeights, 4},   DeviceOrder{ScheduleKind::kPagedWeights, 8}};

int64_t Between(int64_t a, int64_t b, double part) {
  return a + std::llround(static_cast<double>(b - a) * part);
}

bool IsLarger(const BatchWish& wish, const BatchWish& than) {
  return wish.sequences >= than.sequences && wish.batch_tokens >= than.batch_tokens &&
         (wish.sequences > than.sequences || wish.batch_tokens > than.batch_tokens);
}

// Estimates of batches, the best first.
class BatchSearch {
 public:
  BatchSearch(const EngineOptions& options, const ModelFiles& files, const Workload& workload,
              const ModuleCosts& costs)
      : options_(options),
        files_(files),
        workload_(workload),
        means_(MeansOf(workload)),
        costs_(costs),
        slot_bytes_(files.experts->layout().slot_bytes) {}

  std::vector<ScoredSizes> Best() {
    for (const BatchWish& wish : Wishes(options_, files_.config, workload_)) Try(wish);
    Keep();
    if (options_.devices.count == 0) return std::move(found_);
    std::vector<BatchWish> wishes;
    for (const ScoredSizes& scored : found_) wishes.push_back(scored.wish);
    for (BatchWish wish : wishes) {
      for (const DeviceOrder& order : kDeviceOrders) {
        if (options_.schedule && *options_.schedule != order.schedule) continue;
        wish.schedule = order.schedule;
        wish.micro_batches = order.micro_batches;
        Try(wish);
      }
    }
    Keep();
    TryPackets();
    return std::move(found_);
  }

  std::optional<BatchSizes> Fit(const BatchWish& wish) const {
    return FitBatch(options_, files_, means_, wish);
  }
  // Makes the wish, which does not fit, the largest batch on the way to it from another that does.
  std::optional<BatchSizes> FitOnTheWay(const BatchWish& from, BatchWish& wish) const {
    const BatchWish all = wish;
    std::optional<BatchSizes> sizes;
    double low = 0;
    double high = 1;
    for (int halving = 0; halving < kHalvings; ++halving) {
      const double middle = (low + high) / 2;
      BatchWish part = all;
      part.sequences = Between(from.sequences, all.sequences, middle);
      part.batch_tokens = Between(from.batch_tokens, all.batch_tokens, middle);
      if (const auto fitted = Fit(part)) {
        low = middle;
        wish = part;
        sizes = fitted;
      } else {
        high = middle;
      }
    }
    return sizes;
  }
  BatchPassModel PassesOf(const BatchSizes& sizes) const {
    return {files_.config, costs_, sizes, slot_bytes_, DeviceOf(sizes)};
  }

 private:
  std::optional<PlannedDevice> DeviceOf(const BatchSizes& sizes) const {
    if (options_.devices.count == 0) return std::nullopt;
    const EmulatedLink& link = options_.devices.emulated_link;
    return PlannedDevice{link.bytes_per_s, link.latency_us * 1e-6, PacketBytesOf(options_, sizes),
                         options_.threads, options_.devices.count, DeviceThreads(options_)};
  }

  void Try(const BatchWish& wish) {
    const auto sizes = Fit(wish);
    if (!sizes) return;
    BatchPassModel passes = PassesOf(*sizes);
    found_.push_back({*sizes, wish, EstimateBatchSeconds(passes, *sizes, workload_)});
  }

  void TryPackets() {
    if (options_.device_packet_bytes > 0) return;
    for (ScoredSizes& best : found_) {
      ScoredSizes tried = best;
      for (uint32_t packet = kLeastPacketBytes; packet <= kMostPacketBytes; packet *= 2) {
        if (!IsWorthTrying(packet, slot_bytes_)) continue;
        tried.wish.packet_bytes = tried.sizes.packet_bytes = packet;
        BatchPassModel passes = PassesOf(tried.sizes);
        tried.seconds = EstimateBatchSeconds(passes, tried.sizes, workload_);
        if (tried.seconds < best.seconds) best = tried;
      }
    }
    Keep();
  }

  void Keep() {
    std::stable_sort(found_.begin(), found_.end(), [](const ScoredSizes& a, const ScoredSizes& b) {
      return a.seconds < b.seconds;
    });
    if (found_.size() > kSimulated) found_.resize(kSimulated);
  }

  const EngineOptions& options_;
  const ModelFiles& files_;
  const Workload& workload_;
  const BatchWorkload means_;
  const ModuleCosts& costs_;
  const uint64_t slot_bytes_;
  std::vector<ScoredSizes> found_;
};

ExecutionPlan Describe(const EngineOptions& options, const ModelFiles& files, const BatchPlan& plan,
                       const ModuleCosts& costs, PlanPrediction prediction) {
  const BatchSizes& sizes = plan.sizes;
  ExecutionPlan execution;
  execution.model = files.config.architecture;
  execution.machine = "this";
  execution.schedule = sizes.schedule;
  execution.batch_sequences = sizes.max_num_seqs;
  execution.num_micro_batches = sizes.micro_batches;
  execution.micro_batch_sequences =
      (sizes.max_num_seqs + sizes.micro_batches - 1) / sizes.micro_batches;
  execution.micro_batch_tokens = execution.token_budget = sizes.max_batch_tokens;
  execution.expert_micro_batch = sizes.max_batch_tokens;
  execution.ffn_on_device = options.devices.count > 0;
  execution.resident_experts = plan.residents() / files.config.num_sparse_layers();
  execution.expert_buffers = sizes.buffers;
  execution.expert_bytes = plan.slot_bytes;
  execution.packet_bytes = PacketBytesOf(options, sizes);
  execution.kv_block_tokens = kKvBlockTokens;
  execution.kv_blocks = sizes.num_kv_blocks;
  execution.kv_block_bytes = Model::KvBlockBytes(files.config, ChooseKvType(options));
  execution.threads = options.threads;
  MemoryLedger& ledger = execution.ledgers.emplace_back(plan.ledger);
  if (options.machine_memory_bytes == 0) ledger.limit_bytes = ledger.total_bytes();
  execution.prediction = std::move(prediction);
  execution.constants = costs.Constants();
  return execution;
}

}  // namespace

BatchWorkload MeansOf(const Workload& workload) {
  BatchWorkload means;
  if (workload.requests.empty()) return means;
  means.sequences = static_cast<int64_t>(workload.requests.size());
  means.prompt_tokens = std::max(1.0, workload.mean_prompt());
  means.output_tokens = std::max(1.0, workload.mean_generated());
  return means;
}

bool IsPredicted(const EngineOptions& options) {
  const DeviceOptions& devices = options.devices;
  if (devices.count == 0) {
    return options.schedule.value_or(ScheduleKind::kModuleBatching) ==
           ScheduleKind::kModuleBatching;
  }
  return BackendOf(devices.kind).in_host_memory() && KernelsOf(devices) == nullptr;
}

BatchPlan PlanBatchJob(const EngineOptions& options, const ModelFiles& files,
                       const Workload& workload, const ModuleCosts* costs) {
  if (costs == nullptr || workload.requests.empty() || !IsPredicted(options)) {
    return PlanBatch(options, files, MeansOf(workload));
  }
  CheckBatchOptions(options, files.config);
  BatchSearch search(options, files, workload, *costs);
  const std::vector<ScoredSizes> found = search.Best();
  // Nothing fits: the rule's message says what is missing.
  if (found.empty()) return PlanBatch(options, files, MeansOf(workload));
  std::optional<ScoredSizes> best;
  PlanPrediction best_prediction;
  std::vector<BatchSizes> simulated;
  // Whether they are the best so far.
  const auto simulate = [&](const ScoredSizes& candidate) {
    const auto seen = std::find(simulated.begin(), simulated.end(), candidate.sizes);
    if (seen != simulated.end()) return false;
    simulated.push_back(candidate.sizes);
    BatchPassModel passes = search.PassesOf(candidate.sizes);
    PlanPrediction prediction = PredictBatch(passes, candidate.sizes, workload);
    if (best && prediction.wall_s > best_prediction.wall_s * (1 - kWorthItsMemory)) return false;
    best = candidate;
    best_prediction = std::move(prediction);
    return true;
  };
  for (const ScoredSizes& scored : found) simulate(scored);
  bool better = true;
  for (int step = 0; step < kMostSteps && better; ++step) {
    better = false;
    const ScoredSizes center = *best;
    for (BatchWish wish : WishesAround(options, files.config, std::ssize(workload.requests),
                                       files.experts->layout().slot_bytes, center)) {
      auto sizes = search.Fit(wish);
      // The best batch is often the largest one, which is no whole number of steps from any other.
      if (!sizes && IsLarger(wish, center.wish)) sizes = search.FitOnTheWay(center.wish, wish);
      if (sizes && simulate({*sizes, wish})) better = true;
    }
  }
  BatchPlan plan = LedgerOf(options, files, best->sizes);
  plan.execution = Describe(options, files, plan, *costs, std::move(best_prediction));
  return plan;
}

std::vector<WhatIf> AskWhatIf(const EngineOptions& options, const ModelFiles& files,
                              const Workload& workload, const ModuleCosts& costs,
                              double tokens_per_s) {
  constexpr double kMore = 1.1;
  std::vector<WhatIf> answers;
  const auto ask = [&](const char* change, const EngineOptions& asked, const Workload& job,
                       const ModuleCosts& with) {
    const BatchPlan plan = PlanBatchJob(asked, files, job, &with);
    if (!plan.execution) return;
    const double rate = plan.execution->prediction.generated_tokens_per_s;
    answers.push_back({change, rate, rate / tokens_per_s - 1});
  };
  if (options.machine_memory_bytes > 0) {
    EngineOptions roomier = options;
    roomier.machine_memory_bytes =
        static_cast<uint64_t>(static_cast<double>(options.machine_memory_bytes) * kMore);
    ask("host memory +10%", roomier, workload, costs);
  }
  ModuleCosts faster = costs;
  faster.link.value *= kMore;
  ask("disk rate +10%", options, workload, faster);
  faster = costs;
  faster.host_copy.value *= kMore;
  for (ModuleCost& cost : faster.modules) {
    cost.fixed_s /= kMore;
    cost.per_unit_s /= kMore;
  }
  ask("CPU rates +10%", options, workload, faster);
  ask("requests +10%", options, LongerByATenth(workload), costs);
  SortByGain(answers);
  return answers;
}

}  // namespace moesaic
