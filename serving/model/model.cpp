#include "serving/model/model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "core/base/check.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

// Rows that one task of a per-row loop takes: a norm or a rotation is too short to be a task of its
// own.
constexpr int64_t kRowsPerTask = 8;

int64_t PaddedFloats(int64_t n) {
  return ActivationRowBytes(ActivationType::kF32, n) / static_cast<int64_t>(sizeof(float));
}

AlignedBuffer ZeroedFloats(int64_t count) {
  AlignedBuffer buffer(static_cast<size_t>(count) * sizeof(float));
  buffer.Zero();
  return buffer;
}

// Width of the MLP that every token runs: the dense layers' or the shared expert's.
int64_t WidestMlp(const ModelConfig& config) {
  int64_t widest = config.shared_intermediate_size;
  for (const uint8_t sparse : config.layer_is_sparse) {
    if (!sparse) widest = std::max(widest, config.dense_intermediate_size);
  }
  return widest;
}

int64_t WidestProductInput(const ModelConfig& config) {
  return std::max({config.hidden_size, config.num_heads * config.head_dim});
}

KvLayout KvLayoutOf(const ModelConfig& config, WeightType type) {
  return {config.num_kv_heads, config.head_dim, type};
}

int64_t MaxChunks(const ModelLimits& limits) {
  // A context that starts in the middle of a chunk (a sliding window) touches one more.
  return (limits.max_context_tokens + kAttentionChunkTokens - 1) / kAttentionChunkTokens + 1;
}

int64_t GroupPartialFloats(const ModelConfig& config) {
  return config.num_heads / config.num_kv_heads * AttentionPartialFloats(config.head_dim);
}

// Totals of a block of rows, then what the kernel wants.
int64_t AttentionTotalFloats(const ModelConfig& config) {
  return AttentionRows(config.num_heads / config.num_kv_heads) * GroupPartialFloats(config);
}
int64_t WorkerScratchFloats(const ModelConfig& config) {
  return AttentionTotalFloats(config) + AttentionScratchFloats(config.head_dim);
}

// Below this many (token, KV head) pairs per thread the chunks of a context are spread over the
// threads; above it rows of a prompt are taken together.
constexpr int64_t kSplitItemsPerThread = 4;

