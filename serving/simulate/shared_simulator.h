// SimulateShared: several models, each with a routing trace, that share a memory, a link and the
// processors, on a virtual clock. The objects that serve decide: cache, queue and predictors
// (ExpertFlow), which model gets memory of which (ExpertPools), whose step is next (TurnOrder), who
// is unloaded for whom (ModelRoster).
//
// Semantics. A model runs steps of continuous batching: a token of each request that decodes, then
// prompts, the oldest first, within the tokens of a step. The n-th request of a model is routed as
// its trace's sequence n (modulo their number), its position p as token p (modulo the sequence's).
// A layer computes for a fixed time, then the distinct experts that its rows chose, one after
// another, those that are there first; it waits while none of the others is there. Who computes at
// the same time shares the processors evenly. The link moves one packet at a time, of the models in
// turn. Predictions take no time. Caches start cold, or filled as a server's are (`preload`).
// Deterministic.
//
// Thread contract: functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/base/named.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/predict/step_predictor.h"
#include "serving/multi/expert_balancer.h"
#include "tracer/routing_trace.h"

namespace moesaic {

enum class MemorySharing {
  kPool,   // one server: memory moves between models, their steps take turns
  kSplit,  // a server for each, with the same part of the memory; their steps run side by side
  kSwap    // one server that holds models as a whole, or what the memory holds of one, and unloads
           // others for one that is asked for
};
inline constexpr Named<MemorySharing> kMemorySharings[] = {{"pool", MemorySharing::kPool},
                                                           {"split", MemorySharing::kSplit},
                                                           {"swap", MemorySharing::kSwap}};

struct SharedModel {
  const RoutingTrace* trace = nullptr;
  uint64_t expert_bytes = 0;      // of one
  uint64_t other_bytes = 0;       // that it takes of the memory besides, while it is loaded
  uint64_t floor_bytes = 0;       // of experts, that it keeps in any case
  int64_t layer_compute_ns = 0;   // of a step's layer, without experts
  int64_t expert_compute_ns = 0;  // of an expert of it
  int64_t load_ns = 0;            // that loading it as a whole takes before anything is read
};

struct SharedRequest {
  int64_t at_ns = 0;
  size_t model = 0;
  int64_t prompt_tokens = 1;
  int64_t answer_tokens = 1;  // the first is there when the prompt has been computed
};

struct SharedOptions {
  MemorySharing sharing = MemorySharing::kPool;
  uint64_t memory_bytes = 0;  // of all models together
  uint64_t link_bytes_per_s = 0;
  // Models that are there from the start have what a server reads before the first request.
  bool preload = false;
  int64_t most_seqs = 64;           // that run at once, of a model
  int64_t step_tokens = 512;        // at most
  std::string predictor = "blend";  // or "none"
  PrefetchOptions prefetch;
  BalancerOptions balancer;
};

struct SharedResult {
  struct Model {
    int64_t steps = 0;
    int64_t loads = 0;  // of the model as a whole
    int64_t blocked_ns = 0;
    uint64_t read_bytes = 0;
    uint64_t expert_accesses = 0;
    uint64_t hits = 0;          // were there when their layer began
    uint64_t given_bytes = 0;   // of experts' memory, that was moved to it
    uint64_t expert_bytes = 0;  // of experts' memory, that it has in the end
  };
  std::vector<int64_t> latency_ns;  // [requests] from its arrival to its last token
  std::vector<Model> models;
  uint64_t most_bytes = 0;  // that all held together at any time
  int64_t end_ns = 0;
};

// `requests` are in the order of time. Throws Error(kInvalidArgument) when the memory is too small
// for what the models need at least, or an option contradicts a trace.
SharedResult SimulateShared(std::span<const SharedModel> models,
                            std::span<const SharedRequest> requests, const SharedOptions& options,
                            const CpuKernels& kernels);

}  // namespace moesaic
