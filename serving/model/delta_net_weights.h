// The weights of linear attention by the gated delta rule. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "core/config/mixer_spec.h"
#include "core/config/tensor_plan.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/weight_arena.h"
#include "serving/model/weight_loader.h"

namespace moesaic {

struct DeltaNetWeights {
  using Spec = DeltaNetSpec;

  MatrixRows in;  // [channels + value_width, hidden]: queries, keys, values, output gates
  // [2 value_heads, hidden]: what betas and decays follow from. Never integers, and multiplied with
  // f32 rows like a router: an error of a decay is one of all that a sequence remembers.
  PackedMatrix rates;
  const float* conv = nullptr;   // [conv_width, ConvStride]
  const float* decay = nullptr;  // [value_heads] rates, exp(A_log)
  const float* bias = nullptr;   // [value_heads] of the steps that a decay takes
  const float* norm = nullptr;   // [value_dim]
  PackedMatrix output;           // [hidden, value_width]
};

// Matrices of the products that each token runs, in their order.
inline std::vector<const PackedMatrix*> MatricesOf(const DeltaNetWeights& w) {
  std::vector<const PackedMatrix*> matrices = PointersTo(w.in);
  matrices.insert(matrices.end(), {&w.rates, &w.output});
  return matrices;
}

// Floats between a channel's weights, and between its inputs, of neighbouring tokens.
inline int64_t ConvStride(const DeltaNetSpec& spec) { return (spec.channels() + 15) / 16 * 16; }

DeltaNetWeights LayOutMixer(const DeltaNetSpec& spec, int64_t hidden, WeightType type,
                            WeightArena& arena);
// Of this layer, into the memory that was laid out.
void LoadMixer(const DeltaNetSpec& spec, const DeltaNetWeights& weights, const TensorPlan& plan,
               int64_t layer, WeightLoader& load);

}  // namespace moesaic
