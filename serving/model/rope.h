// RopeTable: cosines and sines of the rotary position embedding for every position of the context.
//
// Immutable after construction. The kinds follow transformers' modeling_rope_utils.py (default,
// linear, dynamic, yarn, llama3), in float32 as there, so that angles of far positions agree.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config/mixer_spec.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

class RopeTable {
 public:
  // `max_context_tokens` is the longest sequence that will be served. With dynamic NTK scaling the
  // base of a position beyond `max_position` is that of the sequence which ends with it, as
  // transformers has it for tokens that come one by one: a base of the whole sequence's length
  // would make the keys in the cache depend on how prefill was cut.
  RopeTable(const GroupedQuerySpec& attention, int64_t max_position, int64_t max_context_tokens);

  // In place, of a token's `heads` heads one after the other, [heads, head_dim]: rotates the first
  // rotary_dim values of each.
  void Rotate(const CpuKernels& kernels, int64_t position, int64_t heads, float* x) const;

  int64_t half() const { return half_; }
  const float* cos(int64_t position) const { return cos_.data() + position * half_; }  // [half]
  const float* sin(int64_t position) const { return sin_.data() + position * half_; }  // [half]
  int64_t bytes() const {
    return static_cast<int64_t>((cos_.size() + sin_.size()) * sizeof(float));
  }

  // What the table takes, before it is made.
  static int64_t Bytes(int64_t rotary_dim, int64_t max_context_tokens) {
    return rotary_dim / 2 * max_context_tokens * 2 * static_cast<int64_t>(sizeof(float));
  }

 private:
  int64_t head_dim_ = 0;
  int64_t half_ = 0;        // of rotary_dim
  std::vector<float> cos_;  // [max_context_tokens, half]
  std::vector<float> sin_;  // [max_context_tokens, half]
};

// Inverse frequencies [rotary_dim / 2] and the factor on cosines and sines, of a sequence of so
// many tokens; exposed for tests.
struct RopeFrequencies {
  std::vector<float> inverse;
  double attention_factor = 1.0;
};
RopeFrequencies ComputeRopeFrequencies(const RopeConfig& rope, int64_t rotary_dim,
                                       int64_t max_position, int64_t sequence_tokens);

}  // namespace moesaic
