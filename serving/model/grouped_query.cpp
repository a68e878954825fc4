#include "serving/model/grouped_query.h"

#include <algorithm>

#include "core/base/check.h"
#include "kernels/cpu/delta_net.h"
#include "serving/model/attention_sizes.h"

namespace moesaic {
namespace {

KvLayout KvLayoutOf(const GroupedQuerySpec& spec, WeightType type) {
  return {spec.kv_heads, spec.head_dim, type};
}

}  // namespace

MixerWidths WidthsOf(const GroupedQuerySpec& spec) {
  return {spec.projected_width(), spec.q_width(), spec.q_width()};
}

uint64_t GroupedQuery::LayerBlockBytes(const ModelConfig& config, WeightType kv_type) {
  const auto* const spec = config.FindMixer<GroupedQuerySpec>();
  return spec == nullptr ? 0 : static_cast<uint64_t>(KvLayoutOf(*spec, kv_type).block_bytes());
}

uint64_t GroupedQuery::WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits,
                                      int threads) {
  const auto* const found = config.FindMixer<GroupedQuerySpec>();
  if (found == nullptr) return 0;
  const GroupedQuerySpec& spec = *found;
  const int64_t split =
      kSplitItemsPerThread * threads * MaxChunks(limits) * GroupPartialFloats(spec);
  const int64_t floats = WorkerScratchFloats(spec, limits.kv_type) * threads + split;
  return static_cast<uint64_t>(floats * static_cast<int64_t>(sizeof(float)) +
                               RopeTable::Bytes(spec.rotary_dim, limits.max_context_tokens));
}

GroupedQuery::GroupedQuery(const ModelConfig& config, const ModelWeights& weights,
                           const CpuKernels& kernels, const ModelLimits& limits, int most_threads,
                           HostActivations& activations)
    : config_(config),
      weights_(weights),
      kernels_(kernels),
      limits_(limits),
      kv_layout_(KvLayoutOf(config.attention(), limits.kv_type)),
      groups_(KvGroupsOf(config)),
      slabs_(KvSlabsOf(limits, LayerBlockBytes(config, limits.kv_type) *
                                   static_cast<uint64_t>(groups_.layers_of_block))),
      most_threads_(most_threads),
      rope_(config.attention(), config.max_position, limits.max_context_tokens),
      activations_(activations),
      scratch_stride_(WorkerScratchFloats(config.attention(), limits.kv_type)),
      kv_(slabs_.Bytes(limits.num_kv_blocks)),
      split_partials_(ZeroedFloats(kSplitItemsPerThread * most_threads * MaxChunks(limits) *
                                   GroupPartialFloats(config.attention()))),
      scratch_(ZeroedFloats(most_threads * scratch_stride_)),
      pass_(limits, groups_.count()) {
  row_blocks_.reserve(static_cast<size_t>(limits.max_batch_tokens));
}

std::byte* GroupedQuery::KvBlock(int64_t layer, int32_t block) {
  CHECK_LT(block, limits_.num_kv_blocks);
  const auto index = static_cast<uint64_t>(groups_.index[static_cast<size_t>(layer)]);
  const auto bytes = static_cast<uint64_t>(kv_layout_.block_bytes());
  return kv_.data() + slabs_.Offset(block, index * bytes, bytes);
}

std::optional<KvMemory::Layer> GroupedQuery::KvOf(int64_t layer) {
  return KvMemory::Layer{.blocks = KvBlock(layer, 0),
                         .block_bytes = static_cast<uint64_t>(kv_layout_.block_bytes()),
                         .group = groups_.of_layer[static_cast<size_t>(layer)],
                         .slabs = slabs_};
}

void GroupedQuery::GiveBackKv(int64_t first_block) {
  const uint64_t first = slabs_.Bytes(first_block);
  kv_.GiveBack(first, kv_.bytes() - first);
}

