// Simulate: serves a routing trace on a virtual clock with the production cache, transfer queue,
// predictors, step predictor and miss planner, for any number of devices and slots.
//
// Semantics: one token is one step. The routing of a layer is known at its start; the layer is
// blocked until each of its experts is resident or computed on the host; then it computes for a
// fixed time; inside a layer the two do not overlap. A copy goes in packets over its device's link,
// which moves one packet at a time; progress is kept when another copy overtakes. The host computes
// one expert after another, while the links copy. The cache starts cold once and is kept across
// requests. Deterministic.
//
// Thread contract: a function of its arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "prefetch/link/flow_log.h"
#include "prefetch/link/miss_planner.h"
#include "prefetch/predict/step_predictor.h"
#include "tracer/routing_trace.h"

namespace moesaic {

struct SimulationOptions {
  int64_t slots = 0;  // of all devices together
  int devices = 1;
  int64_t layer_compute_ns = 1'000'000;
  int64_t expert_copy_ns = 1'000'000;
  int64_t host_expert_ns = 0;  // 0: no expert can be computed on the host
  int packets = 8;             // of a copy
  uint64_t expert_bytes = 0;   // 0: counted as 1
  MissMode miss = MissMode::kFetch;
  std::string predictor = "blend";  // or "none", "oracle"
  std::string policy = "next-use";
  bool cache_between_layers = true;  // false: an expert leaves when its layer is done (the paper's
                                     // tables 2 and 3)
  PrefetchOptions prefetch;
  FlowLog* log = nullptr;  // told what every device decides; may be null
};

struct SimulationResult {
  int64_t blocked_ns = 0;
  int64_t compute_ns = 0;
  uint64_t packets_copied = 0;
  uint64_t bytes_copied = 0;
  uint64_t copies = 0;      // that were completed
  uint64_t prefetches = 0;  // of these, begun before a layer asked
  uint64_t expert_accesses = 0;
  uint64_t hits = 0;       // resident when the layer began
  uint64_t late_hits = 0;  // on their way by then
  uint64_t host_computed = 0;
  uint64_t prefetched_used = 0;
  uint64_t prefetched_unused = 0;
  int64_t requests = 0;
  int64_t tokens = 0;

  // How good the predictions were, by look-ahead distance (index distance - 1).
  struct Recall {
    uint64_t used = 0;          // experts
    uint64_t found[3] = {};     // of these, among the k, 1.5 k and 2 k most probable
    double absolute_error = 0;  // sum over 20 bins of |stated - happened|
    uint64_t stated = 0;
  };
  std::vector<Recall> recall;
  std::vector<int64_t> request_blocked_ns;  // [requests]
  std::vector<double> request_hit_rate;     // [requests]
};

// One run may be split: the predictor (and what it learned) can be trained on some sequences first.
class Simulator {
 public:
  // Both must outlive it. Throws Error(kInvalidArgument) on options that contradict the trace.
  Simulator(const RoutingTrace& trace, const SimulationOptions& options, const CpuKernels& kernels);
  ~Simulator();

  // Shows the predictor a sequence, without any cache or time.
  void Train(const RoutingTrace& trace, const TraceSequence& sequence);
  // Serves the trace's sequences in this order.
  SimulationResult Run(std::span<const int> order);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
