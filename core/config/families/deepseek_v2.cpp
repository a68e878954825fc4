// DeepSeek-V2, V2-Lite, V2.5, Coder-V2: latent attention, a softmax router that may choose among
// the best groups of experts, ungated shared experts, dense layers first.
#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

RouterSpec ReadV2Router(const JsonFields& config) {
  if (config.Absent("num_experts_per_tok")) {
    config.FailAt("num_experts_per_tok", "is missing, and has no default");
  }
  RouterSpec router =
      ReadRouter(config, {.experts_key = "n_routed_experts", .experts = 64, .top_k = 1});
  const std::string method = config.OptionalString("topk_method").value_or("greedy");
  if (method == "group_limited_greedy") {
    ReadGroups(config, router);
    router.group_rule = GroupRule::kMax;
  } else if (method != "greedy") {
    config.FailAt("topk_method",
                  fmt::format("is \"{}\"; supported are \"greedy\" and \"group_limited_greedy\"",
                              method.substr(0, 80)),
                  ErrorKind::kUnsupported);
  }
  RequireString(config, "scoring_func", "softmax");
  if (config.OptionalBool("norm_topk_prob").value_or(false)) {
    config.FailAt("norm_topk_prob",
                  "is true; transformers ignores it and DeepSeek's own code does not, so only "
                  "false is supported",
                  ErrorKind::kUnsupported);
  }
  router.scale = config.Number("routed_scaling_factor", 1.0, 1e-6, 1e6);
  return router;
}

void ReadDeepseekV2(const JsonFields& config, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 102400, .hidden_size = 4096, .max_position = 2048, .bos = 1, .eos = 2},
            model);
  const int64_t layers = ReadLayerCount(config, 32);
  RefuseBiases(config);
  const LatentSpec latent = ReadLatent(config, {.heads = 32, .q_rank = 1536}, model);

  ExpertsSpec experts;
  experts.router = ReadV2Router(config);
  experts.expert = ReadMlp(config, "moe_intermediate_size", 1407);
  experts.shared = ReadSharedExperts(config, experts.expert, 2);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 11008);
  if (config.Int("moe_layer_freq", 1, 0, kMostLayers) != 1) {
    config.FailAt("moe_layer_freq", "only 1 is supported", ErrorKind::kUnsupported);
  }
  AddLayersDenseFirst(config, layers, 0, {model.final_norm, latent, dense}, experts, model);
  model.tensors = LatentTensors(latent, true);
}

}  // namespace

const ModelFamily& DeepseekV2Family() {
  static constexpr ModelFamily kFamily = {"DeepseekV2ForCausalLM", "deepseek_v2", ReadDeepseekV2};
  return kFamily;
}

}  // namespace moesaic
