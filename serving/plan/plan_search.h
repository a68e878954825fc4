// The search for the best candidate of one schedule: by ledger, by roofline bound, by task graph.
//
// Pure functions over plain data; see docs/throughput.md for what is searched.
#pragma once

#include <optional>

#include "serving/plan/lens_model.h"
#include "serving/plan/plan_candidate.h"
#include "serving/plan/throughput_planner.h"

namespace moesaic {

// What a candidate processes: passes of prefill and steps of decode that differ only in context.
struct Phases {
  IterationLoad prefill;
  IterationLoad decode;
  double prefill_passes = 0;
  double decode_steps = 0;
};

Phases PhasesOf(const PlanProblem& problem, const PlanCandidate& candidate);

// Prefill and decode in every iteration: the steady state of MoE-Lens' Stage 2.
struct MixedState {
  LensJob job;
  IterationLoad load;
};

MixedState MixedStateOf(const PlanProblem& problem, const PlanCandidate& candidate);

// The candidate that is estimated to finish soonest; nullopt when none fits.
std::optional<PlanCandidate> SearchCandidates(const PlanProblem& problem,
                                              const PlanOptions& options, ScheduleKind schedule);

}  // namespace moesaic
