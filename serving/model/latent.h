// Latent: multi-head latent attention on the host, over one row a token in blocks: the latent and
// the rotated key that all heads share (DeepSeek-V2, arXiv 2405.04434).
//
// In the absorbed form, for prompts and for generated tokens alike, so that no bit depends on how a
// prompt is cut: a head's query is multiplied with what makes its keys of a latent, so that it
// attends to the rows as they are; what it finds is a mix of latents, of which Project makes the
// head's values.
//
// Where an indexer chooses the positions that a row attends to, their rows are gathered, in
// ascending order, chunk by chunk (kAttentionChunkTokens of them), as if the sequence had no
// others; rows that see no more than are chosen are like those of a model without an indexer. A
// block has the indexer's keys behind the rows of its tokens.
//
// A HostMixer; all layers that have it have the same sizes, but that some have an indexer and some
// go by the choice of the last layer that does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/config/kv_groups.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/host_mixer.h"
#include "serving/model/host_rows.h"
#include "serving/model/indexer.h"
#include "serving/model/pass_blocks.h"
#include "serving/model/rope.h"
#include "serving/model/weights.h"

namespace moesaic {

class Latent : public HostMixer {
 public:
  // All references must outlive it. `most_threads`: of any pool that it is given.
  Latent(const ModelConfig& config, const ModelWeights& weights, const CpuKernels& kernels,
         const ModelLimits& limits, int most_threads, HostActivations& activations);

  // The rows of tokens apart. 0 for a model without it.
  static uint64_t WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits, int threads);
  // A block of a group of layers, and of all layers; 0 for a model without it.
  static uint64_t BlockBytes(const ModelConfig& config, WeightType kv_type);
  static uint64_t BytesOfAllLayers(const ModelConfig& config, WeightType kv_type);
  // What a row of a pass that runs layer after layer takes from one layer to the next, besides its
  // residual stream: what was chosen for it, where layers share that.
  static uint64_t CarriedBytes(const ModelConfig& config);

  void Begin(const ForwardBatch& batch) override;
  void PreAttention(int64_t layer, RowRange rows, const float* normed, int64_t stride,
                    const Rows& at, ThreadPool& pool) override;
  void Attend(int64_t layer, SliceRange slices, const Rows& at, ThreadPool& pool) override;
  void Project(int64_t layer, RowRange rows, const Rows& at, float* y, ThreadPool& pool) override;

  AlignedBuffer& state() override { return cache_; }
  std::optional<KvMemory::Layer> KvOf(int64_t layer) override;
  void GiveBackKv(int64_t first_block) override;
  CarriedRows carried() override;

 private:
  // Consecutive rows of one slice, and consecutive heads.
  struct Task {
    int64_t first_row = 0;
    int64_t rows = 0;
    int64_t head = 0;
    int64_t heads = 0;
  };

  const LatentWeights& Weights(int64_t layer) const;
  void Rotate(int64_t position, float* x) const;
  // Of the heads' products, some rows of one head at a time.
  void ForHeads(RowRange rows, ThreadPool& pool,
                FunctionRef<void(RowRange piece, int64_t head, int worker)> body) const;
  // y = x w^T of rows that no other product needs, rounded in the worker's scratch.
  void Multiply(const PackedMatrix& w, const float* x, int64_t x_stride, int64_t rows, float* y,
                int64_t y_stride, int worker);
  void MakeQueries(const LatentWeights& w, const ActivatedRows& x, RowRange rows, const Rows& at,
                   ThreadPool& pool);
  void StoreRows(int64_t layer, RowRange rows, ThreadPool& pool);
  void ListTasks(SliceRange slices, ThreadPool& pool);
  AttendArgs ArgsFor(const Task& task) const;
  void Finish(const Task& task, const float* totals);
  // The same of a task whose partials are apart, [chunks, heads, partial].
  void FinishSplit(const Task& task, int64_t chunks, float* partials);
  float* Totals(int worker);
  // What the kernel wants, and room for the rows of a chunk that are gathered.
  float* KernelScratch(int worker);
  std::byte* GatherScratch(int worker);
  void AttendTask(const Task& task, int worker);
  void AttendSplit(ThreadPool& pool);
  // The same of rows for which positions are chosen.
  void AttendChosen(ThreadPool& pool);
  void AttendChosenChunk(const Task& task, int64_t chunk, float* partials, int worker);
  std::byte* Block(int64_t layer, int32_t block);
  bool HasIndexer(int64_t layer) const { return Weights(layer).indexer.query.n > 0; }

  const LatentSpec& spec_;
  const ModelWeights& weights_;
  const CpuKernels& kernels_;
  const ModelLimits limits_;
  const KvLayout layout_;
  const KvGroups groups_;
  // Of each layer's place in a block: its bytes, and where those of the places before it end.
  const std::vector<uint64_t> place_bytes_;
  const std::vector<uint64_t> place_begins_;
  const KvSlabs slabs_;
  const uint64_t carried_bytes_;
  const int most_threads_;
  const RopeTable rope_;
  HostActivations& activations_;

  AlignedBuffer cache_;            // [slabs][layers of a block][blocks of a slab, place_bytes_]
  AlignedBuffer queries_;          // [rows, q_rank] f32, what queries are made of
  AlignedBuffer product_scratch_;  // [threads] a head's queries, and rounded rows
  AlignedBuffer attend_scratch_;   // [threads] totals, what the kernel wants, gathered rows
  AlignedBuffer split_partials_;   // [queries, chunks, partial] f32

  std::optional<Indexer> indexer_;  // of a model whose layers choose positions

  // The pass.
  PassBlocks pass_;
  Rows at_;                        // of the Attend that runs
  std::vector<Task> tasks_;        // of the slices listed_: rows that see all before them
  std::vector<int64_t> choosing_;  // likewise: the other rows
  bool split_ = false;             // likewise: by chunks too
  SliceRange listed_;
};

}  // namespace moesaic
