#include "serving/online/engine_checks.h"

#include "core/base/error.h"

namespace moesaic {
namespace {

void CheckDeferral(const EngineOptions& options, const ModelConfig& config) {
  if (options.defer_experts == 0) return;
  if (!options.exact_numerics) {
    Fail(ErrorKind::kInvalidArgument,
         "--defer-experts {}: with --numerics fast host and GPUs share the experts of a layer, "
         "which is not tried together; leave one of them out",
         options.defer_experts);
  }
  if (config.top_k() <= 2) {
    Fail(ErrorKind::kInvalidArgument,
         "--defer-experts {}: this model takes {} expert{} for each token, and two at least are "
         "never deferred; leave it out",
         options.defer_experts, config.top_k(), config.top_k() == 1 ? "" : "s");
  }
}

void CheckKvStore(const EngineOptions& options) {
  if (options.kv_store.empty()) return;
  const auto refuse = [](const char* setting, const char* why) {
    Fail(ErrorKind::kInvalidArgument, "--kv-store with {}: {}; leave one of them out", setting,
         why);
  };
  if (!options.prefix_cache) refuse("--no-prefix-cache", "it keeps prefixes for later prompts");
  if (!options.route_from.empty()) {
    refuse("--route-from", "keys and values that follow from a recorded routing are no prompt's");
  }
  if (!options.exact_numerics) {
    refuse("--numerics fast", "what is kept would depend on who happened to compute it");
  }
}

// What shares memory of experts has it on the host, of one size, and to itself.
void CheckSharing(const EngineOptions& options) {
  if (options.share_experts.empty()) return;
  const auto refuse = [&](const char* setting, const char* why) {
    Fail(ErrorKind::kInvalidArgument, "--share-experts {} with {}: {}; leave one of them out",
         options.share_experts, setting, why);
  };
  if (options.devices.count > 0) {
    refuse("--devices", "the home of experts on devices is memory of one process");
  }
  if (options.most_expert_bytes > 0) {
    refuse("several models", "models of one process take memory of experts from each other");
  }
}

}  // namespace

void CheckEngineOptions(const EngineOptions& options, const ModelConfig& config) {
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    Fail(ErrorKind::kInvalidArgument,
         "--max-num-batched-tokens ({}) is below --max-num-seqs ({}): a step could not give every "
         "running "
         "sequence its token; raise the first or lower the second",
         options.max_num_batched_tokens, options.max_num_seqs);
  }
  if (options.eviction_policy == "next-use" && options.predictor == "none") {
    Fail(ErrorKind::kInvalidArgument,
         "--eviction-policy next-use evicts by predictions: give --predictor, or use lru");
  }
  CheckDeferral(options, config);
  CheckKvStore(options);
  CheckSharing(options);
  CheckContext(options, config);
}

void CheckContext(const EngineOptions& options, const ModelConfig& config) {
  if (options.kv_cache_dtype == WeightType::kInt8 && config.FindMixer<LatentSpec>() != nullptr) {
    Fail(ErrorKind::kInvalidArgument,
         "--kv-cache-dtype int8: latent attention keeps one row for the keys and values of all "
         "heads, which is not rounded further; give bfloat16, or leave it out");
  }
  if (options.max_model_len > config.max_position && config.rope().kind == RopeKind::kDefault) {
    Fail(ErrorKind::kInvalidArgument, "--max-model-len: {} is more than the model's {} positions",
         options.max_model_len, config.max_position);
  }
}

}  // namespace moesaic
