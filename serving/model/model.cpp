#include "serving/model/model.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "serving/model/attention_sizes.h"
#include "serving/model/sampler.h"

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

int64_t WidestProductInput(const ModelConfig& config) {
  return std::max(config.hidden_size, config.attention().q_width());
}

KvLayout KvLayoutOf(const ModelConfig& config, WeightType type) {
  return {config.attention().kv_heads, config.attention().head_dim, type};
}

ExpertPlaces OnePlace(ExpertProvider& experts, ThreadPool& pool, DeviceOperators operators) {
  ExpertPlaces one;
  one.places.push_back({&experts, &pool, std::move(operators)});
  return one;
}

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
         static_cast<uint64_t>(config.num_layers());
}

int64_t Model::QkvStride(const ModelConfig& config) {
  return PaddedFloats(config.attention().qkv_width());
}

int64_t Model::AttentionStride(const ModelConfig& config) {
  return PaddedFloats(config.attention().q_width());
}

uint64_t Model::WorkspaceBytes(const ModelConfig& c, const CpuKernels& kernels,
                               const ModelLimits& limits, int threads, int places,
                               bool dense_elsewhere) {
  const int64_t rows = limits.max_batch_tokens;
  const int64_t experts =
      ExpertRunner::WorkspaceBytes(c, kernels, rows, places, limits.defer_experts > 0);
  if (dense_elsewhere) {
    return static_cast<uint64_t>(
        rows * (PaddedFloats(c.hidden_size) * static_cast<int64_t>(sizeof(float)) +
                WidestActivationRow(c, kernels, c.hidden_size)) +
        experts);
  }
  const GroupedQuerySpec& attention = c.attention();
  const int64_t floats_per_row = c.hidden_size + PaddedFloats(c.hidden_size) +
                                 (limits.host_attention ? 0 : QkvStride(c)) + AttentionStride(c) +
                                 c.hidden_size + c.num_experts();
  const int64_t split =
      kSplitItemsPerThread * threads * MaxChunks(limits) * GroupPartialFloats(attention);
  return static_cast<uint64_t>(rows * (floats_per_row * static_cast<int64_t>(sizeof(float)) +
                                       WidestActivationRow(c, kernels, WidestProductInput(c)) +
                                       WidestActivationRow(c, kernels, c.widest_dense_mlp())) +
                               (WorkerScratchFloats(attention, limits.kv_type) * threads + split) *
                                   static_cast<int64_t>(sizeof(float)) +
                               experts +
                               RopeTable::Bytes(attention.rotary_dim, limits.max_context_tokens));
}

Model::Model(ModelConfig config, ModelWeights weights, const ExpertLayout& expert_layout,
             ExpertProvider& experts, const CpuKernels& kernels, ThreadPool& pool,
             const ModelLimits& limits, DeviceOperators operators, std::unique_ptr<DensePart> dense)
    : Model(std::move(config), std::move(weights), expert_layout,
            OnePlace(experts, pool, std::move(operators)), kernels, pool, limits,
            std::move(dense)) {}

