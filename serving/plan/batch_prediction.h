// BatchPrediction: how long a batch job takes with given sizes, from measured module costs: each
// pass of the simulated scheduler as a PlannedPass.
//
// Plain functions of their arguments. What is read by the first pass (residents) counts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/config/model_config.h"
#include "core/perf/execution_plan.h"
#include "core/perf/module_costs.h"
#include "core/perf/workload.h"
#include "serving/batch/batch_plan.h"
#include "serving/plan/job_loads.h"
#include "serving/plan/pass_simulation.h"
#include "serving/plan/scheduler_simulation.h"

namespace moesaic {

// Devices whose threads are the host's, and the link of each (core/device/emulated_device.h).
struct PlannedDevice {
  double bytes_per_s = 0;  // of the link; 0: as fast as bytes are copied
  double latency_s = 0;    // of each copy
  uint32_t packet_bytes = 0;
  int threads = 1;         // of the host
  int count = 1;           // of devices
  int device_threads = 1;  // of each of them
};

// What the MLP of one layer without experts takes.
double DenseMlpSeconds(const ModelConfig& config, const ModuleCosts& costs, double rows);

// Rows of a pass with which a layer computes as long as its experts take to read (`layer_read_s`):
// MoE-Lens' n_real = (t_io - a) / b from its pipeline profiler, with all experts in use. Below it
// reading is the limit. 0 when what does not depend on rows takes longer by itself.
double TokenBudget(const ModelConfig& config, const ModuleCosts& costs, double layer_read_s);

// What passes of one model take with one set of sizes.
class BatchPassModel {
 public:
  // `device`: where experts are and, on the first, dense modules run; nullopt: in host memory. The
  // other arguments outlive it.
  BatchPassModel(const ModelConfig& config, const ModuleCosts& costs, const BatchSizes& sizes,
                 uint64_t slot_bytes, std::optional<PlannedDevice> device = std::nullopt);

  // Durations of one pass; `cold`: residents have yet to be read.
  PlannedPass PassOf(const IterationLoad& load, bool cold) const;
  // The same played, remembered by the load rounded to two per cent.
  const PassTimes& Times(const IterationLoad& load, bool cold);
  // Of the dense part of a pass, what attention is (projections, attention, output).
  double AttentionShare(const IterationLoad& load) const;
  // A pass in the steady state, with all that it does, per layer.
  PhasePrediction Phase(const IterationLoad& load);

  uint64_t slot_bytes() const { return slot_bytes_; }
  // As SchedulerLimits'.
  std::vector<int64_t> held_tokens() const;

 private:
  double AttentionSeconds(const IterationLoad& load) const;  // of one layer, on the host
  double HeadSeconds(const IterationLoad& load) const;
  double CopySeconds(double bytes, double copies) const;  // over the device's link
  void AddDevice(double group_rows, PlannedPass& pass) const;

  const ModelConfig& config_;
  const ModuleCosts& costs_;
  const BatchSizes sizes_;
  const uint64_t slot_bytes_;
  const std::optional<PlannedDevice> device_;
  std::map<std::pair<RoundedLoad, bool>, PassTimes> seen_;  // also by cold
};

// A first estimate of the job's seconds, from one steady pass; for ranking.
double EstimateBatchSeconds(BatchPassModel& passes, const BatchSizes& sizes,
                            const Workload& workload);
// The whole job, pass by pass.
PlanPrediction PredictBatch(BatchPassModel& passes, const BatchSizes& sizes,
                            const Workload& workload);

}  // namespace moesaic
