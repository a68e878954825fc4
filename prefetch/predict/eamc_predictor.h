// EamcPredictor: MoE-Infinity's prediction (section 5.1). The running iteration's EAM is compared,
// on the layers it has seen, with the request EAMs of a collection; the most similar ones are
// summed and each row normalised. A request's EAM enters the collection when it ends.
//
// Thread contract: as Predictor.
#pragma once

#include <memory>

#include "prefetch/predict/predictor.h"

namespace moesaic {

struct EamcOptions {
  int capacity = 1000;  // request EAMs
  int matches = 8;      // that are summed
};

// `kernels` must outlive it.
std::unique_ptr<Predictor> MakeEamcPredictor(const PredictorShape& shape, const CpuKernels& kernels,
                                             const EamcOptions& options = {});

}  // namespace moesaic