Model::Model(ModelConfig config, ModelWeights weights, const ExpertLayout& expert_layout,
             ExpertPlaces experts, const CpuKernels& kernels, ThreadPool& pool,
             const ModelLimits& limits, std::unique_ptr<DensePart> dense)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      kernels_(kernels),
      f32_kernels_(F32KernelsOf(kernels)),
      pool_(pool),
      limits_(limits),
      kv_layout_(KvLayoutOf(config_, limits.kv_type)),
      rope_(config_.attention(), config_.max_position,
            dense == nullptr || limits.host_attention ? limits.max_context_tokens : 0),
      runner_(config_, expert_layout, std::move(experts), kernels, limits.max_batch_tokens,
              limits.defer_experts > 0, weights_.layers),
      dense_(std::move(dense)),
      modules_(limits.host_attention ? dynamic_cast<DenseOperator*>(dense_.get()) : nullptr) {
  const ModelConfig& c = config_;
  if (c.attention().rope.kind == RopeKind::kDynamicNtk &&
      limits_.max_context_tokens > c.max_position) {
    LogInfo(
        "dynamic rope: up to {} positions as the model was trained, beyond them the base grows "
        "with each position; more costs quality",
        c.max_position);
  }
  const int64_t rows = limits_.max_batch_tokens;
  norm_stride_ = PaddedFloats(c.hidden_size);
  qkv_stride_ = QkvStride(c);
  attn_stride_ = AttentionStride(c);
  scratch_stride_ = WorkerScratchFloats(c.attention(), limits_.kv_type);
  normed_ = ZeroedFloats(rows * norm_stride_);
  const bool computes = dense_ == nullptr || limits_.host_attention;
  activations_ = AlignedBuffer(static_cast<size_t>(
      rows * WidestActivationRow(c, kernels_, computes ? WidestProductInput(c) : c.hidden_size)));
  CHECK(!limits_.host_attention || modules_ != nullptr);
  if (computes) {
    kv_ = AlignedBuffer(KvBlockBytes(c, limits_.kv_type) *
                        static_cast<uint64_t>(limits_.num_kv_blocks));
    hidden_ = ZeroedFloats(rows * c.hidden_size);
    if (limits_.host_attention) {
      qkv_stride_ = modules_->qkv_width();
      qkv_rows_ = reinterpret_cast<float*>(modules_->host_qkv().data());
    } else {
      qkv_ = ZeroedFloats(rows * qkv_stride_);
      qkv_rows_ = qkv_.as<float>();
    }
    attn_ = ZeroedFloats(rows * attn_stride_);
    mlp_out_ = ZeroedFloats(rows * c.hidden_size);
    router_out_ = ZeroedFloats(rows * c.num_experts());
    scratch_ = ZeroedFloats(pool_.threads() * scratch_stride_);
    split_partials_ = ZeroedFloats(kSplitItemsPerThread * pool_.threads() * MaxChunks(limits_) *
                                   GroupPartialFloats(c.attention()));
    mlp_hidden_ = AlignedBuffer(
        static_cast<size_t>(rows * WidestActivationRow(c, kernels_, c.widest_dense_mlp())));
  }
  expert_ids_.resize(static_cast<size_t>(rows * c.top_k()));
  expert_weights_.resize(expert_ids_.size());
  if (limits_.defer_experts > 0) deferred_.resize(expert_ids_.size());
  row_slice_.resize(static_cast<size_t>(rows));
  row_blocks_.reserve(static_cast<size_t>(rows));
  block_pointers_.reserve(static_cast<size_t>(limits_.num_kv_blocks) + 64);
}

void Model::PopulateKvCache() {
  constexpr auto kPieceBytes = static_cast<int64_t>(AlignedBuffer::kHugePageBytes);
  const auto bytes = static_cast<int64_t>(kv_.bytes());
  pool_.ParallelFor((bytes + kPieceBytes - 1) / kPieceBytes, [&](int64_t piece, int) {
    const int64_t begin = piece * kPieceBytes;
    kv_.Populate(static_cast<size_t>(begin),
                 static_cast<size_t>(std::min(kPieceBytes, bytes - begin)));
  });
}

std::byte* Model::KvBlock(int64_t layer, int32_t block) {
  return kv_.data() + (layer * limits_.num_kv_blocks + block) * kv_layout_.block_bytes();
}

void Model::ForRows(ThreadPool& pool, RowRange rows, FunctionRef<void(int64_t row)> body) {
  const int64_t tasks = (rows.count() + kRowsPerTask - 1) / kRowsPerTask;
  pool.ParallelFor(tasks, [&](int64_t task, int) {
    const int64_t end = std::min(rows.end, rows.begin + (task + 1) * kRowsPerTask);
    for (int64_t row = rows.begin + task * kRowsPerTask; row < end; ++row) body(row);
  });
}

