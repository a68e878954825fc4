// Indexer: chooses the positions that a row attends to (IndexerSpec, DeepSeek sparse attention),
// and makes what it chooses by: queries, weights of their heads, and the key that is kept of a
// token.
//
// The choice is a function of the row's sequence alone: scores have the same bits however positions
// and rows are shared out, and of equal ones the lower position is chosen. It is kept for each row
// of a batch until the next layer with an indexer chooses.
//
// Owned by a Latent, whose thread calls; Choose and what reads the choice may run beside the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/forward_batch.h"
#include "serving/model/host_mixer.h"
#include "serving/model/host_rows.h"
#include "serving/model/latent_weights.h"
#include "serving/model/pass_blocks.h"
#include "serving/model/rope.h"

namespace moesaic {

class Indexer {
 public:
  // Of layers like this; all references must outlive it. `first_value`: of a projected row, where
  // its ProjectedFloats begin. `key_offset`: where a block has the keys.
  Indexer(const LatentSpec& spec, const RopeTable& rope, const CpuKernels& kernels,
          const ModelLimits& limits, int most_threads, int64_t first_value, int64_t key_offset);

  // Nothing without an indexer, in a block of one layer or a projected row.
  static uint64_t KeyBlockBytes(const LatentSpec& spec, WeightType kv_type);
  static int64_t ProjectedFloats(const LatentSpec& spec);
  static uint64_t WorkspaceBytes(const LatentSpec& spec, const ModelLimits& limits, int threads);
  // The choice of a row.
  static uint64_t ChoiceBytes(const LatentSpec& spec);

  // Whether a context may be longer than all of it is attended to.
  bool chooses() const { return choices_.bytes() > 0; }
  // Of the token at this position, which sees one more than that.
  bool Chooses(int64_t position) const { return chooses() && position >= top_k_; }
  int64_t top_k() const { return top_k_; }

  // normed: of the first of these rows, and as `x` as a product with w.key takes them.
  void MakeKeys(const IndexerWeights& w, RowRange rows, const float* normed, int64_t stride,
                const ActivatedRows& x, const PassBlocks& pass, const HostMixer::Rows& at,
                ThreadPool& pool) const;
  // x: what queries are made of, as a product with w.query takes it.
  void MakeQueries(const IndexerWeights& w, RowRange rows, const ActivatedRows& x,
                   const PassBlocks& pass, const HostMixer::Rows& at, ThreadPool& pool) const;
  // The row's key into this block.
  void StoreKey(int64_t row, int64_t position, const HostMixer::Rows& at, std::byte* block) const;

  // Of rows that choose, whose blocks are located.
  void Choose(std::span<const int64_t> rows, const PassBlocks& pass, const HostMixer::Rows& at,
              ThreadPool& pool);
  // The row's top_k() positions, ascending.
  const int32_t* Of(int64_t row) const { return choices_.as<int32_t>() + row * top_k_; }
  std::byte* choices() { return choices_.data(); }  // [rows][ChoiceBytes]

 private:
  float* Projected(const HostMixer::Rows& at, int64_t row) const {
    return at.projected + row * at.projected_stride + first_value_;
  }
  // The rotated values are moved together before, where they are in pairs; scores do not change
  // with the order of values.
  void Rotate(int64_t position, float* x) const;
  float* Scores(int64_t i) { return scores_.as<float>() + i * score_floats_; }
  void Score(int64_t row, int64_t block_begin, int64_t block_end, const PassBlocks& pass,
             const HostMixer::Rows& at, float* scores) const;

  const IndexerSpec spec_;
  const int64_t top_k_;
  const int64_t rope_dim_;
  const RopeTable& rope_;
  const CpuKernels& kernels_;
  const CpuKernels& f32_kernels_;  // of the heads' weights, as of a router's logits
  const KvLayout layout_;
  const int64_t first_value_;
  const int64_t key_offset_;
  const int64_t score_floats_;  // of a context

  AlignedBuffer scores_;   // [threads, score_floats]
  AlignedBuffer choices_;  // [rows, top_k] int32
};

}  // namespace moesaic
