// PlannedPass: how long one pass of throughput mode takes: the task graph that PassRunner runs and
// the StreamFlow that decides what is read, both the engine's own, played on a virtual clock with
// measured durations. Everything is in host memory and experts come from disk, or there are devices
// whose threads are the host's (emulated devices): the first one computes the dense modules, each
// of them its experts of a layer, which are together when the last one is done.
//
// Pure functions over plain data.
//
// Each lane runs its tasks in launch order. The link to where experts are computed carries their
// packets and, to a device, attention outputs, who waits longest first. Computing on both sides at
// once shares the processors; what is copied and what computes take some of each other's time.
#pragma once

#include <cstdint>
#include <vector>

#include "core/perf/execution_plan.h"

namespace moesaic {

struct PlannedPass {
  bool device = false;  // dense modules and experts are on one, or on several
  int devices = 1;      // that have experts, each with a link
  ScheduleKind schedule = ScheduleKind::kModuleBatching;
  int groups = 1;                        // of sequences; overlapped: 2
  std::vector<uint8_t> layer_is_sparse;  // [layers]; 1: it has experts
  int64_t num_experts = 0;               // of such a layer

  // Of one group.
  double pre_attention_s = 0;   // norm, projections
  double offload_qkv_s = 0;     // from a device
  double attention_s = 0;       // on the host
  double load_hidden_s = 0;     // to a device
  double post_attention_s = 0;  // projection, router, shared expert

  double dense_mlp_s = 0;  // a layer without experts, over the rows of one visit
  double expert_s = 0;     // one expert, over the rows of one visit
  // Experts of a layer that a visit uses, and that all visits of a pass use together. Module
  // batching visits a layer once, the others once for each group.
  double visit_active = 0;
  double active = 0;
  double repeated = 0;  // of these, the next pass's as well; what is read ahead is the last pass's
  double other_s = 0;   // of the pass, on the host, behind all layers: the head

  int64_t slots = 0;        // of each device
  int64_t buffers = 0;      // of them for what streams; 0: all experts have one
  int64_t group = 1;        // experts that are computed together at most
  double load_s = 0;        // one expert, into its slot
  int packets = 1;          // that it is copied in
  int64_t loads_ahead = 1;  // experts that are given to the link before they can be copied

  // Of its rate, when the host and as many threads of devices compute.
  double both_share = 1;
  double device_share = 1;  // of the host's threads, how many each device has
  double copy_share = 1;    // of computing's rate, while something is copied or read
  double link_share = 1;    // of the link's rate, while something computes
  bool cold = false;        // the first pass: no expert has been read
};

struct PassTimes {
  double seconds = 0;
  // As long as each takes beside the others. Dense parts, attention among them, are summed over
  // both sides, and what several devices do over all of them, so that the parts may add up to more
  // than `seconds`.
  double dense_s = 0;
  double experts_s = 0;
  double other_s = 0;
  double stall_s = 0;       // waiting for experts
  double link_s = 0;        // experts are on their way or in line
  double loads = 0;         // experts read
  double hidden_in_s = 0;   // attention outputs to a device, from when they are there
  double hidden_out_s = 0;  // queries, keys and values from it
  double compute_alone_s = 0;
  double link_alone_s = 0;  // with copies of hidden states
};

// The steady state: a pass that follows others like it. Cold: the first one.
PassTimes SimulatePass(const PlannedPass& pass);

}  // namespace moesaic
