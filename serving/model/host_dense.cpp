#include "serving/model/host_dense.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "core/base/check.h"
#include "kernels/cpu/moe.h"
#include "serving/model/choose_experts.h"
#include "serving/model/delta_net.h"
#include "serving/model/grouped_query.h"
#include "serving/model/latent.h"
#include "serving/model/sampler.h"

namespace moesaic {
namespace {

// Of the widest rows of any layer.
MixerWidths WidestOf(const ModelConfig& config) {
  MixerWidths widest;
  for (const LayerSpec& layer : config.layers) {
    const MixerWidths widths =
        std::visit([](const auto& spec) { return WidthsOf(spec); }, layer.mixer);
    widest.projected = std::max(widest.projected, widths.projected);
    widest.mixed = std::max(widest.mixed, widths.mixed);
    widest.input = std::max(widest.input, widths.input);
  }
  return widest;
}

int64_t WidestProductInput(const ModelConfig& config) {
  return std::max(config.hidden_size, WidestOf(config).input);
}

}  // namespace

int64_t HostDense::ProjectedStride(const ModelConfig& config) {
  return PaddedFloats(WidestOf(config).projected);
}

int64_t HostDense::MixedStride(const ModelConfig& config) {
  return PaddedFloats(WidestOf(config).mixed);
}

uint64_t HostDense::WorkspaceBytes(const ModelConfig& c, const CpuKernels& kernels,
                                   const ModelLimits& limits, int threads, bool own_projected) {
  const int64_t rows = limits.max_batch_tokens;
  const int64_t floats_per_row =
      c.hidden_size + (c.experts_read_input() ? 2 : 1) * PaddedFloats(c.hidden_size) +
      (own_projected ? ProjectedStride(c) : 0) + MixedStride(c) + c.hidden_size + c.num_experts();
  return static_cast<uint64_t>(rows * (floats_per_row * static_cast<int64_t>(sizeof(float)) +
                                       WidestActivationRow(c, kernels, c.widest_dense_mlp())) +
                               HostActivations::Bytes(kernels, rows, WidestProductInput(c))) +
         GroupedQuery::WorkspaceBytes(c, limits, threads) +
         Latent::WorkspaceBytes(c, limits, threads) + DeltaNet::WorkspaceBytes(c, limits, threads);
}

HostDense::HostDense(const ModelConfig& config, ModelWeights weights, const CpuKernels& kernels,
                     ThreadPool& pool, const ModelLimits& limits, float* projected,
                     int64_t projected_stride)
    : config_(config),
      weights_(std::move(weights)),
      kernels_(kernels),
      f32_kernels_(F32KernelsOf(kernels)),
      pool_(pool),
      limits_(limits),
      norm_stride_(PaddedFloats(config.hidden_size)),
      activations_(kernels, limits.max_batch_tokens, WidestProductInput(config)) {
  MakeMixer<GroupedQuerySpec, GroupedQuery>();
  MakeMixer<LatentSpec, Latent>();
  MakeMixer<DeltaNetSpec, DeltaNet>();
  const int64_t rows = limits.max_batch_tokens;
  hidden_ = ZeroedFloats(rows * config.hidden_size);
  normed_ = ZeroedFloats(rows * norm_stride_);
  if (config.experts_read_input()) expert_normed_ = ZeroedFloats(rows * norm_stride_);
  rows_ = {.projected = projected,
           .projected_stride = projected_stride,
           .mixed_stride = MixedStride(config)};
  if (projected == nullptr) {
    rows_.projected_stride = ProjectedStride(config);
    projected_ = ZeroedFloats(rows * rows_.projected_stride);
    rows_.projected = projected_.as<float>();
  }
  mixed_ = ZeroedFloats(rows * rows_.mixed_stride);
  rows_.mixed = mixed_.as<float>();
  work_rows_ = rows_;
  out_ = ZeroedFloats(rows * config.hidden_size);
  router_out_ = ZeroedFloats(rows * config.num_experts());
  mlp_hidden_ = AlignedBuffer(
      static_cast<size_t>(rows * WidestActivationRow(config, kernels, config.widest_dense_mlp())));
}

// For the layers that have it, if there are any.
template <typename Spec, typename Mixer>
void HostDense::MakeMixer() {
  if (config_.FindMixer<Spec>() == nullptr) return;
  mixers_.push_back(
      std::make_unique<Mixer>(config_, weights_, kernels_, limits_, pool_.threads(), activations_));
  mixer_of_layer_.resize(config_.layers.size());
  for (size_t l = 0; l < config_.layers.size(); ++l) {
    if (std::holds_alternative<Spec>(config_.layers[l].mixer)) {
      mixer_of_layer_[l] = mixers_.back().get();
    }
  }
}

void HostDense::WorkIn(float* projected, float* mixed) {
  work_rows_ = rows_;
  if (projected == nullptr) return;
  work_rows_.projected = projected;
  work_rows_.mixed = mixed;
}

DensePart::MixerRows HostDense::mixer_rows() const {
  return {.projected = rows_.projected,
          .projected_row_bytes = static_cast<uint64_t>(rows_.projected_stride) * sizeof(float),
          .mixed = reinterpret_cast<const std::byte*>(rows_.mixed),
          .mixed_row_bytes = static_cast<uint64_t>(rows_.mixed_stride) * sizeof(float)};
}

// One kind of mixer has any.
HostMixer::CarriedRows HostDense::carried() {
  for (const std::unique_ptr<HostMixer>& mixer : mixers_) {
    const HostMixer::CarriedRows rows = mixer->carried();
    if (rows.row_bytes > 0) return rows;
  }
  return {};
}

KvMemory HostDense::kv_memory() {
  KvMemory memory;
  for (int64_t layer = 0; layer < config_.num_layers(); ++layer) {
    if (const auto of_layer = MixerOf(layer).KvOf(layer)) memory.layers.push_back(*of_layer);
  }
  for (const std::unique_ptr<HostMixer>& mixer : mixers_) {
    if (!mixer->is_recurrent()) continue;
    memory.states = mixer->state().data();
    memory.state_bytes = DeltaNet::SlotBytes(config_);
  }
  return memory;
}

void HostDense::GiveBackKv(int64_t first_block) {
  for (const std::unique_ptr<HostMixer>& mixer : mixers_) mixer->GiveBackKv(first_block);
}

void HostDense::PopulateState(ThreadPool& pool) {
  constexpr auto kPieceBytes = static_cast<int64_t>(AlignedBuffer::kHugePageBytes);
  for (const std::unique_ptr<HostMixer>& mixer : mixers_) {
    AlignedBuffer& state = mixer->state();
    const auto bytes = static_cast<int64_t>(state.bytes());
    pool.ParallelFor((bytes + kPieceBytes - 1) / kPieceBytes, [&](int64_t piece, int) {
      const int64_t begin = piece * kPieceBytes;
      state.Populate(static_cast<size_t>(begin),
                     static_cast<size_t>(std::min(kPieceBytes, bytes - begin)));
    });
  }
}

void HostDense::BeginMixers(const ForwardBatch& batch) {
  for (const std::unique_ptr<HostMixer>& mixer : mixers_) mixer->Begin(batch);
}

void HostDense::Begin(const ForwardBatch& batch, const DeviceOperator* /*experts*/) {
  BeginMixers(batch);
  const auto scale = static_cast<float>(config_.embedding_scale);
  ForRows(pool_, {0, std::ssize(batch.tokens)}, [&](int64_t row) {
    float* const hidden = HiddenRow(row);
    kernels_.unpack_row(weights_.embedding, batch.tokens[static_cast<size_t>(row)], hidden);
    if (scale == 1.0f) return;
    for (int64_t i = 0; i < config_.hidden_size; ++i) hidden[i] *= scale;
  });
}

void HostDense::Norm(const NormSpec& norm, const float* weight, const float* x, float* out) const {
  const auto run = norm.centred ? kernels_.layer_norm : kernels_.rms_norm;
  run(x, weight, static_cast<float>(norm.eps), config_.hidden_size, out);
}

void HostDense::NormRows(const NormSpec& norm, const float* weight, RowRange rows, float* y,
                         ThreadPool& pool) {
  ForRows(pool, rows, [&](int64_t row) {
    Norm(norm, weight, HiddenRow(row), y + (row - rows.begin) * norm_stride_);
  });
}

void HostDense::PreAttention(int64_t layer, RowRange rows, ThreadPool& pool) {
  NormRows(config_.layer(layer).norm, Weights(layer).input_norm, rows, NormedRow(rows.begin), pool);
  MixerOf(layer).PreAttention(layer, rows, NormedRow(rows.begin), norm_stride_, work_rows_, pool);
}

void HostDense::Attend(int64_t layer, SliceRange slices, ThreadPool& pool) {
  MixerOf(layer).Attend(layer, slices, rows_, pool);
}

void HostDense::AttendForDevice(int64_t layer, SliceRange slices, ThreadPool& pool) {
  HostMixer::Rows rows = rows_;
  rows.by_device = true;
  MixerOf(layer).Attend(layer, slices, rows, pool);
}

void HostDense::Project(int64_t layer, RowRange rows, ThreadPool& pool) {
  MixerOf(layer).Project(layer, rows, work_rows_, OutRow(rows.begin), pool);
  const auto scale = static_cast<float>(config_.layer(layer).residual_scale);
  AddOut(rows, pool, [scale](int64_t) { return scale; });
}

// hidden += scale(row) * out.
void HostDense::AddOut(RowRange rows, ThreadPool& pool, FunctionRef<float(int64_t row)> scale) {
  ForRows(pool, rows, [&](int64_t row) {
    kernels_.axpy(scale(row), OutRow(row), config_.hidden_size, HiddenRow(row));
  });
}

void HostDense::RowLogits(const PackedMatrix& w, const float* bias, RowRange rows, const float* x,
                          float* out, ThreadPool& pool) {
  MultiplyRows(pool, f32_kernels_, UnroundedRows(x, norm_stride_), rows.count(), w,
               out + rows.begin * w.n, w.n, bias);
}

void HostDense::Route(int64_t layer, RowRange rows, int32_t* ids, float* weights,
                      bool /*host_rows*/, ThreadPool& pool) {
  const LayerWeights& w = Weights(layer);
  const LayerSpec& spec = config_.layer(layer);
  float* const normed = spec.sparse() ? ExpertRow(rows.begin) : NormedRow(rows.begin);
  NormRows(spec.norm, w.post_attention_norm, rows, normed, pool);
  if (!spec.sparse()) return;
  const RouterSpec& choice = spec.experts().router;
  RowLogits(w.router, w.router_bias, rows, normed, router_out_.as<float>(), pool);
  ForRows(pool, rows, [&](int64_t row) {
    const int64_t pair = (row - rows.begin) * choice.top_k;
    ChooseExperts(choice, kernels_, router_out_.as<float>() + row * choice.experts,
                  w.router_correction, ids + pair, weights + pair);
  });
}

ExpertInputs HostDense::OpenExperts(RowRange rows) {
  return {.tokens = rows.count(), .x = ExpertRow(rows.begin), .x_stride = norm_stride_};
}

void HostDense::AddExperts(RowRange rows, const ExpertOutputs& experts, ThreadPool& pool) {
  CHECK(experts.device == nullptr);
  if (experts.slot_out == nullptr) return;
  CombineSlots(pool, kernels_, experts.slot_out, experts.weights, rows.count(), config_.top_k(),
               config_.hidden_size, HiddenRow(rows.begin), experts.mask);
}

void HostDense::AddMlp(int64_t layer, RowRange rows, const ExpertOutputs& experts,
                       const ExpertOutputs& deferred, ThreadPool& pool) {
  const LayerWeights& w = Weights(layer);
  const bool reads_same = w.mlp_norm == nullptr;  // as the experts
  if (!reads_same) {
    NormRows(config_.layer(layer).norm, w.mlp_norm, rows, NormedRow(rows.begin), pool);
  }
  AddExperts(rows, experts, pool);
  if (w.gate.n > 0 && rows.count() > 0) {
    ActivatedRows x = {experts.activations, experts.activations_stride_bytes};
    // It serves both, unless experts are of a type with other activations.
    const bool serves = reads_same && x.data != nullptr &&
                        ActivationTypeOf(kernels_.numerics, w.gate.type) ==
                            ActivationTypeOf(kernels_.numerics, experts.type);
    if (!serves) {
      x = activations_.Of(NormedRow(rows.begin), norm_stride_, rows.count(), w.gate, pool);
    }
    Mlp(w, x, rows, pool);
    const bool gated = w.shared_gate.n > 0;
    if (gated) {
      RowLogits(w.shared_gate, nullptr, rows, NormedRow(rows.begin), router_out_.as<float>(), pool);
    }
    const auto scale = static_cast<float>(config_.layer(layer).residual_scale);
    AddOut(rows, pool, [&](int64_t row) {
      return gated ? scale / (1.0f + std::exp(-router_out_.as<float>()[row])) : scale;
    });
  }
  AddExperts(rows, deferred, pool);
}

void HostDense::Mlp(const LayerWeights& w, const ActivatedRows& x, RowRange rows,
                    ThreadPool& pool) {
  GateUpArgs gate_up;
  gate_up.x = x.data;
  gate_up.x_stride_bytes = x.stride_bytes;
  gate_up.m = rows.count();
  gate_up.gate = w.gate;
  gate_up.up = w.up;
  gate_up.h = mlp_hidden_.data();
  gate_up.h_stride_bytes =
      ActivationRowBytes(ActivationTypeOf(kernels_.numerics, w.down.type), w.gate.n);
  ParallelGateUp(pool, kernels_, gate_up);
  MultiplyRows(pool, kernels_, {mlp_hidden_.data(), gate_up.h_stride_bytes}, rows.count(), w.down,
               OutRow(rows.begin), config_.hidden_size);
}

void HostDense::Head(std::span<const int32_t> rows, float* logits) {
  const int64_t count = std::ssize(rows);
  ForRows(pool_, {0, count}, [&](int64_t i) {
    Norm(config_.final_norm, weights_.final_norm, HiddenRow(rows[static_cast<size_t>(i)]),
         NormedRow(i));
  });
  const ActivatedRows x =
      activations_.Of(normed_.as<float>(), norm_stride_, count, weights_.head, pool_);
  MultiplyRows(pool_, kernels_, x, count, weights_.head, logits, config_.vocab_size);
  const auto divisor = static_cast<float>(config_.logit_divisor);
  if (divisor == 1.0f) return;
  ForRows(pool_, {0, count}, [&](int64_t i) {
    float* const row = logits + i * config_.vocab_size;
    for (int64_t token = 0; token < config_.vocab_size; ++token) row[token] /= divisor;
  });
}

void HostDense::Greedy(std::span<const int32_t> rows, int32_t* tokens) {
  std::vector<float> logits(static_cast<size_t>(config_.vocab_size));
  for (size_t i = 0; i < rows.size(); ++i) {
    Head(rows.subspan(i, 1), logits.data());
    const bool finite =
        std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
    tokens[i] = finite ? ArgMax(logits) : -1;
  }
}

}  // namespace moesaic
