// MoE-Lens' closed-form model of prefill and decode that share iterations under a KV budget.
// Equation numbers are the paper's; where a printed one is wrong, the comment says what stands
// here instead.
//
// Pure functions. One iteration streams the whole model once and takes `iteration_s`.
#pragma once

#include <cstdint>

#include "core/perf/execution_plan.h"

namespace moesaic {

// Parallelism-memory efficiency, Eq. 3: tokens processed per token of KV memory and iteration. The
// sum over j = 0 .. g has g + 1 terms; the printed closed form divides by g.
double ParallelismMemoryEfficiency(double prompt, double generated);

// Eq. 4: total tokens per second when KV capacity is `kv_tokens` and the device processes at most
// `device_tokens_per_s`.
double LensStage1(double prompt, double generated, double kv_tokens, double iteration_s,
                  double device_tokens_per_s);

struct LensJob {
  int64_t prompt_tokens = 0;     // p, of every request
  int64_t generated_tokens = 0;  // g
  int64_t requests = 0;          // K
  int64_t kv_blocks = 0;         // N
  int64_t block_tokens = 16;     // b
  double token_budget = 0;       // n_real: tokens of one iteration
  double iteration_s = 0;        // delta
};

// Eq. 8 to 14. T = T1 when the KV cache is the limit (q (p + g) <= n_real), else T2, whose number
// of iterations is held at 2 g at least: the paper's min(T1, T2) turns negative when the first
// iterations already prefill everything.
LensPrediction LensStage2(const LensJob& job);

}  // namespace moesaic
