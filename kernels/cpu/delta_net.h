// Arguments of the kernels of linear attention by the gated delta rule (DeltaNetSpec): what
// CpuKernels::delta_rule and causal_conv take. Plain data on the caller's memory.
#pragma once

#include <cstdint>

namespace moesaic {

// A head's state is a matrix [key_dim, value_dim] in panels of 16 values, [ceil(value_dim / 16)]
// [key_dim][16] f32, whose missing values are zero: lanes are values, so that what is read with a
// key is one chain of multiply-adds in ascending order of the key's channels.
constexpr int64_t DeltaStateFloats(int64_t key_dim, int64_t value_dim) {
  return (value_dim + 15) / 16 * 16 * key_dim;
}

// Consecutive tokens of one sequence, of one value head:
//   S = decay S;  delta = beta (v - S^T k);  S = S + k delta^T;  out = S^T q
// A token has the same bits whatever the number of them in a call.
struct DeltaRuleArgs {
  int64_t tokens = 0;
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  // Of token t at t * stride (floats).
  const float* q = nullptr;  // [key_dim]
  const float* k = nullptr;  // [key_dim]
  const float* v = nullptr;  // [value_dim]
  int64_t stride = 0;
  // What channel i of the key keeps of the state is decay[t * decay_stride + i * decay_step]: with
  // a step of 0 it is one number for the head, with 1 one for each channel (Kimi's KDA).
  const float* decay = nullptr;
  int64_t decay_stride = 1;
  int64_t decay_step = 0;
  const float* beta = nullptr;  // [tokens]
  const float* from = nullptr;  // the state before them, which may be `state`; null: zero
  float* state = nullptr;       // the state after them
  float* out = nullptr;         // [value_dim] of token t at t * out_stride
  int64_t out_stride = 0;
};

// Consecutive tokens of one sequence in place: a channel becomes silu of the sum of its last
// `width` inputs times its weights, the oldest first.
struct CausalConvArgs {
  int64_t tokens = 0;
  int64_t channels = 0;
  int64_t width = 0;   // 2 to kMostConvWidth
  float* x = nullptr;  // [tokens, channels], stride floats apart
  int64_t stride = 0;
  const float* weight = nullptr;  // [width, channels], weight_stride floats apart
  int64_t weight_stride = 0;
  // The inputs before and after them, [width - 1, channels], past_stride floats apart, the oldest
  // first; `from` may be `to`; null: zero.
  const float* from = nullptr;
  float* to = nullptr;
  int64_t past_stride = 0;
};

// What a row is multiplied with.
enum class RowGate {
  kSigmoid,  // 1 / (1 + exp(-gate))
  kSilu,     // gate / (1 + exp(-gate))
};

}  // namespace moesaic
