#include "kernels/cpu/router_scores.h"

#include <cmath>

namespace moesaic {

void ScoreLogits(ScoreFunction function, const CpuKernels& kernels, int64_t n, float* logits) {
  switch (function) {
    case ScoreFunction::kSoftmax:
      kernels.softmax(logits, n, logits);
      return;
    case ScoreFunction::kSigmoid:
      kernels.sigmoid(logits, n, logits);
      return;
    case ScoreFunction::kSqrtSoftplus:
      // In double, whose exp does not overflow below 709; from 40 on 1 is lost beside it.
      for (int64_t i = 0; i < n; ++i) {
        const double x = static_cast<double>(logits[i]);
        logits[i] = static_cast<float>(std::sqrt(x > 40.0 ? x : std::log1p(std::exp(x))));
      }
      return;
    case ScoreFunction::kLogit:
      return;
  }
}

}  // namespace moesaic
