// RoutingTrace: recorded expert choices, one sequence after another, token by token. Plain data,
// and the reader of its JSON Lines form.
//
// The file (plain or gzip): line 1 is a header object (model, phase, n_moe_layers, first_moe_layer,
// n_experts, top_k, and weight_scale where weights are recorded); each further line is one sequence
// with `experts`, an array per token of n_moe_layers * top_k ids, layer after layer, and optionally
// `weights`, whole numbers in the same order (divide by weight_scale).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct RoutingTraceHeader {
  std::string model;
  std::string phase;        // "prefill" or "decode"
  int32_t num_layers = 0;   // that have experts
  int32_t first_layer = 0;  // number of the first of them in the model
  int32_t num_experts = 0;
  int32_t top_k = 0;
  double weight_scale = 0;  // 0: no weights
};

struct TraceSequence {
  std::string id;
  std::string domain;
  std::vector<uint16_t> experts;  // [tokens, layers, top_k]
  std::vector<float> weights;     // likewise, or empty
};

struct RoutingTrace {
  RoutingTraceHeader header;
  std::vector<TraceSequence> sequences;

  int64_t tokens(const TraceSequence& sequence) const {
    return static_cast<int64_t>(sequence.experts.size()) /
           (int64_t{header.num_layers} * header.top_k);
  }
  // The top_k experts of one token in one of the trace's layers.
  std::span<const uint16_t> Experts(const TraceSequence& sequence, int64_t token,
                                    int64_t layer) const {
    return {sequence.experts.data() + (token * header.num_layers + layer) * header.top_k,
            static_cast<size_t>(header.top_k)};
  }
};

// Both parse untrusted text. `name` and `line` go into messages. Throw Error(kCorrupt).
RoutingTraceHeader ParseTraceHeader(std::string_view json, std::string_view name);
TraceSequence ParseTraceSequence(std::string_view json, const RoutingTraceHeader& header,
                                 std::string_view name, int64_t line);

// Throws Error(kNotFound, kIo, kCorrupt) naming file and line.
RoutingTrace ReadRoutingTrace(const std::filesystem::path& path);

}  // namespace moesaic