void GroupedQuery::Begin(const ForwardBatch& batch) {
  pass_.Begin(batch);
  listed_ = {};
}

void GroupedQuery::PreAttention(int64_t layer, RowRange rows, const float* normed, int64_t stride,
                                const Rows& at, ThreadPool& pool) {
  const GroupedQueryWeights& w = weights_.layers[static_cast<size_t>(layer)].attention();
  const ActivatedRows x =
      activations_.Of(normed, stride, rows.count(), w.qkv.matrices.front(), pool);
  MultiplyRows(pool, kernels_, x, rows.count(), w.qkv,
               at.projected + rows.begin * at.projected_stride, at.projected_stride, w.qkv_bias);
}

void GroupedQuery::Attend(int64_t layer, SliceRange slices, const Rows& at, ThreadPool& pool) {
  CHECK_LE(pool.threads(), most_threads_);  // whose scratch it uses
  at_ = at;
  pass_.Locate(slices, groups_.of_layer[static_cast<size_t>(layer)],
               [&](int32_t block) { return KvBlock(layer, block); });
  StoreKv(layer, RowsOf(pass_.batch(), slices), pool);
  if (slices.begin != listed_.begin || slices.end != listed_.end) ListRowBlocks(slices, pool);
  AttendRows(layer, pool);
}

void GroupedQuery::Project(int64_t layer, RowRange rows, const Rows& at, float* y,
                           ThreadPool& pool) {
  const GroupedQueryWeights& w = weights_.layers[static_cast<size_t>(layer)].attention();
  const ActivatedRows x = activations_.Of(at.mixed + rows.begin * at.mixed_stride, at.mixed_stride,
                                          rows.count(), w.output, pool);
  MultiplyRows(pool, kernels_, x, rows.count(), w.output, y, w.output.n, w.output_bias);
}

// QK-norm, clipping and RoPE of a row in place.
void GroupedQuery::Rotate(int64_t layer, int64_t position, float* q) {
  const GroupedQueryWeights& w = weights_.layers[static_cast<size_t>(layer)].attention();
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t d = spec.head_dim;
  const int64_t q_width = spec.q_width();
  const int64_t kv_width = spec.kv_width();
  const auto eps = static_cast<float>(spec.norm.eps);
  float* k = q + q_width;
  if (spec.qk_norm == QkNorm::kPerHead) {
    for (int64_t h = 0; h < spec.heads; ++h)
      kernels_.rms_norm(q + h * d, w.q_norm, eps, d, q + h * d);
    for (int64_t h = 0; h < spec.kv_heads; ++h)
      kernels_.rms_norm(k + h * d, w.k_norm, eps, d, k + h * d);
  } else if (spec.qk_norm == QkNorm::kProjection) {
    kernels_.rms_norm(q, w.q_norm, eps, q_width, q);
    kernels_.rms_norm(k, w.k_norm, eps, kv_width, k);
  }
  if (spec.clip_qkv > 0) {
    const auto limit = static_cast<float>(spec.clip_qkv);
    for (int64_t i = 0; i < q_width + 2 * kv_width; ++i) q[i] = std::clamp(q[i], -limit, limit);
  }
  rope_.Rotate(kernels_, position, spec.heads + spec.kv_heads, q);  // keys follow queries
}

// Keys and values into the cache.
void GroupedQuery::StoreKv(int64_t layer, RowRange rows, ThreadPool& pool) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t d = spec.head_dim;
  const size_t group = groups_.of_layer[static_cast<size_t>(layer)];
  ForRows(pool, rows, [&](int64_t row) {
    float* q = at_.projected + row * at_.projected_stride;
    const float* k = q + spec.q_width();
    const float* v = k + spec.kv_width();
    const int64_t position = pass_.PositionOf(row);
    if (!at_.by_device) Rotate(layer, position, q);
    std::byte* block = KvBlock(layer, pass_.BlockAt(row, group, position));
    for (int64_t h = 0; h < spec.kv_heads; ++h) {
      kernels_.store_kv(kv_layout_, block, h, position % kKvBlockTokens, k + h * d, v + h * d);
    }
  });
}

