// RoutingTrace: recorded expert choices, one sequence after another, token by token. Plain data,
// the reader of its files, and the parser of their JSON Lines form. The binary form is described in
// trace_format.h.
//
// A JSON Lines file (plain or gzip): line 1 is a header object (model, phase, n_moe_layers,
// first_moe_layer, n_experts, top_k, and weight_scale where weights are recorded); each further
// line is one sequence with `experts`, an array per token of n_moe_layers * top_k ids, layer after
// layer, and optionally `weights`, whole numbers in the same order (divide by weight_scale).
// Optional, per token: `tokens` (texts) or `token_ids` of the tokens that the entries process.
// Other fields are kept as they are.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

struct RoutingTraceHeader {
  std::string model;
  std::string phase;        // "prefill", "decode", or "mixed": both
  int32_t num_layers = 0;   // that have experts
  int32_t first_layer = 0;  // number of the first of them in the model
  int32_t num_experts = 0;
  int32_t top_k = 0;
  double weight_scale = 0;  // 0: no weights
  int weight_bits = 0;      // of a weight in the binary form; 0: not told
  std::string extra;        // further fields: a JSON object as text, or empty

  // Of one token, over all layers.
  size_t experts_per_token() const {
    return static_cast<size_t>(num_layers) * static_cast<size_t>(top_k);
  }
};

struct TraceSequence {
  std::string id;
  std::string domain;
  std::vector<uint16_t> experts;  // [tokens, layers, top_k]
  std::vector<float> weights;     // likewise, or empty
  // [tokens] or empty: the token that each entry processes. Numbers of the model's tokenizer, or,
  // where only texts are known, of TokenTexts.
  std::vector<int32_t> token_ids;
  int64_t first_pos = -1;      // position of the first token in its text; -1: not recorded
  int64_t prefill_tokens = 0;  // phase "mixed": so many of the first tokens are the prompt's
  std::string extra;           // further fields: a JSON object as text, or empty
};

// Numbers for token texts: equal texts have equal numbers in every trace (31 bits of their hash; of
// two texts of one trace with equal hashes the later one takes the next free number).
class TokenTexts {
 public:
  int32_t Intern(std::string_view text);
  // Fails (false) when the number stands for another text.
  bool Restore(int32_t id, std::string_view text);
  const std::map<int32_t, std::string>& texts() const { return texts_; }
  bool empty() const { return texts_.empty(); }

 private:
  std::map<int32_t, std::string> texts_;
};

struct RoutingTrace {
  RoutingTraceHeader header;
  std::vector<TraceSequence> sequences;
  TokenTexts token_texts;   // not empty: the texts that token_ids stand for
  uint64_t lost_bytes = 0;  // of a binary file's end, cut off when its recorder was killed

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

// Both parse untrusted text. `name` and `line` go into messages; token texts are numbered in
// `texts` (null: left out). Throw Error(kCorrupt).
RoutingTraceHeader ParseTraceHeader(std::string_view json, std::string_view name);
TraceSequence ParseTraceSequence(std::string_view json, const RoutingTraceHeader& header,
                                 std::string_view name, int64_t line, TokenTexts* texts = nullptr);

// Either form, told by its first bytes. Throws Error(kNotFound, kIo, kCorrupt) naming file and line
// or offset.
RoutingTrace ReadRoutingTrace(const std::filesystem::path& path);

// Of another shape, or of another phase, than `a`: what differs, else "".
std::string ShapeDifference(const RoutingTraceHeader& a, const RoutingTraceHeader& b);

}  // namespace moesaic
