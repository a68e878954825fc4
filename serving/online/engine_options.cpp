#include "serving/online/engine_options.h"

namespace moesaic {

WeightType ChooseWeightType(const EngineOptions& options) {
  const WeightType type = options.dtype.value_or(WeightType::kBf16);
  const bool coded = type == WeightType::kBf16 && options.weight_coding == WeightCoding::kLossless;
  return coded ? WeightType::kBf16Coded : type;
}

WeightType ChooseKvType(const EngineOptions& options) {
  const bool exact = ChooseWeightType(options) == WeightType::kF32;
  return options.kv_cache_dtype.value_or(exact ? WeightType::kF32 : WeightType::kBf16);
}

}  // namespace moesaic
