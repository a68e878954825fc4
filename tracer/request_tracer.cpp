#include "tracer/request_tracer.h"

#include "core/base/check.h"

namespace moesaic {

RequestTracer::RequestTracer(int num_layers, int num_experts, int max_requests)
    : num_layers_(num_layers),
      num_experts_(num_experts),
      traces_(static_cast<size_t>(max_requests)) {
  const ExpertActivationMatrix empty(num_layers, num_experts);
  free_.reserve(traces_.size());
  for (int request = max_requests - 1; request >= 0; --request) {
    RequestTrace& trace = traces_[static_cast<size_t>(request)].trace;
    trace.iteration = empty;
    trace.prefill = empty;
    trace.decode = empty;
    free_.push_back(request);
  }
}

TracedRequest RequestTracer::Begin() {
  CHECK(!free_.empty());
  const TracedRequest request = free_.back();
  free_.pop_back();
  Entry& entry = traces_[static_cast<size_t>(request)];
  entry.running = true;
  entry.trace.iteration.Clear();
  entry.trace.prefill.Clear();
  entry.trace.decode.Clear();
  entry.trace.prefill_tokens = 0;
  entry.trace.decode_tokens = 0;
  entry.trace.iterations = 0;
  return request;
}

void RequestTracer::End(TracedRequest request) {
  At(request).running = false;
  free_.push_back(request);
}

void RequestTracer::BeginIteration(std::span<const RoutingSlice> slices) {
  for (const RoutingSlice& slice : slices) {
    RequestTrace& trace = At(slice.request).trace;
    trace.iteration.Clear();
    ++trace.iterations;
    (slice.prefill ? trace.prefill_tokens : trace.decode_tokens) += slice.num_rows;
  }
}

void RequestTracer::Observe(const Routing& routing) {
  CHECK_EQ(routing.experts.size() % static_cast<size_t>(routing.top_k), size_t{0});
  for (const RoutingSlice& slice : routing.slices) {
    RequestTrace& trace = At(slice.request).trace;
    ExpertActivationMatrix& phase = slice.prefill ? trace.prefill : trace.decode;
    const auto experts =
        routing.experts.subspan(static_cast<size_t>(slice.first_row * routing.top_k),
                                static_cast<size_t>(slice.num_rows * routing.top_k));
    for (const int32_t expert : experts) {
      trace.iteration.Add(routing.layer, expert);
      phase.Add(routing.layer, expert);
    }
  }
}

void RequestTracer::TakeBackIteration(std::span<const RoutingSlice> slices) {
  for (const RoutingSlice& slice : slices) {
    RequestTrace& trace = At(slice.request).trace;
    (slice.prefill ? trace.prefill : trace.decode) -= trace.iteration;
    (slice.prefill ? trace.prefill_tokens : trace.decode_tokens) -= slice.num_rows;
    --trace.iterations;
    trace.iteration.Clear();
  }
}

const RequestTrace& RequestTracer::trace(TracedRequest request) const {
  return const_cast<RequestTracer*>(this)->At(request).trace;
}

uint64_t RequestTracer::memory_bytes() const {
  const uint64_t matrix =
      static_cast<uint64_t>(num_layers_) * static_cast<uint64_t>(num_experts_) * sizeof(uint32_t) +
      static_cast<uint64_t>(num_layers_) * sizeof(uint64_t);
  return traces_.size() * (3 * matrix + sizeof(Entry));
}

RequestTracer::Entry& RequestTracer::At(TracedRequest request) {
  CHECK_GE(request, 0);
  CHECK_LT(static_cast<size_t>(request), traces_.size());
  Entry& entry = traces_[static_cast<size_t>(request)];
  CHECK(entry.running);
  return entry;
}

}  // namespace moesaic