class StopWatch {
 public:
  int64_t Lap() {
    const auto now = std::chrono::steady_clock::now();
    const auto lap = std::chrono::duration_cast<std::chrono::microseconds>(now - last_).count();
    last_ = now;
    return lap;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace

uint64_t Model::KvBlockBytes(const ModelConfig& config, WeightType kv_type) {
  return static_cast<uint64_t>(KvLayoutOf(config, kv_type).block_bytes()) *
         static_cast<uint64_t>(config.num_layers);
}

uint64_t Model::WorkspaceBytes(const ModelConfig& c, const CpuKernels& kernels,
                               const ModelLimits& limits, int threads) {
  const int64_t rows = limits.max_batch_tokens;
  const int64_t q = c.num_heads * c.head_dim;
  const int64_t floats_per_row = c.hidden_size + PaddedFloats(c.hidden_size) +
                                 PaddedFloats(q + 2 * c.num_kv_heads * c.head_dim) +
                                 PaddedFloats(q) + c.hidden_size + c.num_experts;
  const int64_t split = kSplitItemsPerThread * threads * MaxChunks(limits) * GroupPartialFloats(c);
  return static_cast<uint64_t>(rows * (floats_per_row * static_cast<int64_t>(sizeof(float)) +
                                       WidestActivationRow(kernels, WidestProductInput(c)) +
                                       WidestActivationRow(kernels, WidestMlp(c))) +
                               (WorkerScratchFloats(c) * threads + split) *
                                   static_cast<int64_t>(sizeof(float)) +
                               ExpertRunner::WorkspaceBytes(c, kernels, rows) +
                               RopeTable::Bytes(c.head_dim, limits.max_context_tokens));
}

Model::Model(ModelConfig config, ModelWeights weights, const ExpertLayout& expert_layout,
             ExpertProvider& experts, const CpuKernels& kernels, ThreadPool& pool,
             const ModelLimits& limits)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      kernels_(kernels),
      f32_kernels_(F32KernelsOf(kernels)),
      pool_(pool),
      limits_(limits),
      kv_layout_(KvLayoutOf(config_, limits.kv_type)),
      rope_(config_.rope, config_.head_dim, config_.max_position, limits.max_context_tokens),
      runner_(config_, expert_layout, experts, kernels, pool, limits.max_batch_tokens) {
  const ModelConfig& c = config_;
  const int64_t rows = limits_.max_batch_tokens;
  norm_stride_ = PaddedFloats(c.hidden_size);
  qkv_stride_ = PaddedFloats((c.num_heads + 2 * c.num_kv_heads) * c.head_dim);
  attn_stride_ = PaddedFloats(c.num_heads * c.head_dim);
  scratch_stride_ = WorkerScratchFloats(c);
  kv_ = AlignedBuffer(KvBlockBytes(c, limits_.kv_type) *
                      static_cast<uint64_t>(limits_.num_kv_blocks));
  hidden_ = ZeroedFloats(rows * c.hidden_size);
  normed_ = ZeroedFloats(rows * norm_stride_);
  qkv_ = ZeroedFloats(rows * qkv_stride_);
  attn_ = ZeroedFloats(rows * attn_stride_);
  mlp_out_ = ZeroedFloats(rows * c.hidden_size);
  router_out_ = ZeroedFloats(rows * c.num_experts);
  scratch_ = ZeroedFloats(pool_.threads() * scratch_stride_);
  split_partials_ = ZeroedFloats(kSplitItemsPerThread * pool_.threads() * MaxChunks(limits_) *
                                 GroupPartialFloats(c));
  activations_ = AlignedBuffer(
      static_cast<size_t>(rows * WidestActivationRow(kernels_, WidestProductInput(c))));
  mlp_hidden_ =
      AlignedBuffer(static_cast<size_t>(rows * WidestActivationRow(kernels_, WidestMlp(c))));
  expert_ids_.resize(static_cast<size_t>(rows * c.top_k));
  expert_weights_.resize(expert_ids_.size());
  row_slice_.resize(static_cast<size_t>(rows));
  row_blocks_.reserve(static_cast<size_t>(rows));
  block_pointers_.reserve(static_cast<size_t>(limits_.num_kv_blocks) + 64);
}

std::byte* Model::KvBlock(int64_t layer, int32_t block) {
  return kv_.data() + (layer * limits_.num_kv_blocks + block) * kv_layout_.block_bytes();
}

void Model::ForRows(int64_t rows, FunctionRef<void(int64_t row)> body) {
  const int64_t tasks = (rows + kRowsPerTask - 1) / kRowsPerTask;
  pool_.ParallelFor(tasks, [&](int64_t task, int) {
    const int64_t end = std::min(rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) body(row);
  });
}

const std::byte* Model::Activate(const float* x, int64_t stride, int64_t rows,
                                 const PackedMatrix& w, int64_t* stride_bytes) {
  const ActivationType type = ActivationTypeOf(kernels_.numerics, w.type);
  if (type == ActivationType::kF32) {  // the rows are what the products want already
    *stride_bytes = stride * static_cast<int64_t>(sizeof(float));
    return reinterpret_cast<const std::byte*>(x);
  }
  const int64_t row_bytes = ActivationRowBytes(type, w.k);
  *stride_bytes = row_bytes;
  ForRows(rows, [&](int64_t row) {
    kernels_.prepare_activations(x + row * stride, stride, 1, w.k, type,
                                 activations_.data() + row * row_bytes, row_bytes);
  });
  return activations_.data();
}

void Model::NormRows(const float* weight, int64_t rows) {
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  ForRows(rows, [&](int64_t row) {
    kernels_.rms_norm(hidden_.as<float>() + row * config_.hidden_size, weight, eps,
                      config_.hidden_size, normed_.as<float>() + row * norm_stride_);
  });
}

void Model::Embed(const ForwardBatch& batch) {
  ForRows(static_cast<int64_t>(batch.tokens.size()), [&](int64_t row) {
    kernels_.unpack_row(weights_.embedding, batch.tokens[static_cast<size_t>(row)],
                        hidden_.as<float>() + row * config_.hidden_size);
  });
}

StepStats Model::Forward(const ForwardBatch& batch, RoutingHook* hook) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  CHECK_LE(rows, limits_.max_batch_tokens);
  StepStats stats;
  stats.steps = 1;
  StopWatch total;
  StopWatch watch;

  first_block_.clear();
  block_pointers_.clear();
  for (size_t s = 0; s < batch.slices.size(); ++s) {
    const SequenceSlice& slice = batch.slices[s];
    CHECK_LE(slice.start_position + slice.num_tokens, limits_.max_context_tokens);
    CHECK_LE(slice.start_position + slice.num_tokens,
             static_cast<int64_t>(slice.blocks.size()) * kKvBlockTokens);
    (slice.prefill ? stats.prefill_tokens : stats.decode_tokens) += slice.num_tokens;
    first_block_.push_back(static_cast<int64_t>(block_pointers_.size()));
    for (const int32_t block : slice.blocks) block_pointers_.push_back(KvBlock(0, block));
    std::fill_n(row_slice_.begin() + slice.first_row, slice.num_tokens, static_cast<int32_t>(s));
  }
  ListRowBlocks(batch);
  Embed(batch);
  const int64_t layer_stride = limits_.num_kv_blocks * kv_layout_.block_bytes();
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    Attention(layer, batch);
    for (const std::byte*& block : block_pointers_) block += layer_stride;
    stats.attention_us += watch.Lap();

    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    NormRows(w.post_attention_norm, rows);
    if (config_.layer_is_sparse[static_cast<size_t>(layer)]) {
      const ExpertStats experts = SparseMlp(layer, batch, hook);
      stats.experts += experts;
      stats.moe_us += watch.Lap() - static_cast<int64_t>(experts.blocked_us);
    } else {
      int64_t stride_bytes = 0;
      const std::byte* x = Activate(normed_.as<float>(), norm_stride_, rows, w.gate, &stride_bytes);
      Mlp(w, x, stride_bytes, rows, mlp_out_.as<float>());
      ForRows(rows, [&](int64_t row) {
        kernels_.axpy(1.0f, mlp_out_.as<float>() + row * config_.hidden_size, config_.hidden_size,
                      hidden_.as<float>() + row * config_.hidden_size);
      });
      stats.moe_us += watch.Lap();
    }
  }
  stats.total_us = total.Lap();
  return stats;
}

