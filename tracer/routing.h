// Routing: what the router of one layer decided for one batch. Views only: whoever made the batch
// owns the arrays, and they are valid during the call that passes the Routing.
#pragma once

#include <cstdint>
#include <span>

namespace moesaic {

// Identifies a request to the tracer and to everything behind it; given out by RequestTracer.
using TracedRequest = int32_t;

// Consecutive rows of a batch that belong to one request.
struct RoutingSlice {
  TracedRequest request = 0;
  int64_t first_row = 0;
  int64_t num_rows = 0;
  bool prefill = false;
};

struct Routing {
  int32_t layer = 0;  // of the model, dense layers counted
  int32_t top_k = 0;
  std::span<const int32_t> experts;  // [rows, top_k]
  std::span<const float> weights;    // [rows, top_k]
  std::span<const RoutingSlice> slices;

  int64_t rows() const { return static_cast<int64_t>(experts.size()) / top_k; }
};

}  // namespace moesaic