StepStats Model::BeginPass(const ForwardBatch& batch) {
  const auto rows = static_cast<int64_t>(batch.tokens.size());
  CHECK_LE(rows, limits_.max_batch_tokens);
  batch_ = batch;
  StepStats stats;
  stats.steps = 1;
  first_block_.clear();
  block_pointers_.clear();
  for (size_t s = 0; s < batch.slices.size(); ++s) {
    const SequenceSlice& slice = batch.slices[s];
    CHECK_LE(slice.start_position + slice.num_tokens, limits_.max_context_tokens);
    CHECK_LE(slice.start_position + slice.num_tokens,
             static_cast<int64_t>(slice.blocks.size()) * kKvBlockTokens);
    (slice.prefill ? stats.prefill_tokens : stats.decode_tokens) += slice.num_tokens;
    first_block_.push_back(static_cast<int64_t>(block_pointers_.size()));
    block_pointers_.resize(block_pointers_.size() + slice.blocks.size());
    std::fill_n(row_slice_.begin() + slice.first_row, slice.num_tokens, static_cast<int32_t>(s));
  }
  listed_ = {};
  runner_.BeginPass();
  if (dense_in_use()) {
    if (limits_.host_attention) {
      modules_->BeginPass(batch);
    } else {
      dense_->BeginStep(batch);
    }
    return stats;
  }
  ForRows(pool_, {0, rows}, [&](int64_t row) {
    kernels_.unpack_row(weights_.embedding, batch.tokens[static_cast<size_t>(row)],
                        hidden_.as<float>() + row * config_.hidden_size);
  });
  return stats;
}

StepStats Model::Forward(const ForwardBatch& batch, RoutingHook* hook) {
  const RowRange rows = {0, static_cast<int64_t>(batch.tokens.size())};
  const SliceRange slices = {0, static_cast<int64_t>(batch.slices.size())};
  StopWatch total;
  StopWatch watch;
  CHECK(!limits_.host_attention);
  StepStats stats = BeginPass(batch);
  if (dense_ != nullptr) {
    RunOnDevice(rows, hook, stats);
    stats.total_us = total.Lap();
    return stats;
  }
  for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
    PreAttention(layer, rows, pool_, qkv());
    Attend(layer, slices, pool_);
    Project(layer, rows, pool_, attention());
    stats.attention_us += watch.Lap();
    Route(layer, rows, pool_);
    if (hook != nullptr) ShowRouting(layer, rows, *hook);
    const ExpertStats experts = RunMlp(layer, rows, pool_);
    stats.experts += experts;
    stats.moe_us += watch.Lap() - static_cast<int64_t>(experts.blocked_us);
  }
  stats.total_us = total.Lap();
  return stats;
}

// Layer by layer the device is a layer's attention ahead of the host at most: a sparse layer's
// routing is waited for, and by then what the layer before has queued is done. A step that runs as
// a whole is as far ahead as it finds its experts.
void Model::RunOnDevice(RowRange rows, RoutingHook* hook, StepStats& stats) {
  StopWatch watch;
  try {
    const bool whole =
        (hook == nullptr || hook->OnlyWatches()) && dense_->RunStep(runner_.first_device());
    for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
      if (!whole) dense_->Layer(layer);
      if (!config_.is_sparse(layer)) continue;
      const DensePart::Routed routed = dense_->AwaitRouting(layer);
      stats.experts += runner_.Close();
      stats.attention_us += watch.Lap();
      RunExpertsOnDevice(layer, rows, routed, hook);
      stats.moe_us += watch.Lap();
    }
    dense_->EndStep();
  } catch (...) {
    dense_->AbandonStep();
    runner_.Close();
    throw;
  }
  stats.experts += runner_.Close();
  stats.attention_us += watch.Lap();
  stats.moe_us -= std::min(stats.moe_us, static_cast<int64_t>(stats.experts.blocked_us));
}

void Model::RunExpertsOnDevice(int64_t layer, RowRange rows, const DensePart::Routed& routed,
                               RoutingHook* hook) {
  StepExperts* const step = dense_->running_step();
  if (step != nullptr && routed.missed.empty()) {  // nobody here multiplies anything
    TakeRouting(rows, routed, false, pool_);
    if (hook != nullptr) ShowRouting(layer, rows, *hook);
    runner_.RunBeside(*step, routed.there, layer, {.tokens = rows.count()}, expert_ids_.data(),
                      expert_weights_.data(), {});
    return;
  }
  TakeRouting(rows, routed, true, pool_);
  if (hook != nullptr) ShowRouting(layer, rows, *hook);
  int64_t stride_bytes = 0;
  const std::byte* const x = Activate(normed_.as<float>(), norm_stride_, rows.count(),
                                      runner_.Gate(), pool_, &stride_bytes);
  const ExpertRunner::Rows inputs = {.tokens = rows.count(),
                                     .x = normed_.as<float>(),
                                     .x_stride = norm_stride_,
                                     .activations = x,
                                     .activations_stride_bytes = stride_bytes};
  if (step != nullptr) {
    runner_.RunBeside(*step, routed.there, layer, inputs, expert_ids_.data(),
                      expert_weights_.data(), routed.missed);
  } else {
    runner_.RunOnto(*dense_, routed.there, layer, inputs, expert_ids_.data(),
                    expert_weights_.data());
  }
}

