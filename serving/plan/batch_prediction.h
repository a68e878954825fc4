// BatchPrediction: how long a batch job takes with given sizes, from measured module costs: each
// pass of the simulated scheduler as a StreamPass.
//
// Plain functions of their arguments. What is read by the first pass (residents) counts.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "core/config/model_config.h"
#include "core/perf/execution_plan.h"
#include "core/perf/module_costs.h"
#include "core/perf/workload.h"
#include "serving/batch/batch_plan.h"
#include "serving/plan/scheduler_simulation.h"
#include "serving/plan/stream_schedule.h"

namespace moesaic {

// What passes of one model take with one set of sizes.
class BatchPassModel {
 public:
  // The arguments outlive it.
  BatchPassModel(const ModelConfig& config, const ModuleCosts& costs, const BatchSizes& sizes,
                 uint64_t slot_bytes);

  // Durations of one pass; `cold`: residents have yet to be read.
  StreamPass PassOf(const IterationLoad& load, bool cold) const;
  // The same played, remembered by the load rounded to two per cent.
  const StreamPassTimes& Times(const IterationLoad& load, bool cold);
  // Of the dense part of a pass, what attention is (projections, attention, output).
  double AttentionShare(const IterationLoad& load) const;
  // A pass in the steady state, with all that it does, per layer with experts.
  PhasePrediction Phase(const IterationLoad& load);

  double residents_per_layer() const { return residents_per_layer_; }
  uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  double AttentionSeconds(const IterationLoad& load) const;  // of one layer
  double DenseMlpSeconds(double rows) const;                 // of one layer without experts

  const ModelConfig& config_;
  const ModuleCosts& costs_;
  const BatchSizes sizes_;
  const uint64_t slot_bytes_;
  const double residents_per_layer_;
  std::map<std::array<int, 6>, StreamPassTimes> seen_;
};

// A first estimate of the job's seconds, from one steady pass; for ranking.
double EstimateBatchSeconds(BatchPassModel& passes, const BatchSizes& sizes,
                            const Workload& workload);
// The whole job, pass by pass.
PlanPrediction PredictBatch(BatchPassModel& passes, const BatchSizes& sizes,
                            const Workload& workload);

}  // namespace moesaic
