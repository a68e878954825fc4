// What a job looks like to both planners: batches worth a look, loads of its iterations, and these
// rounded, so that a time is computed once for all that are nearly the same.
//
// Functions of their arguments.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/perf/execution_plan.h"
#include "serving/plan/scheduler_simulation.h"

namespace moesaic {

// Numbers of sequences up to `most`, ascending: geometric, and those that split the requests evenly
// into up to `splits` batches.
std::vector<int64_t> SequenceCounts(int64_t requests, int64_t most, int64_t splits);

// So many tokens of prompts of this length.
IterationLoad PrefillLoad(double tokens, double mean_prompt);

// A load to within two per cent.
class RoundedLoad {
 public:
  explicit RoundedLoad(const IterationLoad& load);
  IterationLoad load() const;

  friend auto operator<=>(const RoundedLoad&, const RoundedLoad&) =
      default;  // NOLINT(modernize-use-nullptr): clang 14 errs

 private:
  std::array<int, 5> steps_;  // -1: zero
};

// The rates of a job that takes wall_s, of which iterations that only prefill take prefill_s.
void SetTimes(double wall_s, double prefill_s, double generated_tokens, double prompt_tokens,
              PlanPrediction& prediction);

}  // namespace moesaic