// Rows of a prompt share their reads of the cache; a block is as large as that pays, but not so
// large that threads are left without work: there are as many as AttendSplit is for only when each
// is one row. One row takes as many KV heads at once as leave every thread its tasks.
void GroupedQuery::ListRowBlocks(SliceRange slices, ThreadPool& pool) {
  const GroupedQuerySpec& spec = config_.attention();
  const int64_t rows = RowsOf(pass_.batch(), slices).count();
  const int64_t tasks = kSplitItemsPerThread * pool.threads();
  const int64_t most =
      std::clamp<int64_t>(rows * spec.kv_heads / tasks, 1, AttentionRows(spec.group()));
  int64_t shortest = limits_.max_context_tokens;
  row_blocks_.clear();
  for (int64_t s = slices.begin; s < slices.end; ++s) {
    const SequenceSlice& slice = pass_.batch().slices[static_cast<size_t>(s)];
    for (int64_t row = 0; row < slice.num_tokens; row += most) {
      row_blocks_.push_back({slice.first_row + row, std::min(most, slice.num_tokens - row)});
    }
    shortest = std::min(shortest, slice.start_position + 1);
  }
  listed_ = slices;
  task_heads_ = 1;
  if (static_cast<int64_t>(row_blocks_.size()) != rows) return;
  const int64_t pairs = rows * spec.kv_heads;
  if (pairs >= tasks) {
    const int64_t most_heads = std::min(pairs / tasks, spec.kv_heads);
    const int64_t per_row = (spec.kv_heads + most_heads - 1) / most_heads;
    task_heads_ = (spec.kv_heads + per_row - 1) / per_row;
  } else if (rows * shortest >= tasks * kAttentionChunkTokens) {
    task_heads_ = spec.kv_heads;  // there are chunks for every thread
  }
}

int64_t GroupedQuery::tasks_per_block() const {
  return (kv_layout_.num_kv_heads + task_heads_ - 1) / task_heads_;
}

int64_t GroupedQuery::num_tasks() const {
  return static_cast<int64_t>(row_blocks_.size()) * tasks_per_block();
}

const GroupedQuery::RowBlock& GroupedQuery::BlockOf(int64_t task) const {
  return row_blocks_[static_cast<size_t>(task / tasks_per_block())];
}

AttendArgs GroupedQuery::ArgsFor(int64_t layer, int64_t task) const {
  const RowBlock& block = BlockOf(task);
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  AttendArgs args;
  args.kv_head = task % tasks_per_block() * task_heads_;
  args.kv_heads = std::min(task_heads_, spec.kv_heads - args.kv_head);
  args.q = at_.projected + block.first_row * at_.projected_stride +
           args.kv_head * spec.group() * spec.head_dim;
  args.q_stride = spec.head_dim;
  args.q_row_stride = at_.projected_stride;
  args.rows = block.rows;
  args.group = spec.group();
  args.scale = static_cast<float>(spec.scale);
  args.layout = kv_layout_;
  args.blocks = pass_.Of(block.first_row);
  args.context_end = pass_.PositionOf(block.first_row) + 1;
  args.window = spec.window;
  return args;
}

GroupedQuery::ChunkRange GroupedQuery::ChunksOf(const AttendArgs& args) const {
  const int64_t begin = args.window > 0 ? std::max<int64_t>(0, args.context_end - args.window) : 0;
  return {begin / kAttentionChunkTokens,
          (args.context_end + args.rows - 2) / kAttentionChunkTokens + 1};
}

// `count` values of what was mixed for a row times the sigmoids of its gates.
void GroupedQuery::Gate(int64_t row, int64_t first, int64_t count) {
  const float* const gates =
      at_.projected + row * at_.projected_stride + config_.attention().qkv_width();
  kernels_.gate_row(RowGate::kSigmoid, gates + first, count,
                    at_.mixed + row * at_.mixed_stride + first);
}

