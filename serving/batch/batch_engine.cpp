#include "serving/batch/batch_engine.h"

#include <utility>

#include "core/base/logging.h"
#include "core/base/units.h"
#include "serving/batch/pass_step.h"
#include "serving/online/engine_parts.h"
#include "serving/online/kv_plan.h"

namespace moesaic {
namespace {

void Load(BatchSetup& setup, std::shared_ptr<Timeline> timeline, LoopParts& parts) {
  const EngineOptions& options = setup.options;
  const BatchPlan& plan = setup.plan;
  FillParts(options, setup.files, parts);
  const ModelConfig& config = parts.config;
  const BatchSizes& sizes = plan.sizes;
  parts.max_context_tokens = sizes.max_context_tokens;
  parts.kv_needs = KvNeedsOf(config);
  parts.num_kv_blocks = sizes.num_kv_blocks;
  parts.scheduling = {.max_num_seqs = sizes.max_num_seqs,
                      .max_batch_tokens = sizes.max_batch_tokens,
                      .prefix_cache = options.prefix_cache};
  if (sizes.num_state_slots > 0) {
    parts.scheduling.state_slots = sizes.num_state_slots;
    parts.scheduling.state_snapshots = sizes.num_state_slots - sizes.max_num_seqs;
    parts.scheduling.prefix_cache &= parts.scheduling.state_snapshots > 0;
  }
  auto step = std::make_unique<PassStep>(options, plan, std::move(setup.files), parts.kernels,
                                         *parts.pool, std::move(timeline));
  parts.head = std::make_unique<ModelHead>(step->model());
  parts.step = std::move(step);
  LogInfo(
      "{}: batches of {} sequences and {} tokens a pass, {} tokens of KV cache; {} of {} experts "
      "stay in memory, {} buffers of {} for the others; {} on {} threads",
      config.architecture, sizes.max_num_seqs, sizes.max_batch_tokens,
      KvTokens(parts.kv_needs, sizes.num_kv_blocks, sizes.max_batch_tokens), plan.residents(),
      config.num_sparse_layers() * config.num_experts(), sizes.buffers,
      FormatBytes(plan.slot_bytes), IsaName(parts.kernels.isa), parts.pool->threads());
}

}  // namespace

BatchEngine::BatchEngine(BatchSetup setup)
    : BatchEngine(std::make_shared<BatchSetup>(std::move(setup)),
                  std::make_shared<Timeline>(kTimelineIntervals)) {}

BatchEngine::BatchEngine(const std::shared_ptr<BatchSetup>& setup,
                         std::shared_ptr<Timeline> timeline)
    : EngineLoop([setup, timeline](LoopParts& parts) { Load(*setup, timeline, parts); }),
      plan_(setup->plan),
      timeline_(std::move(timeline)) {}

}  // namespace moesaic