// What the host needs of a layer's routing on the device.
void Model::TakeRouting(RowRange rows, const DensePart::Routed& routed, bool normed,
                        ThreadPool& pool) {
  const int64_t first = rows.begin * config_.top_k();
  const int64_t pairs = rows.count() * config_.top_k();
  std::copy_n(routed.experts, pairs, expert_ids_.data() + first);
  std::copy_n(routed.weights, pairs, expert_weights_.data() + first);
  if (!normed) return;
  ForRows(pool, rows, [&](int64_t row) {  // with the padding that products want
    std::copy_n(routed.normed + (row - rows.begin) * config_.hidden_size, config_.hidden_size,
                NormedRow(row));
  });
}

ExpertStats Model::RunRoutedOnDevice(int64_t layer, RowRange rows, ThreadPool& pool) {
  if (!config_.is_sparse(layer)) return {};  // Route has run its MLP
  ExpertRunner::Rows host = {.tokens = rows.count()};
  const bool host_rows = runner_.NeedsHostRows();
  if (host_rows) {
    host.x = NormedRow(rows.begin);
    host.x_stride = norm_stride_;
    host.activations = Activate(host.x, norm_stride_, rows.count(), runner_.Gate(), pool,
                                &host.activations_stride_bytes);
  }
  const int64_t pair = rows.begin * config_.top_k();
  try {
    const DeviceSpan there = modules_->OpenExperts(rows);
    runner_.RunOnto(*dense_, {&there, 1}, layer, host, expert_ids_.data() + pair,
                    expert_weights_.data() + pair);
  } catch (...) {
    runner_.Close();
    dense_failed_ = dense_failed_ || runner_.NeedsHostRows() != host_rows;
    throw;
  }
  return runner_.Close();
}

void Model::EndPass() {
  if (!dense_in_use()) return;
  OnDense([&] { modules_->EndPass(hidden_.as<float>(), std::ssize(batch_.tokens)); });
}

void Model::OnDense(FunctionRef<void()> module) {
  try {
    module();
  } catch (const Error&) {
    dense_failed_ = true;
    throw;
  }
}

void Model::GreedyTokens(std::span<const int32_t> rows, int32_t* tokens) {
  CHECK(has_greedy_tokens());
  try {
    dense_->Greedy(rows, tokens);
  } catch (const Error& error) {
    if (!limits_.host_attention) throw;
    LogWarn("the host computes the logits of a pass: {}", error.what());
    std::vector<float> logits(static_cast<size_t>(config_.vocab_size));
    for (size_t i = 0; i < rows.size(); ++i) {
      LogitsOnHost(rows.subspan(i, 1), logits.data());
      tokens[i] =
          std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })
              ? ArgMax(logits)
              : -1;
    }
  }
}

void Model::Logits(std::span<const int32_t> rows, float* out) {
  CHECK_LE(std::ssize(rows), limits_.max_logit_rows);
  if (!dense_in_use()) {
    LogitsOnHost(rows, out);
    return;
  }
  try {
    dense_->Head(rows, out);
  } catch (const Error& error) {
    if (!limits_.host_attention) throw;
    LogWarn("the host computes the logits of a pass: {}", error.what());
    LogitsOnHost(rows, out);
  }
}

void Model::LogitsOnHost(std::span<const int32_t> rows, float* out) {
  const int64_t count = std::ssize(rows);
  const auto eps = static_cast<float>(config_.final_norm.eps);
  ForRows(pool_, {0, count}, [&](int64_t i) {
    kernels_.rms_norm(hidden_.as<float>() + rows[static_cast<size_t>(i)] * config_.hidden_size,
                      weights_.final_norm, eps, config_.hidden_size,
                      normed_.as<float>() + i * norm_stride_);
  });
  MatmulArgs head;
  head.x = Activate(normed_.as<float>(), norm_stride_, count, weights_.head, pool_,
                    &head.x_stride_bytes);
  head.m = count;
  head.w = weights_.head;
  head.y = out;
  head.y_stride = config_.vocab_size;
  ParallelMatmul(pool_, kernels_, head);
}

}  // namespace moesaic
