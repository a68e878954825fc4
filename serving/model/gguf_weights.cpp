#include "serving/model/gguf_weights.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/io/gguf_types.h"
#include "kernels/cpu/gguf_blocks.h"

namespace moesaic {
namespace {

int64_t InputsOf(const ModelConfig& config, TensorSlot slot) {
  return slot == TensorSlot::kExpertDown ? config.expert_width() : config.hidden_size;
}

// Of the matrix of all experts of a layer; nullopt where they differ.
std::optional<GgufForm> FormOfLayer(const ModelConfig& config, TensorSlot slot, int64_t layer) {
  const auto of = [&](int64_t expert) {
    return GgufFormOfTensor(config, config.tensors.At(slot, layer, expert), InputsOf(config, slot));
  };
  const std::optional<GgufForm> first = of(0);
  if (config.tensors.At(slot, layer, 0).Find<StackOf>() != nullptr) return first;
  for (int64_t expert = 1; expert < config.num_experts(); ++expert) {
    if (of(expert) != first) return std::nullopt;
  }
  return first;
}

}  // namespace

std::optional<GgufForm> GgufFormOfTensor(const ModelConfig& config, const PlannedTensor& tensor,
                                         int64_t cols) {
  const auto found = config.gguf_types.find(tensor.name);
  if (found == config.gguf_types.end()) return std::nullopt;
  const GgufType& type = *FindGgufType(found->second);
  if (!HasGgufValues(type)) return std::nullopt;
  const GgufForm form = GgufFormOf(type);
  if (cols % form.values != 0) return std::nullopt;
  return form;
}

GgufForm GgufFormOrF32(const ModelConfig& config, const PlannedTensor& tensor, int64_t cols) {
  return GgufFormOfTensor(config, tensor, cols).value_or(GgufF32Form(cols));
}

bool HasGgufExperts(const ModelConfig& config) {
  bool in_blocks = false;
  for (int64_t l = 0; l < config.num_layers(); ++l) {
    if (!config.is_sparse(l)) continue;
    for (const TensorSlot slot : kExpertSlots) {
      const std::optional<GgufForm> form = FormOfLayer(config, slot, l);
      if (!form) return false;
      in_blocks = in_blocks || !IsPlain(*form);
    }
  }
  return in_blocks;
}

bool AllGgufExpertsInBlocks(const ModelConfig& config) {
  for (const TensorSlot slot : kExpertSlots) {
    for (const uint32_t id : GgufTypesOfLayers(config, slot)) {
      if (IsPlain(GgufFormOf(*FindGgufType(id)))) return false;
    }
  }
  return true;
}

bool IsPlain(const GgufForm& form) { return FindGgufType(form.id)->block_values == 1; }

void TakeSameActivations(std::span<PackedMatrix* const> matrices) {
  const auto takes_f32 = [](const PackedMatrix* m) { return m->type == WeightType::kGgufF32; };
  if (std::none_of(matrices.begin(), matrices.end(), takes_f32)) return;
  for (PackedMatrix* const matrix : matrices) {
    if (matrix->type == WeightType::kGguf) matrix->type = WeightType::kGgufF32;
  }
}

std::vector<uint32_t> GgufTypesOfLayers(const ModelConfig& config, TensorSlot slot) {
  std::vector<uint32_t> types(static_cast<size_t>(config.num_layers()));
  if (config.tensors.HasMxfp4Experts()) {
    std::fill(types.begin(), types.end(), kMxfp4Form.id);
    return types;
  }
  std::optional<uint32_t> known;
  for (int64_t l = 0; l < config.num_layers(); ++l) {
    if (!config.is_sparse(l)) continue;
    const std::optional<GgufForm> form = FormOfLayer(config, slot, l);
    CHECK(form.has_value());
    if (!known) std::fill(types.begin(), types.end(), form->id);
    known = types[static_cast<size_t>(l)] = form->id;
  }
  CHECK(known.has_value());
  return types;
}

}  // namespace moesaic
