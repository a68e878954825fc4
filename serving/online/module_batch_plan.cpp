#include "serving/online/module_batch_plan.h"

#include <algorithm>
#include <cmath>

#include "serving/model/layer_pass.h"
#include "serving/model/model.h"

namespace moesaic {
namespace {

// Of a module batch, in steps: prompts that join are read for as many rows as decode.
constexpr int64_t kStepsOfRows = 4;

// More are in no plan.
constexpr uint64_t kMostRows = uint64_t{1} << 30;

// Lines that run at once, for each request that may: experts are read for all of them once, and
// memory for keys and values bounds them as well.
constexpr int64_t kLinesPerSequence = 4;

bool Possible(const EngineOptions& options) {
  return options.serves_batches && options.module_batches != ModuleBatches::kOff &&
         options.devices.count == 0 && options.defer_experts == 0 && options.route_from.empty() &&
         options.record_trace.empty();
}

}  // namespace

double UsedShare(int64_t experts, int64_t top_k, int64_t tokens) {
  const double unused = 1 - static_cast<double>(top_k) / static_cast<double>(experts);
  return 1 - std::pow(unused, static_cast<double>(tokens));
}

bool ModuleBatchPlan::Worth(int64_t now_tokens, int64_t slots) const {
  if (tokens == 0 || choice == ModuleBatches::kOff) return false;
  return choice == ModuleBatches::kOn || slots >= changing ||
         UsedShare(experts, top_k, now_tokens) >= kUsedShareOfModuleBatch;
}

ModuleBatchPlan PlanModuleBatches(const EngineOptions& options, const ModelConfig& config,
                                  int64_t kept, uint64_t most_bytes) {
  ModuleBatchPlan plan;
  plan.choice = options.module_batches;
  plan.experts = config.num_experts();
  plan.top_k = config.top_k();
  plan.changing = config.num_sparse_layers() * plan.experts - kept;
  if (!Possible(options)) return plan;
  plan.sequences = LinesBeside(options, config);
  const int64_t step = options.max_num_batched_tokens;
  const uint64_t most = most_bytes / LayerPass::Bytes(config, 1);
  int64_t rows = options.batch_num_batched_tokens > 0
                     ? std::max(step, options.batch_num_batched_tokens)
                     : kStepsOfRows * step;
  plan.most_tokens = static_cast<int64_t>(std::min<uint64_t>(most, kMostRows)) / step * step;
  if (most < static_cast<uint64_t>(rows)) rows = plan.most_tokens;
  if (rows == 0) return plan;
  plan.tokens = rows;
  plan.bytes = LayerPass::Bytes(config, rows);
  return plan;
}

int64_t LinesOf(const EngineOptions& options) {
  if (options.module_batches == ModuleBatches::kOff) return options.max_num_seqs;
  return options.batch_num_seqs > 0 ? options.batch_num_seqs
                                    : kLinesPerSequence * options.max_num_seqs;
}

int64_t MostLines(const EngineOptions& options) {
  const bool open = options.module_batches != ModuleBatches::kOff && options.batch_num_seqs == 0;
  return open ? kMostLinesPerSequence * options.max_num_seqs : LinesOf(options);
}

int64_t LinesBeside(const EngineOptions& options, const ModelConfig& config) {
  return Possible(options) && Model::StateSlotBytes(config) == 0 ? LinesOf(options) : 0;
}

}  // namespace moesaic