// A sink is one more partial result, folded in after all chunks.
void GroupedQuery::FinishAttention(int64_t layer, const RowBlock& block, const AttendArgs& args,
                                   float* totals) {
  const int64_t d = kv_layout_.head_dim;
  const int64_t partial = args.group * AttentionPartialFloats(d);
  const float* const sinks = weights_.layers[static_cast<size_t>(layer)].attention().sinks;
  const bool gated = config_.layer(layer).attention().output_gate;
  for (int64_t head = args.kv_head; head < args.kv_head + args.kv_heads; ++head) {
    for (int64_t row = 0; row < block.rows; ++row, totals += partial) {
      if (sinks != nullptr) kernels_.fold_partials(sinks + head * partial, args.group, d, totals);
      kernels_.finish_attention(
          totals, args.group, d,
          at_.mixed + (block.first_row + row) * at_.mixed_stride + head * args.group * d, d);
      if (gated) Gate(block.first_row + row, head * args.group * d, args.group * d);
    }
  }
}

void GroupedQuery::AttendRows(int64_t layer, ThreadPool& pool) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  if (static_cast<int64_t>(row_blocks_.size()) * spec.kv_heads <
      kSplitItemsPerThread * pool.threads()) {
    AttendSplit(layer, pool);
    return;
  }
  pool.ParallelFor(num_tasks(), [&](int64_t task, int worker) {
    const AttendArgs args = ArgsFor(layer, task);
    const ChunkRange chunks = ChunksOf(args);
    float* totals = scratch_.as<float>() + worker * scratch_stride_;
    std::fill_n(totals, args.kv_heads * args.rows * GroupPartialFloats(spec), 0.0f);
    kernels_.attend_chunks(args, chunks.begin, chunks.end, totals, 0,
                           totals + AttentionTotalFloats(spec));
    FinishAttention(layer, BlockOf(task), args, totals);
  });
}

// Few rows: runs of chunks of one context go to several threads. The same chunks folded in the same
// order as in AttendRows, so the same bits.
void GroupedQuery::AttendSplit(int64_t layer, ThreadPool& pool) {
  const int64_t tasks = num_tasks();
  const int64_t parts = (kSplitItemsPerThread * pool.threads() + tasks - 1) / tasks;
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t partial = task_heads_ * GroupPartialFloats(spec);
  const auto partials_of = [&](int64_t task) {
    return split_partials_.as<float>() + task * MaxChunks(limits_) * partial;
  };
  pool.ParallelFor(tasks * parts, [&](int64_t part, int worker) {
    const int64_t task = part / parts;
    const AttendArgs args = ArgsFor(layer, task);
    const ChunkRange chunks = ChunksOf(args);
    const int64_t count = chunks.end - chunks.begin;
    const int64_t begin = count * (part % parts) / parts;
    const int64_t end = count * (part % parts + 1) / parts;
    float* partials = partials_of(task) + begin * partial;
    std::fill_n(partials, (end - begin) * partial, 0.0f);
    kernels_.attend_chunks(
        args, chunks.begin + begin, chunks.begin + end, partials, partial,
        scratch_.as<float>() + worker * scratch_stride_ + AttentionTotalFloats(spec));
  });
  for (int64_t task = 0; task < tasks; ++task) {
    const AttendArgs args = ArgsFor(layer, task);
    const ChunkRange chunks = ChunksOf(args);
    float* totals = partials_of(task);
    for (int64_t chunk = 1; chunk < chunks.end - chunks.begin; ++chunk) {
      kernels_.fold_partials(totals + chunk * partial, args.kv_heads * args.group, spec.head_dim,
                             totals);
    }
    FinishAttention(layer, BlockOf(task), args, totals);
  }
}

}  // namespace moesaic
