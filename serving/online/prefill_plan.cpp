#include "serving/online/prefill_plan.h"

#include <algorithm>
#include <cmath>

#include "serving/model/layer_pass.h"

namespace moesaic {
namespace {

// Of a layer, by so many tokens.
double ExpertsUsed(const PrefillPlan& plan, int64_t tokens) {
  const double unused = 1 - static_cast<double>(plan.top_k) / static_cast<double>(plan.experts);
  return static_cast<double>(plan.experts) * (1 - std::pow(unused, static_cast<double>(tokens)));
}

double MissingShare(const PrefillPlan& plan) {
  if (plan.changing == 0) return 0;
  return std::max(0.0, 1 - static_cast<double>(plan.slots) / static_cast<double>(plan.changing));
}

// Sums read(tokens) over parts of at most so many tokens.
template <typename Read>
double OverParts(int64_t tokens, int64_t part, Read read) {
  const double whole = static_cast<double>(tokens / part) * read(part);
  return whole + (tokens % part > 0 ? read(tokens % part) : 0);
}

}  // namespace

double ExpertsReadByChunks(const PrefillPlan& plan, int64_t tokens) {
  const double missing = MissingShare(plan) * static_cast<double>(plan.layers);
  return OverParts(tokens, plan.chunk_tokens,
                   [&](int64_t chunk) { return missing * ExpertsUsed(plan, chunk); });
}

double ExpertsReadByLayers(const PrefillPlan& plan, int64_t tokens) {
  const double missing = MissingShare(plan) * static_cast<double>(plan.layers + 1);
  return OverParts(tokens, plan.piece_tokens,
                   [&](int64_t piece) { return missing * ExpertsUsed(plan, piece); });
}

bool PrefillPlan::ByLayers(int64_t tokens) const {
  if (piece_tokens == 0 || tokens <= chunk_tokens) return false;
  return order == PrefillOrder::kLayers ||
         ExpertsReadByLayers(*this, tokens) < ExpertsReadByChunks(*this, tokens);
}

PrefillPlan PlanPrefill(const EngineOptions& options, const ModelConfig& config, int64_t slots,
                        int64_t kept, int64_t context, uint64_t most_bytes) {
  PrefillPlan plan;
  plan.order = options.prefill_order;
  plan.chunk_tokens = options.max_num_batched_tokens;
  plan.layers = config.num_sparse_layers();
  plan.experts = config.num_experts();
  plan.top_k = config.top_k();
  plan.slots = slots - kept;
  plan.changing = plan.layers * plan.experts - kept;
  const bool by_layers = plan.order != PrefillOrder::kChunks && options.devices.count == 0 &&
                         options.defer_experts == 0 && options.route_from.empty() &&
                         options.record_trace.empty();
  if (!by_layers) return plan;
  if (plan.order == PrefillOrder::kAuto &&
      (plan.slots >= plan.changing || plan.slots < plan.experts)) {
    return plan;
  }
  const uint64_t most = most_bytes / LayerPass::Bytes(config, 1);
  int64_t tokens = context;
  if (most < static_cast<uint64_t>(context)) {
    tokens = static_cast<int64_t>(most) / plan.chunk_tokens * plan.chunk_tokens;
  }
  if (tokens > plan.chunk_tokens) plan.piece_tokens = tokens;
  plan.bytes = LayerPass::Bytes(config, plan.piece_tokens);
  return plan;
}

}  // namespace moesaic
