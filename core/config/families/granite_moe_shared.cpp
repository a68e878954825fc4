// Granite MoE with an MLP in each layer that every token runs beside its experts.
#include <optional>
#include <variant>

#include "core/config/family_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

void ReadGraniteMoeShared(const JsonFields& config, ModelConfig& model) {
  ReadGraniteMoe(config, model);
  const int64_t width = config.Int("shared_intermediate_size", 0, 0, kMostWidth);
  if (width == 0) return;
  for (LayerSpec& layer : model.layers) {
    ExpertsSpec& experts = std::get<ExpertsSpec>(layer.mlp);
    experts.shared = experts.expert;
    experts.shared.width = width;
  }
  const std::string mlp = "model.layers.{layer}.shared_mlp.";
  SetJoinedGateUp(kSharedMlpSlots, mlp + "input_linear.weight", width, std::nullopt, model.tensors);
  model.tensors.Set(TensorSlot::kSharedMlpDown, mlp + "output_linear.weight");
}

}  // namespace

const ModelFamily& GraniteMoeSharedFamily() {
  static constexpr ModelFamily kFamily = {"GraniteMoeSharedForCausalLM", "granitemoeshared",
                                          ReadGraniteMoeShared};
  return kFamily;
}

}  // namespace moesaic
