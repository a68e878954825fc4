#include "serving/plan/batch_planner.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "serving/plan/batch_prediction.h"

namespace moesaic {
namespace {

// More decode together than this only where the options say so: passes of such a batch are compute
// on any CPU, and answers come late.
constexpr int64_t kMostSequences = 4096;
// As many of the best estimates are simulated in full.
constexpr size_t kSimulated = 6;
// A larger batch that gains less than this is not worth its memory.
constexpr double kWorthItsMemory = 0.005;

struct ScoredSizes {
  BatchSizes sizes;
  double seconds = 0;
};

std::vector<int64_t> SequenceCounts(const EngineOptions& options, int64_t requests) {
  if (options.max_num_seqs > 0) return {options.max_num_seqs};
  const int64_t most = std::min(requests, kMostSequences);
  std::vector<int64_t> counts;
  for (double count = 1; count < static_cast<double>(most);
       count = std::max(count + 1, count * 1.3)) {
    counts.push_back(static_cast<int64_t>(count));
  }
  for (int64_t batches = 1; batches <= 8; ++batches) {
    const int64_t count = (requests + batches - 1) / batches;
    if (count <= most) counts.push_back(count);
  }
  counts.push_back(most);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

std::vector<BatchWish> Wishes(const EngineOptions& options, const ModelConfig& config,
                              const Workload& workload) {
  std::vector<BatchWish> wishes;
  const double per_decode = 1 + workload.mean_prompt() / std::max(1.0, workload.mean_generated());
  for (const int64_t sequences :
       SequenceCounts(options, static_cast<int64_t>(workload.requests.size()))) {
    std::vector<int64_t> rows = {0};
    if (options.max_num_batched_tokens == 0) {
      rows.clear();
      for (const double part : {0.7, 1.0, 2.0, 4.0}) {
        rows.push_back(std::clamp<int64_t>(
            std::llround(static_cast<double>(sequences) * per_decode * part),
            std::max<int64_t>(sequences, 128), std::max<int64_t>(sequences, 8192)));
      }
      rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    }
    for (const int64_t batch_tokens : rows) {
      for (const int64_t part : {4, 2, 1}) {
        wishes.push_back(
            {sequences, batch_tokens, std::max<int64_t>(4, config.num_experts / part)});
      }
    }
  }
  return wishes;
}

ExecutionPlan Describe(const EngineOptions& options, const ModelFiles& files, const BatchPlan& plan,
                       const ModuleCosts& costs, PlanPrediction prediction) {
  const BatchSizes& sizes = plan.sizes;
  ExecutionPlan execution;
  execution.model = files.config.architecture;
  execution.machine = "this";
  execution.schedule = ScheduleKind::kModuleBatching;
  execution.batch_sequences = execution.micro_batch_sequences = sizes.max_num_seqs;
  execution.num_micro_batches = 1;
  execution.micro_batch_tokens = execution.token_budget = sizes.max_batch_tokens;
  execution.expert_micro_batch = sizes.max_batch_tokens;
  execution.ffn_on_device = false;
  execution.resident_experts =
      (sizes.expert_slots - sizes.buffers) / files.config.num_sparse_layers();
  execution.expert_buffers = sizes.buffers;
  execution.expert_bytes = plan.slot_bytes;
  execution.packet_bytes = options.packet_bytes > 0 ? options.packet_bytes : kDefaultPacketBytes;
  execution.kv_block_tokens = kKvBlockTokens;
  execution.kv_blocks = sizes.num_kv_blocks;
  execution.kv_block_bytes = Model::KvBlockBytes(files.config, ChooseKvType(options));
  execution.threads = options.threads;
  MemoryLedger& ledger = execution.ledgers.emplace_back();
  ledger.memory = "host";
  ledger.limit_bytes =
      options.machine_memory_bytes > 0 ? options.machine_memory_bytes : plan.total_bytes;
  for (const LedgerEntry& entry : plan.ledger) ledger.items.push_back({entry.name, entry.bytes});
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
  return options.devices.count == 0 &&
         options.schedule.value_or(ScheduleKind::kModuleBatching) == ScheduleKind::kModuleBatching;
}

BatchPlan PlanBatchJob(const EngineOptions& options, const ModelFiles& files,
                       const Workload& workload, const ModuleCosts* costs) {
  const BatchWorkload means = MeansOf(workload);
  if (costs == nullptr || workload.requests.empty() || !IsPredicted(options)) {
    return PlanBatch(options, files, means);
  }
  CheckBatchOptions(options, files.config);
  const uint64_t slot_bytes = files.experts->layout().slot_bytes;
  std::vector<ScoredSizes> found;
  for (const BatchWish& wish : Wishes(options, files.config, workload)) {
    const auto sizes = FitBatch(options, files, means, wish);
    if (!sizes) continue;
    BatchPassModel passes(files.config, *costs, *sizes, slot_bytes);
    found.push_back({*sizes, EstimateBatchSeconds(passes, *sizes, workload)});
  }
  // Nothing fits: the rule's message says what is missing.
  if (found.empty()) return PlanBatch(options, files, means);
  std::stable_sort(found.begin(), found.end(), [](const ScoredSizes& a, const ScoredSizes& b) {
    return a.seconds < b.seconds;
  });
  if (found.size() > kSimulated) found.resize(kSimulated);
  const ScoredSizes* best = nullptr;
  PlanPrediction best_prediction;
  for (const ScoredSizes& scored : found) {
    BatchPassModel passes(files.config, *costs, scored.sizes, slot_bytes);
    PlanPrediction prediction = PredictBatch(passes, scored.sizes, workload);
    if (best != nullptr && prediction.wall_s > best_prediction.wall_s * (1 - kWorthItsMemory))
      continue;
    best = &scored;
    best_prediction = std::move(prediction);
  }
  BatchPlan plan = LedgerOf(options, files, best->sizes);
  plan.execution = Describe(options, files, plan, *costs, std::move(best_prediction));
  return plan;
}

}  // namespace moesaic
