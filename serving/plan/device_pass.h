// DevicePass: how long one pass of throughput mode takes on a machine with a device whose threads
// are the host's (an emulated device): the task graph that PassRunner runs and the StreamFlow that
// decides what is read, both the engine's own, played on a virtual clock with measured durations.
//
// Pure functions over plain data.
//
// Each lane runs its tasks in launch order. The link into the device carries packets of experts and
// attention outputs, who waits longest first. Computing on both sides at once shares the
// processors, and a copy takes some of their time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/perf/execution_plan.h"
#include "serving/plan/stream_schedule.h"

namespace moesaic {

struct DevicePass {
  ScheduleKind schedule = ScheduleKind::kModuleBatching;
  int groups = 1;                        // of sequences; overlapped: 2
  std::vector<uint8_t> layer_is_sparse;  // [layers]; 1: it has experts
  int64_t num_experts = 0;               // of such a layer

  // Of one group.
  double pre_attention_s = 0;   // on the device: norm, projections
  double offload_qkv_s = 0;     // to the host
  double attention_s = 0;       // on the host
  double load_hidden_s = 0;     // to the device
  double post_attention_s = 0;  // on the device: projection, router, shared expert

  double dense_mlp_s = 0;  // a layer without experts, over the rows of one visit
  double expert_s = 0;     // one expert, over the rows of one visit
  // Experts of a layer that a visit uses, and that all visits of a pass use together. Module
  // batching visits a layer once, the others once for each group.
  double visit_active = 0;
  double active = 0;
  double repeated = 0;  // of these, the next pass's as well; what is read ahead is the last pass's
  double other_s = 0;   // of the pass, on the host, behind all layers: the head

  int64_t slots = 0;        // on the device
  int64_t buffers = 0;      // of them for what streams
  int64_t group = 1;        // experts that are computed together at most
  double load_s = 0;        // one expert, into its slot
  int packets = 1;          // that it is copied in
  int64_t loads_ahead = 1;  // experts that are given to the link before they can be copied

  double both_share = 1;  // of its rate, when the other side computes as well
  double copy_share = 1;  // of computing's rate, while something is copied to the device
  bool cold = false;      // the first pass: nothing is on the device
};

// As SimulateStreamPass: the steady state, or the first pass. dense_s holds attention too and is
// summed over both sides, so that the parts may add up to more than `seconds`. link_s: experts are
// on their way or in line. Copies of hidden states are part of link_alone_s.
StreamPassTimes SimulateDevicePass(const DevicePass& pass);

}  // namespace moesaic
