#include "serving/model/coded_weights.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "kernels/cpu/coded_weights.h"
#include "serving/model/expert_sources.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/weights.h"

namespace moesaic {

bool StaysCoded(const ModelConfig& config, TensorSlot slot, int64_t layer, int64_t cols) {
  return CodingGains(cols) && !config.uncoded_tensors.contains(config.tensors.At(slot, layer).name);
}

WeightType ExpertWeightType(const ModelConfig& config, WeightType type) {
  if (SameBitsAs(type) != WeightType::kBf16) return InExperts(type);
  const bool coded = config.coded_experts.value_or(type == WeightType::kBf16Coded);
  const bool gains = CodingGains(config.hidden_size) && CodingGains(config.expert_width());
  return coded && gains ? WeightType::kBf16Coded : WeightType::kBf16;
}

void FindUncodedTensors(const TensorSource& source, const CpuKernels& kernels, ThreadPool& pool,
                        ModelConfig& config) {
  config.uncoded_tensors.clear();
  config.uncoded_tensors =
      ModelWeights::UncodedTensors(config, WeightType::kBf16Coded, source, kernels, pool);
}

bool ExpertsCanBeCoded(const ModelConfig& config, const TensorSource& source,
                       const CpuKernels& kernels, ThreadPool& pool) {
  ModelConfig coded = config;
  coded.coded_experts = true;
  if (ExpertWeightType(coded, WeightType::kBf16Coded) != WeightType::kBf16Coded) return false;
  const std::vector<ExpertId> experts = AllExperts(coded);
  const auto threads = static_cast<size_t>(pool.threads());
  std::vector<ExpertPacker> packers;
  std::vector<AlignedBuffer> slots;
  packers.reserve(threads);
  slots.reserve(threads);
  for (size_t i = 0; i < threads; ++i) {
    packers.emplace_back(coded, WeightType::kBf16Coded, source, kernels);
    slots.emplace_back(packers.back().layout().slot_bytes);
  }
  try {
    pool.ParallelFor(std::ssize(experts), [&](int64_t i, int thread) {
      const auto at = static_cast<size_t>(thread);
      packers[at].Pack(experts[static_cast<size_t>(i)], slots[at].span());
    });
  } catch (const UncodableExpert&) {
    return false;
  }
  return true;
}

}  // namespace moesaic
