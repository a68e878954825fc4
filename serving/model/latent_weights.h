// The weights of multi-head latent attention. Plain data.
#pragma once

#include <array>
#include <cstdint>

#include "core/config/mixer_spec.h"
#include "core/config/tensor_plan.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/weight_arena.h"
#include "serving/model/weight_loader.h"

namespace moesaic {

// What an indexer makes queries, the key and the weights of its heads of. Of int4 weights those of
// queries and keys are int8, and the others are never integers: what is chosen is chosen once.
struct IndexerWeights {
  PackedMatrix query;               // [heads * dim, q_rank], n = 0 without an indexer
  PackedMatrix key;                 // [dim, hidden]
  const float* key_norm = nullptr;  // [dim]
  const float* key_bias = nullptr;  // [dim]
  PackedMatrix heads;               // [heads, hidden], multiplied with f32 rows
};

// What makes keys and values of a latent is split by heads, so that queries and what attention
// finds can be multiplied with it instead ("absorbed"). Both parts stay in bf16 where the other
// weights are integers: they are multiplied along another axis than the checkpoint's. Of fp8
// weights they are fp8 where the scales allow it, else f32; of GGUF files blocks where the file has
// them apart, else f32.
struct LatentWeights {
  using Spec = LatentSpec;

  PackedMatrix query_down;            // [q_rank, hidden], n = 0 without a q_rank
  const float* query_norm = nullptr;  // [q_rank], likewise
  PackedMatrix query;                 // [heads * query_dim, q_rank or hidden]
  PackedMatrix down;                  // [row_width, hidden]
  const float* norm = nullptr;        // [kv_rank]
  PackedMatrix keys;                  // [heads][kv_rank up to whole panels, nope_dim]
  PackedMatrix values;                // [heads][value_dim up to whole panels, kv_rank]
  PackedMatrix output;                // [hidden, output_width]
  IndexerWeights indexer;

  // Of one head: nope_dim values of a query to kv_rank, kv_rank of what attention found to
  // value_dim.
  PackedMatrix KeysOf(const LatentSpec& spec, int64_t head) const;
  PackedMatrix ValuesOf(const LatentSpec& spec, int64_t head) const;
};

// Matrices of the products that each token runs, in their order.
inline std::array<const PackedMatrix*, 9> MatricesOf(const LatentWeights& w) {
  return {&w.query_down, &w.query,         &w.down,        &w.keys,         &w.values,
          &w.output,     &w.indexer.query, &w.indexer.key, &w.indexer.heads};
}

LatentWeights LayOutMixer(const LatentSpec& spec, int64_t hidden, WeightType type,
                          WeightArena& arena);
// Of this layer, into the memory that was laid out.
void LoadMixer(const LatentSpec& spec, const LatentWeights& weights, const TensorPlan& plan,
               int64_t layer, WeightLoader& load);

}  // namespace moesaic