void Model::Attention(int64_t layer, const ForwardBatch& batch) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  NormRows(w.input_norm, rows);
  MatmulArgs qkv;
  qkv.x = Activate(normed_.as<float>(), norm_stride_, rows, w.qkv, &qkv.x_stride_bytes);
  qkv.m = rows;
  qkv.w = w.qkv;
  qkv.bias = w.qkv_bias;
  qkv.y = qkv_.as<float>();
  qkv.y_stride = qkv_stride_;
  ParallelMatmul(pool_, kernels_, qkv);

  StoreKv(layer, batch);
  Attend(layer, batch);

  MatmulArgs out;
  out.x = Activate(attn_.as<float>(), attn_stride_, rows, w.output, &out.x_stride_bytes);
  out.m = rows;
  out.w = w.output;
  out.bias = w.output_bias;
  out.y = mlp_out_.as<float>();
  out.y_stride = config_.hidden_size;
  ParallelMatmul(pool_, kernels_, out);
  ForRows(rows, [&](int64_t row) {
    kernels_.axpy(1.0f, mlp_out_.as<float>() + row * config_.hidden_size, config_.hidden_size,
                  hidden_.as<float>() + row * config_.hidden_size);
  });
}

// QK-norm, clipping and RoPE in place, then keys and values into the cache.
void Model::StoreKv(int64_t layer, const ForwardBatch& batch) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const ModelConfig& c = config_;
  const int64_t d = c.head_dim;
  const int64_t q_width = c.num_heads * d;
  const int64_t kv_width = c.num_kv_heads * d;
  const auto eps = static_cast<float>(c.rms_norm_eps);
  ForRows(static_cast<int64_t>(batch.tokens.size()), [&](int64_t row) {
    float* q = qkv_.as<float>() + row * qkv_stride_;
    float* k = q + q_width;
    float* v = k + kv_width;
    if (c.qk_norm == QkNorm::kPerHead) {
      for (int64_t h = 0; h < c.num_heads; ++h)
        kernels_.rms_norm(q + h * d, w.q_norm, eps, d, q + h * d);
      for (int64_t h = 0; h < c.num_kv_heads; ++h)
        kernels_.rms_norm(k + h * d, w.k_norm, eps, d, k + h * d);
    } else if (c.qk_norm == QkNorm::kProjection) {
      kernels_.rms_norm(q, w.q_norm, eps, q_width, q);
      kernels_.rms_norm(k, w.k_norm, eps, kv_width, k);
    }
    if (c.clip_qkv > 0) {
      const auto limit = static_cast<float>(c.clip_qkv);
      for (int64_t i = 0; i < q_width + 2 * kv_width; ++i) q[i] = std::clamp(q[i], -limit, limit);
    }
    const auto slice_index = static_cast<size_t>(row_slice_[static_cast<size_t>(row)]);
    const SequenceSlice& slice = batch.slices[slice_index];
    const int64_t position = slice.start_position + row - slice.first_row;
    const float* cos = rope_.cos(position);
    const float* sin = rope_.sin(position);
    for (int64_t h = 0; h < c.num_heads; ++h) kernels_.rope(q + h * d, cos, sin, d / 2);
    for (int64_t h = 0; h < c.num_kv_heads; ++h) kernels_.rope(k + h * d, cos, sin, d / 2);
    std::byte* block = KvBlock(layer, slice.blocks[static_cast<size_t>(position / kKvBlockTokens)]);
    for (int64_t h = 0; h < c.num_kv_heads; ++h) {
      kernels_.store_kv(kv_layout_, block, h, position % kKvBlockTokens, k + h * d, v + h * d);
    }
  });
}

