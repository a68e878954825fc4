#include "serving/online/engine_options.h"

namespace moesaic {

WeightType ChooseWeightType(const EngineOptions& options) {
  return options.dtype.value_or(WeightType::kBf16);
}

WeightType ChooseKvType(const EngineOptions& options) {
  const bool exact = ChooseWeightType(options) == WeightType::kF32;
  return options.kv_cache_dtype.value_or(exact ? WeightType::kF32 : WeightType::kBf16);
}

}  // namespace moesaic
