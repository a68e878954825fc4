// Which matrices of a model in a GGUF file can stay in the blocks of the file (WeightType::kGguf),
// and of which type they are.
//
// Functions of their arguments; safe from any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// How rows of `cols` values lie in the tensor; nullopt: it is of no such file, or its rows are no
// whole blocks of a type whose values are known.
std::optional<GgufForm> GgufFormOfTensor(const ModelConfig& config, const PlannedTensor& tensor,
                                         int64_t cols);

// The same, or f32 where it does not stay as it is.
GgufForm GgufFormOrF32(const ModelConfig& config, const PlannedTensor& tensor, int64_t cols);

// Whether all experts can stay as they are, and some are not plain floats.
bool HasGgufExperts(const ModelConfig& config);
// Of such a model: whether int8 activations fit all of them, so that none are plain floats.
bool AllGgufExpertsInBlocks(const ModelConfig& config);

// One number a value.
bool IsPlain(const GgufForm& form);

// Matrices that are multiplied with the same rows, or with rows that others of them make, take f32
// activations when one of them does.
void TakeSameActivations(std::span<PackedMatrix* const> matrices);
inline void TakeSameActivations(std::initializer_list<PackedMatrix*> matrices) {
  TakeSameActivations(std::span(matrices.begin(), matrices.size()));
}

// The type (GgufType::id) of an expert's matrix in each layer; a layer without experts has that of
// another one. Of a model with HasGgufExperts (CHECK), or with experts in MXFP4, whose blocks are
// those of that type.
std::vector<uint32_t> GgufTypesOfLayers(const ModelConfig& config, TensorSlot slot);

}  // namespace moesaic
