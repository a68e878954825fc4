// What a router makes of its logits before it chooses (core/config/router_spec.h).
//
// A function of its arguments; safe from any thread.
#pragma once

#include <cstdint>

#include "core/config/router_spec.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// logits [n] become scores.
void ScoreLogits(ScoreFunction function, const CpuKernels& kernels, int64_t n, float* logits);

}  // namespace moesaic
