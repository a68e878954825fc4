// RequestTracer: keeps, for each request that runs, which experts it has used: in the running
// iteration, and in all of them, prefill and decode apart (MoE-Infinity traces them apart: they
// look different).
//
// Thread contract: owned and used by the engine's thread. Nothing is allocated after construction;
// Observe costs one addition per (token, slot) and matrix.
//
//   request = tracer.Begin();
//   per step:   tracer.BeginIteration(slices);  per layer: tracer.Observe(routing);
//   tracer.trace(request) ...;  tracer.End(request);
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tracer/expert_activation_matrix.h"
#include "tracer/routing.h"

namespace moesaic {

struct RequestTrace {
  ExpertActivationMatrix iteration;  // the running (or last) forward pass
  ExpertActivationMatrix prefill;    // sums over all iterations
  ExpertActivationMatrix decode;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  int64_t iterations = 0;
};

class RequestTracer {
 public:
  // Room for max_requests at a time. num_layers counts all layers of the model.
  RequestTracer(int num_layers, int num_experts, int max_requests);

  // CHECKs that there is room.
  TracedRequest Begin();
  void End(TracedRequest request);

  // A forward pass begins over these requests (each at most once): their iteration matrices are
  // cleared and their tokens counted.
  void BeginIteration(std::span<const RoutingSlice> slices);
  void Observe(const Routing& routing);
  // It has not run to its end, and what it has shown so far is not counted.
  void TakeBackIteration(std::span<const RoutingSlice> slices);

  const RequestTrace& trace(TracedRequest request) const;
  int running() const { return static_cast<int>(traces_.size() - free_.size()); }
  int max_requests() const { return static_cast<int>(traces_.size()); }
  uint64_t memory_bytes() const;

 private:
  struct Entry {
    RequestTrace trace;
    bool running = false;
  };

  Entry& At(TracedRequest request);

  int num_layers_;
  int num_experts_;
  std::vector<Entry> traces_;
  std::vector<TracedRequest> free_;  // a stack
};

}  // namespace moesaic
