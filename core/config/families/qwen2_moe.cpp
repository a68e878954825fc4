// Qwen2-MoE: a gated shared expert, dense layers among the sparse ones, windows of some layers.
#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

// Which layers slide.
std::vector<bool> SlidingLayersOfQwen2(const JsonFields& config, int64_t num_layers,
                                       bool use_sliding_window) {
  if (const auto listed = ReadSlidingLayers(config, num_layers)) return *listed;
  std::vector<bool> slides(static_cast<size_t>(num_layers), false);
  const int64_t max_window_layers = config.Int("max_window_layers", 28, 0, kMostLayers);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    slides[static_cast<size_t>(layer)] =
        use_sliding_window && layer % 2 == 0 && layer < max_window_layers;
  }
  return slides;
}

// Of each layer, 0: none.
std::vector<int64_t> WindowsOfQwen2(const JsonFields& config, int64_t num_layers) {
  const int64_t window = config.OptionalInt("sliding_window", 4096, 0, kMostPosition).value_or(0);
  const bool on = config.Bool("use_sliding_window", false);
  const std::vector<bool> slides = SlidingLayersOfQwen2(config, num_layers, on);
  std::vector<int64_t> windows(slides.size(), 0);
  for (size_t layer = 0; layer < slides.size(); ++layer) {
    if (!slides[layer]) continue;
    if (!on || window == 0) {
      config.FailAt("layer_types", fmt::format("layer {} is sliding_attention, but {}", layer,
                                               on ? "sliding_window gives no window"
                                                  : "use_sliding_window is false"));
    }
    windows[layer] = window;
  }
  return windows;
}

void ReadQwen2Moe(const JsonFields& config, ModelConfig& model) {
  ReadModel(
      config,
      {.vocab_size = 151936, .hidden_size = 2048, .max_position = 32768, .rms_norm_eps = 1e-6},
      model);
  const int64_t layers = ReadLayerCount(config, 24);

  GroupedQuerySpec attention = ReadAttention(config, {.heads = 16, .kv_heads = 16}, model);
  attention.qkv_bias = config.Bool("qkv_bias", true);
  const std::vector<int64_t> windows = WindowsOfQwen2(config, layers);

  ExpertsSpec experts;
  experts.router = ReadRouter(config, {.experts = 60, .top_k = 4});
  if (config.Bool("norm_topk_prob", false)) experts.router.norm = RouterNorm::kSum;
  experts.expert = ReadMlp(config, "moe_intermediate_size", 1408);
  experts.shared = ReadMlp(config, "shared_expert_intermediate_size", 5632);
  experts.shared_gate = true;
  const MlpSpec dense = ReadMlp(config, "intermediate_size", 5632);

  for (const bool sparse : ReadSparseLayers(config, layers)) {
    attention.window = windows[model.layers.size()];
    model.layers.push_back(
        {model.final_norm, attention, sparse ? LayerMlp(experts) : LayerMlp(dense)});
  }

  model.tensors = CommonTensors();
  const std::string mlp = "model.layers.{layer}.mlp.";
  model.tensors.SetMlp(kSharedMlpSlots, mlp + "shared_expert.", kProjectionNames);
  model.tensors.Set(TensorSlot::kSharedGate, mlp + "shared_expert_gate.weight");
}

}  // namespace

const ModelFamily& Qwen2MoeFamily() {
  static constexpr ModelFamily kFamily = {"Qwen2MoeForCausalLM", "qwen2_moe", ReadQwen2Moe};
  return kFamily;
}

}  // namespace moesaic