// Rows of a prompt share their reads of the cache; a block is as large as that pays, but not so
// large that threads are left without work.
void Model::ListRowBlocks(const ForwardBatch& batch) {
  const int64_t group = config_.num_heads / config_.num_kv_heads;
  const int64_t pairs = static_cast<int64_t>(batch.tokens.size()) * config_.num_kv_heads;
  const int64_t most = std::clamp<int64_t>(pairs / (kSplitItemsPerThread * pool_.threads()), 1,
                                           AttentionRows(group));
  row_blocks_.clear();
  for (const SequenceSlice& slice : batch.slices) {
    for (int64_t row = 0; row < slice.num_tokens; row += most) {
      row_blocks_.push_back({slice.first_row + row, std::min(most, slice.num_tokens - row)});
    }
  }
}

AttendArgs Model::ArgsFor(const ForwardBatch& batch, const RowBlock& block, int64_t kv_head) const {
  const auto slice_index = static_cast<size_t>(row_slice_[static_cast<size_t>(block.first_row)]);
  const SequenceSlice& slice = batch.slices[slice_index];
  const int64_t group = config_.num_heads / config_.num_kv_heads;
  AttendArgs args;
  args.q = qkv_.as<float>() + block.first_row * qkv_stride_ + kv_head * group * config_.head_dim;
  args.q_stride = config_.head_dim;
  args.q_row_stride = qkv_stride_;
  args.rows = block.rows;
  args.group = group;
  args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  args.layout = kv_layout_;
  args.kv_head = kv_head;
  args.blocks = block_pointers_.data() + first_block_[slice_index];
  args.context_end = slice.start_position + block.first_row - slice.first_row + 1;
  args.window = window_;
  return args;
}

Model::ChunkRange Model::ChunksOf(const AttendArgs& args) const {
  const int64_t begin = args.window > 0 ? std::max<int64_t>(0, args.context_end - args.window) : 0;
  return {begin / kAttentionChunkTokens,
          (args.context_end + args.rows - 2) / kAttentionChunkTokens + 1};
}

void Model::FinishAttention(const RowBlock& block, int64_t kv_head, const float* totals) {
  const int64_t group = config_.num_heads / config_.num_kv_heads;
  for (int64_t row = 0; row < block.rows; ++row) {
    kernels_.finish_attention(totals + row * GroupPartialFloats(config_), group, config_.head_dim,
                              attn_.as<float>() + (block.first_row + row) * attn_stride_ +
                                  kv_head * group * config_.head_dim,
                              config_.head_dim);
  }
}

