// The three schedules as launch orders of one layer's tasks, and what they predict: the period of a
// layer in the steady state.
//
// Pure functions. Weights are pinned, so the copy from pageable to pinned memory of MoE-Lightning's
// Algorithm 1 has no counterpart here.
#pragma once

#include <cstdint>
#include <vector>

#include "core/perf/execution_plan.h"
#include "core/perf/layer_graph.h"

namespace moesaic {

// Durations of one layer's tasks. Those of attention are of one micro-batch (of one of the two
// groups, when overlapped). Zero: there is no such task.
struct LayerTimes {
  bool shared_cpu = false;  // no GPU: device and CPU pool are one, hidden states are not copied

  int64_t micro_batches = 1;
  double pre_attention_s = 0;
  double offload_qkv_s = 0;
  double cpu_attention_s = 0;
  double load_hidden_s = 0;
  double load_kv_s = 0;
  double device_attention_s = 0;
  double post_attention_s = 0;  // with the experts, unless they run one by one

  // Module batching: experts one by one over the batch.
  int64_t experts = 0;           // that run
  int64_t streamed_experts = 0;  // of those, not resident; they run last
  double expert_s = 0;
  double expert_copy_s = 0;
  int64_t expert_buffers = 2;

  // All that a layer streams but single experts: one copy, or a page for each micro-batch.
  double weights_copy_s = 0;
};

// `layers` layers in launch order. Overlapped and paged weights: the first layer's weights are
// there.
TaskGraph BuildSchedule(ScheduleKind kind, const LayerTimes& times, int layers);

// Components, busy times, roofline bound and serial sum; no period. Cheap.
PhasePrediction LayerRoofline(ScheduleKind kind, const LayerTimes& times);
// The steady state: components, busy times, roofline bound, period, serial sum. The period is the
// growth of the layers' ends between m and 2 m layers, with m doubled until it settles. Always
// roofline <= period <= serial sum.
PhasePrediction PredictLayer(ScheduleKind kind, const LayerTimes& times);

}  // namespace moesaic
