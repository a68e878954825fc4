#include "serving/engine/routing_replay.h"

#include "core/base/error.h"

namespace moesaic {

RoutingReplay::RoutingReplay(const std::filesystem::path& path, const ModelConfig& config)
    : trace_(ReadRoutingTrace(path)) {
  const RoutingTraceHeader& header = trace_.header;
  if (header.num_layers != config.num_sparse_layers() ||
      header.num_experts != config.num_experts() || header.top_k != config.top_k()) {
    Fail(ErrorKind::kInvalidArgument,
         "--route-from {}: the trace has {} layers of {} experts, top {}, but the model has {} of "
         "{}, top {}",
         path.string(), header.num_layers, header.num_experts, header.top_k,
         config.num_sparse_layers(), config.num_experts(), config.top_k());
  }
  std::erase_if(trace_.sequences,
                [](const TraceSequence& sequence) { return sequence.experts.empty(); });
  if (trace_.sequences.empty()) {
    Fail(ErrorKind::kInvalidArgument, "--route-from {}: the trace has no tokens", path.string());
  }
  int32_t next = 0;
  for (const LayerSpec& layer : config.layers) {
    trace_layer_.push_back(layer.sparse() ? next++ : -1);
  }
}

void RoutingReplay::Route(uint64_t request, int64_t position, int64_t layer,
                          std::span<int32_t> experts, std::span<float> weights) const {
  const TraceSequence& sequence = trace_.sequences[request % trace_.sequences.size()];
  const int64_t token = position % trace_.tokens(sequence);
  const int64_t at = trace_layer_[static_cast<size_t>(layer)];
  const std::span<const uint16_t> recorded = trace_.Experts(sequence, token, at);
  const int64_t first = (token * trace_.header.num_layers + at) * trace_.header.top_k;
  for (size_t slot = 0; slot < experts.size(); ++slot) {
    experts[slot] = recorded[slot];
    weights[slot] = sequence.weights.empty() ? 1.0f / static_cast<float>(experts.size())
                                             : sequence.weights[static_cast<size_t>(first) + slot];
  }
}

}  // namespace moesaic
