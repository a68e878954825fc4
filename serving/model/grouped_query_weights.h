// The weights of softmax attention with grouped queries. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config/mixer_spec.h"
#include "core/config/tensor_plan.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/weight_arena.h"
#include "serving/model/weight_loader.h"

namespace moesaic {

struct GroupedQueryWeights {
  using Spec = GroupedQuerySpec;

  MatrixRows qkv;  // [(heads + 2 kv_heads) * head_dim, hidden], then gates [q_width, hidden]
  const float* qkv_bias = nullptr;  // null where the family has none
  const float* q_norm = nullptr;    // [QNormWidth], null without QkNorm
  const float* k_norm = nullptr;    // [KNormWidth]
  PackedMatrix output;              // [hidden, heads * head_dim]
  const float* output_bias = nullptr;
  // [heads, AttentionPartialFloats] the sinks as partial results of attention, or null.
  const float* sinks = nullptr;
};

// Matrices of the products that each token runs, in their order.
inline std::vector<const PackedMatrix*> MatricesOf(const GroupedQueryWeights& w) {
  std::vector<const PackedMatrix*> matrices = PointersTo(w.qkv);
  matrices.push_back(&w.output);
  return matrices;
}

// Values of the weights of QK-norm.
int64_t QNormWidth(const GroupedQuerySpec& attention);
int64_t KNormWidth(const GroupedQuerySpec& attention);

GroupedQueryWeights LayOutMixer(const GroupedQuerySpec& spec, int64_t hidden, WeightType type,
                                WeightArena& arena);
// Of this layer, into the memory that was laid out.
void LoadMixer(const GroupedQuerySpec& spec, const GroupedQueryWeights& weights,
               const TensorPlan& plan, int64_t layer, WeightLoader& load);

}  // namespace moesaic