void Model::Attend(int64_t layer, const ForwardBatch& batch) {
  window_ = config_.layer_window[static_cast<size_t>(layer)];
  const int64_t kv_heads = config_.num_kv_heads;
  const int64_t items = static_cast<int64_t>(row_blocks_.size()) * kv_heads;
  if (items < kSplitItemsPerThread * pool_.threads()) {
    AttendSplit(batch);
    return;
  }
  pool_.ParallelFor(items, [&](int64_t item, int worker) {
    const RowBlock& block = row_blocks_[static_cast<size_t>(item / kv_heads)];
    const AttendArgs args = ArgsFor(batch, block, item % kv_heads);
    const ChunkRange chunks = ChunksOf(args);
    float* totals = scratch_.as<float>() + worker * scratch_stride_;
    std::fill_n(totals, block.rows * GroupPartialFloats(config_), 0.0f);
    kernels_.attend_chunks(args, chunks.begin, chunks.end, totals, 0,
                           totals + AttentionTotalFloats(config_));
    FinishAttention(block, args.kv_head, totals);
  });
}

// Few rows: runs of chunks of one context go to several threads. The same chunks folded in the same
// order as in Attend, so the same bits.
void Model::AttendSplit(const ForwardBatch& batch) {
  const int64_t kv_heads = config_.num_kv_heads;
  const int64_t group = config_.num_heads / kv_heads;
  const int64_t group_partial = GroupPartialFloats(config_);
  const int64_t items = static_cast<int64_t>(row_blocks_.size()) * kv_heads;
  const int64_t parts = (kSplitItemsPerThread * pool_.threads() + items - 1) / items;
  const int64_t item_floats = MaxChunks(limits_) * group_partial;
  pool_.ParallelFor(items * parts, [&](int64_t task, int worker) {
    const int64_t item = task / parts;
    const AttendArgs args =
        ArgsFor(batch, row_blocks_[static_cast<size_t>(item / kv_heads)], item % kv_heads);
    const ChunkRange chunks = ChunksOf(args);
    const int64_t count = chunks.end - chunks.begin;
    const int64_t begin = count * (task % parts) / parts;
    const int64_t end = count * (task % parts + 1) / parts;
    float* partials = split_partials_.as<float>() + item * item_floats + begin * group_partial;
    std::fill_n(partials, (end - begin) * group_partial, 0.0f);
    kernels_.attend_chunks(
        args, chunks.begin + begin, chunks.begin + end, partials, group_partial,
        scratch_.as<float>() + worker * scratch_stride_ + AttentionTotalFloats(config_));
  });
  for (int64_t item = 0; item < items; ++item) {
    const RowBlock& block = row_blocks_[static_cast<size_t>(item / kv_heads)];
    const ChunkRange chunks = ChunksOf(ArgsFor(batch, block, item % kv_heads));
    float* totals = split_partials_.as<float>() + item * item_floats;
    for (int64_t chunk = 1; chunk < chunks.end - chunks.begin; ++chunk) {
      kernels_.fold_partials(totals + chunk * group_partial, group, config_.head_dim, totals);
    }
    FinishAttention(block, item % kv_heads, totals);
  }
}

// Softmax over all experts in f32, then the top k; a tie goes to the lower expert.
void Model::Route(const LayerWeights& w, int64_t rows) {
  const ModelConfig& c = config_;
  MatmulArgs router;
  router.x = reinterpret_cast<const std::byte*>(normed_.as<float>());
  router.x_stride_bytes = norm_stride_ * static_cast<int64_t>(sizeof(float));
  router.m = rows;
  router.w = w.router;
  router.y = router_out_.as<float>();
  router.y_stride = c.num_experts;
  ParallelMatmul(pool_, f32_kernels_, router);
  ForRows(rows, [&](int64_t row) {
    float* p = router_out_.as<float>() + row * c.num_experts;
    kernels_.softmax(p, c.num_experts, p);
    int32_t* ids = expert_ids_.data() + row * c.top_k;
    float* weights = expert_weights_.data() + row * c.top_k;
    float sum = 0.0f;
    for (int64_t slot = 0; slot < c.top_k; ++slot) {
      // NaN compares false: a poisoned row still gets distinct, valid experts, and its logits say
      // so.
      int64_t best = -1;
      for (int64_t e = 0; e < c.num_experts; ++e) {
        if (p[e] != -1.0f && (best < 0 || p[e] > p[best])) best = e;
      }
      ids[slot] = static_cast<int32_t>(best);
      weights[slot] = p[best];
      sum += p[best];
      p[best] = -1.0f;  // taken
    }
    if (c.norm_topk_prob) {
      for (int64_t slot = 0; slot < c.top_k; ++slot) weights[slot] /= sum;
    }
  });
}

