// GroupedQuery: softmax attention with grouped queries on the host, over keys and values in blocks.
//
// A HostMixer; all layers that have it have heads of the same sizes, and windows of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/config/kv_groups.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/host_mixer.h"
#include "serving/model/host_rows.h"
#include "serving/model/pass_blocks.h"
#include "serving/model/rope.h"
#include "serving/model/weights.h"

namespace moesaic {

class GroupedQuery : public HostMixer {
 public:
  // All references must outlive it. `most_threads`: of any pool that it is given.
  GroupedQuery(const ModelConfig& config, const ModelWeights& weights, const CpuKernels& kernels,
               const ModelLimits& limits, int most_threads, HostActivations& activations);

  // Keys and values apart. 0 for a model without it.
  static uint64_t WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits, int threads);
  // A block of one layer; 0 for a model without it.
  static uint64_t LayerBlockBytes(const ModelConfig& config, WeightType kv_type);

  void Begin(const ForwardBatch& batch) override;
  void PreAttention(int64_t layer, RowRange rows, const float* normed, int64_t stride,
                    const Rows& at, ThreadPool& pool) override;
  void Attend(int64_t layer, SliceRange slices, const Rows& at, ThreadPool& pool) override;
  void Project(int64_t layer, RowRange rows, const Rows& at, float* y, ThreadPool& pool) override;

  AlignedBuffer& state() override { return kv_; }
  std::optional<KvMemory::Layer> KvOf(int64_t layer) override;
  void GiveBackKv(int64_t first_block) override;

 private:
  // Consecutive rows of one slice whose attention, with task_heads_ KV heads, is one task.
  struct RowBlock {
    int64_t first_row = 0;
    int64_t rows = 0;
  };
  struct ChunkRange {
    int64_t begin = 0;
    int64_t end = 0;
  };

  void Rotate(int64_t layer, int64_t position, float* q);
  void StoreKv(int64_t layer, RowRange rows, ThreadPool& pool);
  void AttendRows(int64_t layer, ThreadPool& pool);
  void AttendSplit(int64_t layer, ThreadPool& pool);
  void ListRowBlocks(SliceRange slices, ThreadPool& pool);
  // Tasks of attention in the slices listed_, not counting parts of contexts.
  int64_t num_tasks() const;
  int64_t tasks_per_block() const;
  const RowBlock& BlockOf(int64_t task) const;
  AttendArgs ArgsFor(int64_t layer, int64_t task) const;
  ChunkRange ChunksOf(const AttendArgs& args) const;
  void Gate(int64_t row, int64_t first, int64_t count);
  void FinishAttention(int64_t layer, const RowBlock& block, const AttendArgs& args, float* totals);
  std::byte* KvBlock(int64_t layer, int32_t block);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  const CpuKernels& kernels_;
  const ModelLimits limits_;
  const KvLayout kv_layout_;
  const KvGroups groups_;
  const KvSlabs slabs_;
  const int most_threads_;
  const RopeTable rope_;
  HostActivations& activations_;

  int64_t scratch_stride_ = 0;    // floats of one worker's scratch
  AlignedBuffer kv_;              // [slabs, layers of a block, blocks of a slab, block_bytes]
  AlignedBuffer split_partials_;  // [split items, chunks, group, partial] f32
  AlignedBuffer scratch_;         // [threads, scratch_stride] f32

  // The pass.
  PassBlocks pass_;
  Rows at_;                           // of the Attend that runs
  std::vector<RowBlock> row_blocks_;  // of the slices listed_
  int64_t task_heads_ = 1;            // likewise
  SliceRange listed_;
};

}  // namespace moesaic
