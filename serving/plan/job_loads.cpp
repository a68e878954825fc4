#include "serving/plan/job_loads.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kStep = 1.02;

int StepOf(int64_t count) {
  if (count <= 0) return -1;
  return static_cast<int>(std::lround(std::log(static_cast<double>(count)) / std::log(kStep)));
}

int64_t CountAt(int step) { return step < 0 ? 0 : std::llround(std::pow(kStep, step)); }

}  // namespace

std::vector<int64_t> SequenceCounts(int64_t requests, int64_t most, int64_t splits) {
  std::vector<int64_t> counts;
  for (double count = 1; count < static_cast<double>(most);
       count = std::max(count + 1, count * 1.3)) {
    counts.push_back(static_cast<int64_t>(count));
  }
  for (int64_t batches = 1; batches <= splits; ++batches) {
    const int64_t count = (requests + batches - 1) / batches;
    if (count <= most) counts.push_back(count);
  }
  counts.push_back(most);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

IterationLoad PrefillLoad(double tokens, double mean_prompt) {
  IterationLoad load;
  load.prefill_tokens = std::max<int64_t>(1, std::llround(tokens));
  load.prefill_positions = std::llround(tokens * (mean_prompt + 1) / 2);
  return load;
}

RoundedLoad::RoundedLoad(const IterationLoad& load)
    : steps_{StepOf(load.decode_sequences), StepOf(load.decode_context),
             StepOf(load.prefill_tokens), StepOf(load.prefill_positions),
             StepOf(load.prompts_ended)} {}

IterationLoad RoundedLoad::load() const {
  return {CountAt(steps_[0]), CountAt(steps_[1]), CountAt(steps_[2]), CountAt(steps_[3]),
          CountAt(steps_[4])};
}

void SetTimes(double wall_s, double prefill_s, double generated_tokens, double prompt_tokens,
              PlanPrediction& prediction) {
  prediction.wall_s = wall_s;
  prediction.prefill_s = prefill_s;
  prediction.decode_s = wall_s - prefill_s;
  prediction.generated_tokens_per_s = generated_tokens / wall_s;
  prediction.total_tokens_per_s = (generated_tokens + prompt_tokens) / wall_s;
}

}  // namespace moesaic