ExpertStats Model::SparseMlp(int64_t layer, const ForwardBatch& batch, RoutingHook* hook) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  Route(w, rows);
  if (hook != nullptr) {
    const auto pairs = static_cast<size_t>(rows * config_.top_k);
    hook->OnRouting(layer, batch, {expert_ids_.data(), pairs}, {expert_weights_.data(), pairs});
  }
  int64_t stride_bytes = 0;
  const PackedMatrix expert = runner_.Gate();
  const std::byte* x = Activate(normed_.as<float>(), norm_stride_, rows, expert, &stride_bytes);
  const ExpertStats stats = runner_.Run(layer, x, stride_bytes, rows, expert_ids_.data(),
                                        expert_weights_.data(), hidden_.as<float>());
  if (w.gate.n == 0) return stats;

  CHECK(w.gate.type == expert.type);  // x serves both
  Mlp(w, x, stride_bytes, rows, mlp_out_.as<float>());
  if (w.shared_gate.n > 0) {
    MatmulArgs gate;
    gate.x = reinterpret_cast<const std::byte*>(normed_.as<float>());
    gate.x_stride_bytes = norm_stride_ * static_cast<int64_t>(sizeof(float));
    gate.m = rows;
    gate.w = w.shared_gate;
    gate.y = router_out_.as<float>();
    gate.y_stride = 1;
    ParallelMatmul(pool_, f32_kernels_, gate);
  }
  ForRows(rows, [&](int64_t row) {
    const float scale =
        w.shared_gate.n > 0 ? 1.0f / (1.0f + std::exp(-router_out_.as<float>()[row])) : 1.0f;
    kernels_.axpy(scale, mlp_out_.as<float>() + row * config_.hidden_size, config_.hidden_size,
                  hidden_.as<float>() + row * config_.hidden_size);
  });
  return stats;
}

void Model::Mlp(const LayerWeights& w, const std::byte* x, int64_t x_stride_bytes, int64_t rows,
                float* out) {
  GateUpArgs gate_up;
  gate_up.x = x;
  gate_up.x_stride_bytes = x_stride_bytes;
  gate_up.m = rows;
  gate_up.gate = w.gate;
  gate_up.up = w.up;
  gate_up.h = mlp_hidden_.data();
  gate_up.h_stride_bytes =
      ActivationRowBytes(ActivationTypeOf(kernels_.numerics, w.down.type), w.gate.n);
  ParallelGateUp(pool_, kernels_, gate_up);
  MatmulArgs down;
  down.x = mlp_hidden_.data();
  down.x_stride_bytes = gate_up.h_stride_bytes;
  down.m = rows;
  down.w = w.down;
  down.y = out;
  down.y_stride = config_.hidden_size;
  ParallelMatmul(pool_, kernels_, down);
}

void Model::Logits(std::span<const int32_t> rows, float* out) {
  CHECK_LE(static_cast<int64_t>(rows.size()), limits_.max_logit_rows);
  const auto count = static_cast<int64_t>(rows.size());
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  ForRows(count, [&](int64_t i) {
    kernels_.rms_norm(hidden_.as<float>() + rows[static_cast<size_t>(i)] * config_.hidden_size,
                      weights_.final_norm, eps, config_.hidden_size,
                      normed_.as<float>() + i * norm_stride_);
  });
  MatmulArgs head;
  head.x = Activate(normed_.as<float>(), norm_stride_, count, weights_.head, &head.x_stride_bytes);
  head.m = count;
  head.w = weights_.head;
  head.y = out;
  head.y_stride = config_.vocab_size;
  ParallelMatmul(pool_, kernels_, head);
}

}  // namespace moesaic
