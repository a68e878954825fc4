#include "serving/online/kv_plan.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/config/kv_groups.h"
#include "serving/model/model.h"

namespace moesaic {
namespace {

// KV memory on `auto`: never more than this share of what dense weights and workspace leave,
// because the experts' cache is what the machine is short of.
constexpr double kKvShare = 0.25;

// Likewise of recurrent state, of which a sequence has much and keeps it whatever its length.
constexpr double kStateShare = 0.25;

}  // namespace

KvNeeds KvNeedsOf(const ModelConfig& config) {
  return {.windows = KvGroupsOf(config).windows,
          .block_tokens = kKvBlockTokens,
          .chunk_tokens = kAttentionChunkTokens};
}

int64_t KvTokens(const KvNeeds& needs, int64_t num_blocks, int64_t step_tokens) {
  return needs.Longest(num_blocks, step_tokens, num_blocks * needs.block_tokens);
}

StatePlan PlanState(const EngineOptions& options, const ModelConfig& config, uint64_t left_bytes) {
  const uint64_t slot_bytes = Model::StateSlotBytes(config);
  if (slot_bytes == 0) return {};
  const auto share = static_cast<uint64_t>(static_cast<double>(left_bytes) * kStateShare);
  const auto most = static_cast<int64_t>(share / slot_bytes);
  StatePlan plan;
  plan.sequences = std::clamp<int64_t>(most, 1, options.max_num_seqs);
  if (options.prefix_cache) {
    plan.snapshots = std::clamp<int64_t>(most - plan.sequences, 0, options.state_snapshots);
  }
  return plan;
}

int64_t WantedContext(const EngineOptions& options, const ModelConfig& config) {
  if (options.max_model_len > 0) return options.max_model_len;
  return std::min(config.max_position, kDefaultContextTokens);
}

KvPlan PlanKv(const EngineOptions& options, const ModelConfig& config, int64_t context,
              uint64_t left_bytes, uint64_t whole_bytes) {
  const WeightType kv_type = ChooseKvType(options);
  const uint64_t block_bytes = Model::KvBlockBytes(config, kv_type);
  const KvNeeds needs = KvNeedsOf(config);
  const int64_t step_tokens = options.max_num_batched_tokens;
  const uint64_t one_context =
      CheckedMul(static_cast<uint64_t>(needs.Most(context, step_tokens)), block_bytes, "KV memory");
  const uint64_t least_bytes = static_cast<uint64_t>(needs.Most(1, 1)) * block_bytes;
  uint64_t kv_bytes = 0;
  if (options.kv_memory.is_auto()) {
    const uint64_t all_contexts = CheckedMul(
        static_cast<uint64_t>(needs.MostTogether(options.max_num_seqs, context, step_tokens)),
        block_bytes, "KV memory");
    kv_bytes =
        std::min(all_contexts, static_cast<uint64_t>(static_cast<double>(left_bytes) * kKvShare));
    if (options.max_model_len > 0) kv_bytes = std::max(kv_bytes, one_context);
    // Where not even that is left the memory is too small, which the ledger says: no flag of the
    // cache's own would help.
    kv_bytes = std::max(kv_bytes, least_bytes);
  } else {
    kv_bytes = options.kv_memory.BytesOf(whole_bytes);
  }
  KvPlan plan;
  plan.num_blocks = static_cast<int64_t>(kv_bytes / block_bytes);
  plan.max_context_tokens = needs.Longest(plan.num_blocks, step_tokens, context);
  if (plan.max_context_tokens < 1) {
    Fail(ErrorKind::kResourceExhausted,
         "--kv-memory: {} hold no KV block; one block of {} tokens takes {}", FormatBytes(kv_bytes),
         kKvBlockTokens, FormatBytes(least_bytes));
  }
  if (options.max_model_len > plan.max_context_tokens) {
    Fail(ErrorKind::kResourceExhausted,
         "--max-model-len: {} tokens need {} of KV memory but --kv-memory gives {}", context,
         FormatBytes(one_context), FormatBytes(kv_bytes));
  }
  if (options.most_kv_bytes > 0 && options.kv_memory.is_auto()) {
    plan.num_blocks = static_cast<int64_t>(
        RoundUp(static_cast<uint64_t>(plan.num_blocks), static_cast<uint64_t>(kKvSlabBlocks)));
    const int64_t all =
        needs.MostTogether(options.max_num_seqs, plan.max_context_tokens, step_tokens);
    const auto held = static_cast<int64_t>(options.most_kv_bytes / block_bytes);
    plan.most_blocks = std::max(
        plan.num_blocks, std::min(all + kKvSlabBlocks - 1, held) / kKvSlabBlocks * kKvSlabBlocks);
  }
  plan.bytes = static_cast<uint64_t>(plan.num_blocks) * block_bytes;
  return plan;
}

}  // namespace moesaic
