// Which bf16 weights are coded in memory (WeightType::kBf16Coded): a matrix whose panels all have
// room for their exceptions, in fewer bytes than plain. Sizes in memory are planned before anything
// is loaded, so that this is found out first, by coding; what was found is in ModelConfig.
//
// Thread contract: functions of their arguments; who looks at a model uses the pool that it is
// given.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/error.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/tensor_source.h"

namespace moesaic {

// A matrix of an expert cannot be coded. Of one that could when the model was opened, the file has
// changed since.
class UncodableExpert : public Error {
 public:
  explicit UncodableExpert(const std::string& message) : Error(ErrorKind::kCorrupt, message) {}
};

// Whether this tensor of the dense part, of so many columns, is coded where weights are kBf16Coded.
bool StaysCoded(const ModelConfig& config, TensorSlot slot, int64_t layer, int64_t cols);

// The type of experts' matrices in a model of `type`. Of bf16, coded or not, they may be otherwise
// than it is: ModelConfig::coded_experts, and rows that are long enough to gain.
WeightType ExpertWeightType(const ModelConfig& config, WeightType type);

// Reads the dense part and codes it, for ModelConfig::uncoded_tensors. Throws as
// ModelWeights::Load.
void FindUncodedTensors(const TensorSource& source, const CpuKernels& kernels, ThreadPool& pool,
                        ModelConfig& config);

// Reads all experts and codes them: false, as soon as a matrix does not fit. Throws as TensorSource
// does.
bool ExpertsCanBeCoded(const ModelConfig& config, const TensorSource& source,
                       const CpuKernels& kernels, ThreadPool& pool);

}  // namespace moesaic
