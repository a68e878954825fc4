// ERNIE-4.5 (21B-A3B, 300B-A47B): a softmax router whose choice is corrected by a bias, ungated
// shared experts, heads rotated in pairs of neighbours. Of the layers from one on to another every
// so many has experts.
#include <algorithm>

#include "core/base/error.h"
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

// Which layers have experts.
std::vector<bool> ReadExpertLayers(const JsonFields& config, int64_t layers) {
  const int64_t first = config.OptionalInt("moe_layer_start_index", 1, 0, kMostLayers).value_or(1);
  const int64_t end = config.OptionalInt("moe_layer_end_index", -1, -1, kMostLayers).value_or(-1);
  const int64_t last = end < 0 ? layers - 1 : end;
  const int64_t step = config.OptionalInt("moe_layer_interval", 1, 1, kMostLayers).value_or(1);
  std::vector<bool> sparse(static_cast<size_t>(layers));
  for (int64_t l = 0; l < layers; ++l) {
    sparse[static_cast<size_t>(l)] = l >= first && l <= last && (l + 1) % step == 0;
  }
  return sparse;
}

RouterSpec ReadErnieRouter(const JsonFields& config) {
  RouterSpec router;
  router.experts = config.OptionalInt("moe_num_experts", 64, 1, kMostExperts).value_or(64);
  router.top_k =
      config.OptionalInt("moe_k", std::min<int64_t>(6, router.experts), 1, router.experts)
          .value_or(std::min<int64_t>(6, router.experts));
  router.correction_bias = true;
  router.f32_weights = true;
  router.norm = RouterNorm::kSumAtLeastEps;
  router.norm_eps = config.OptionalNumber("moe_norm_min", 0.0, 1.0).value_or(1e-12);
  return router;
}

void ReadErnie45Moe(const JsonFields& config, ModelConfig& model) {
  ReadModel(config,
            {.vocab_size = 103424,
             .hidden_size = 2560,
             .max_position = 131072,
             .rms_norm_eps = 1e-5,
             .bos = 1,
             .eos = 2,
             .pad = 0},
            model);
  model.tie_word_embeddings = config.Bool("tie_word_embeddings", true);
  const int64_t layers = ReadLayerCount(config, 28);
  if (config.OptionalBool("use_bias").value_or(false)) {
    config.FailAt("use_bias", "is true; only false is supported", ErrorKind::kUnsupported);
  }
  const GroupedQuerySpec attention =
      ReadAttention(config, {.heads = 20, .kv_heads = 4, .rope_theta = 5e5}, model);

  ExpertsSpec experts;
  experts.router = ReadErnieRouter(config);
  experts.expert = ReadMlp(config, "moe_intermediate_size", 1536);
  experts.shared = experts.expert;
  constexpr int64_t kMostShared = 1024;
  experts.shared.width *=
      config.OptionalInt("moe_num_shared_experts", 2, 0, kMostShared).value_or(2);
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 12288);
  for (const bool sparse : ReadExpertLayers(config, layers)) {
    model.layers.push_back(
        {model.final_norm, attention, sparse ? LayerMlp(experts) : LayerMlp(dense)});
  }

  // A layer behind the last one predicts a further token (mtp_*) and is not read.
  model.tensors = CommonTensors();
  const std::string layer = "model.layers.{layer}.";
  const TensorTransform pairs = RowsInPairs{.head_rows = attention.head_dim};
  model.tensors.Set(TensorSlot::kQ, layer + "self_attn.q_proj.weight", {pairs});
  model.tensors.Set(TensorSlot::kK, layer + "self_attn.k_proj.weight", {pairs});
  // Values are not rotated, but rows of one matrix are read in one way.
  const TensorTransform unchanged =
      RowsInPairs{.head_rows = attention.head_dim, .passed = attention.head_dim};
  model.tensors.Set(TensorSlot::kV, layer + "self_attn.v_proj.weight", {unchanged});
  model.tensors.Set(TensorSlot::kRouterCorrection,
                    layer + "mlp.moe_statics.e_score_correction_bias", {VectorAsRow{}});
  model.tensors.SetMlp(kSharedMlpSlots, layer + "mlp.shared_experts.", kProjectionNames);
}

}  // namespace

const ModelFamily& Ernie45MoeFamily() {
  static constexpr ModelFamily kFamily = {"Ernie4_5_MoeForCausalLM", "ernie4_5_moe",
                                          ReadErnie45Moe};
  return kFamily;
}

}  // namespace moesaic
