// ChooseExperts: the experts that a token is sent to and their weights, from its router's logits.
//
// Function of its arguments; safe from any thread.
#pragma once

#include <cstdint>

#include "core/config/router_spec.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// Of one token. logits [experts] become the scores. correction [experts] is added to them for the
// choice alone; read with spec.correction_bias. Into ids and weights [top_k], the largest choice
// first and of equal ones the lower expert. NaN is the least choice: a poisoned row still gets
// distinct, valid experts, and its logits say so.
void ChooseExperts(const RouterSpec& spec, const CpuKernels& kernels, float* logits,
                   const float* correction, int32_t* ids, float* weights);

}  // namespace moesaic
