// RoutingReplay: recorded routing in place of the model's own (`--route-from`), for benches: random
// weights route at random, and random routing has no memory that a cache or a predictor could show
// its worth on.
//
// Immutable after construction. A request takes one of the trace's sequences (request number modulo
// their number) and its position p the sequence's token p (modulo its length), so the same requests
// always get the same routing.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "core/config/model_config.h"
#include "tracer/routing_trace.h"

namespace moesaic {

class RoutingReplay {
 public:
  // Throws Error(kInvalidArgument) when the trace's layers, experts or top-k are not the model's.
  RoutingReplay(const std::filesystem::path& trace, const ModelConfig& config);

  // experts, weights: [top_k] of one token.
  void Route(uint64_t request, int64_t position, int64_t layer, std::span<int32_t> experts,
             std::span<float> weights) const;

 private:
  RoutingTrace trace_;
  std::vector<int32_t> trace_layer_;  // [num_layers] the trace's layer, -1 for a dense one
};

}  // namespace moesaic
