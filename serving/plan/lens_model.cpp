#include "serving/plan/lens_model.h"

#include <algorithm>

namespace moesaic {

double ParallelismMemoryEfficiency(double prompt, double generated) {
  return 2 * (prompt + generated) / ((2 * prompt + generated) * (generated + 1));
}

double LensStage1(double prompt, double generated, double kv_tokens, double iteration_s,
                  double device_tokens_per_s) {
  return std::min(ParallelismMemoryEfficiency(prompt, generated) * kv_tokens / iteration_s,
                  device_tokens_per_s);
}

LensPrediction LensStage2(const LensJob& job) {
  const auto p = static_cast<double>(job.prompt_tokens);
  const auto g = static_cast<double>(job.generated_tokens);
  const auto requests = static_cast<double>(job.requests);
  int64_t block_iterations = 0;  // that one sequence holds, over its life
  for (int64_t i = 0; i <= job.generated_tokens; ++i) {
    block_iterations += (job.prompt_tokens + i + job.block_tokens - 1) / job.block_tokens;
  }
  LensPrediction lens;
  const double q = static_cast<double>(job.kv_blocks) / static_cast<double>(block_iterations);
  lens.prompts_per_iteration = q;
  lens.decode_per_iteration = g * q;
  lens.tokens_per_iteration = q * (p + g);
  lens.kv_bound = lens.tokens_per_iteration <= job.token_budget;
  lens.kv_bound_tokens_per_s = requests * g / ((requests / q + g) * job.iteration_s);

  // Eq. 11 to 13; T_GPU is tokens per iteration here.
  const double prefill_budget = job.token_budget * p / (p + g);
  const double rest = requests * p - (prefill_budget + job.token_budget) / 2 * g;
  const double iterations = 2 * g + std::max(rest, 0.0) / prefill_budget;
  lens.compute_bound_tokens_per_s = requests * g / (iterations * job.iteration_s);
  lens.iterations = lens.kv_bound ? requests / q + g : iterations;
  lens.tokens_per_s = lens.kv_bound ? lens.kv_bound_tokens_per_s : lens.compute_bound_tokens_per_s;
  const double kv_tokens =
      static_cast<double>(job.kv_blocks) * static_cast<double>(job.block_tokens);
  lens.stage1_total_tokens_per_s =
      LensStage1(p, g, kv_tokens, job.iteration_s, job.token_budget / job.iteration_s);
  return lens;
}

}  // namespace moesaic
