#include "serving/online/part_options.h"

#include <algorithm>

#include "kernels/cpu/kernels.h"
#include "serving/online/kv_plan.h"
#include "serving/online/module_batch_plan.h"

namespace moesaic {

ModelLimits LimitsOf(const EngineOptions& options, const EnginePlan& plan) {
  ModelLimits limits;
  limits.max_batch_tokens = options.max_num_batched_tokens;
  limits.max_context_tokens = plan.max_context_tokens;
  limits.num_kv_blocks = std::max(plan.num_kv_blocks, plan.most_kv_blocks);
  if (plan.most_kv_blocks > 0) limits.kv_slab_blocks = kKvSlabBlocks;
  limits.num_state_slots = plan.state.slots();
  limits.kv_type = ChooseKvType(options);
  limits.max_logit_rows = std::min<int64_t>(options.max_num_batched_tokens, 64);
  limits.max_sequences = options.max_num_seqs + plan.module_batches.sequences;
  limits.defer_experts = options.defer_experts;
  limits.gemm_library = options.devices.cublas;
  return limits;
}

PredictorShape PredictorShapeOf(const EngineOptions& options, const ModelConfig& config) {
  return {static_cast<int>(config.num_sparse_layers()), static_cast<int>(config.num_experts()),
          static_cast<int>(config.top_k()),
          static_cast<int>(options.max_num_seqs + LinesBeside(options, config))};
}

int64_t LinkSlots(const EnginePlan& plan) {
  int64_t slots = 0;
  for (const DevicePlan& device : plan.devices) slots = std::max(slots, device.slots - device.kept);
  const uint64_t most_bytes = std::max(plan.expert_budget_bytes, plan.most_expert_bytes);
  return plan.devices.empty()
             ? static_cast<int64_t>(most_bytes / plan.slot_bytes) - std::ssize(plan.placed.kept)
             : slots;
}

bool LooksUpExperts(const EnginePlan& plan) { return plan.dense_devices == 1; }

std::unique_ptr<NextGate> MakeNextGate(const EngineOptions& options, const ModelConfig& config) {
  if (options.gate_look_ahead <= 0 || !options.route_from.empty() ||
      (options.predictor != "blend" && options.predictor != "next-gate") ||
      config.num_sparse_layers() < 2 || config.num_experts() <= config.top_k()) {
    return nullptr;
  }
  return std::make_unique<NextGate>(PredictorShapeOf(options, config), config.hidden_size,
                                    options.gate_look_ahead, F32KernelsOf(SelectKernels()));
}

ExpertLoaderOptions LoaderOptionsOf(const EngineOptions& options, uint64_t budget_bytes) {
  ExpertLoaderOptions loader;
  loader.budget_bytes = budget_bytes;
  loader.backend = options.io_backend;
  loader.packet_bytes = options.packet_bytes;
  loader.depth = options.io_depth;
  loader.pack_threads = options.io_threads - 1;
  return loader;
}

}  // namespace moesaic
