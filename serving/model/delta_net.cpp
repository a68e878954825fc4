#include "serving/model/delta_net.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/units.h"
#include "kernels/cpu/delta_net.h"

namespace moesaic {
namespace {

constexpr double kHeadNormEps = 1e-6;  // of queries and keys, in all families

int64_t ConvStateFloats(const DeltaNetSpec& spec) {
  return (spec.conv_width - 1) * ConvStride(spec);
}

int64_t HeadFloats(const DeltaNetSpec& spec) {
  return DeltaStateFloats(spec.key_dim, spec.value_dim);
}

int64_t LayerFloats(const DeltaNetSpec& spec) {
  return ConvStateFloats(spec) + spec.value_heads * HeadFloats(spec);
}

// Decays and betas of a step's tokens.
int64_t ScratchFloats(const ModelLimits& limits) { return 2 * limits.max_batch_tokens; }

// The first of `count` values of a row behind queries, keys and values.
int64_t GatesAt(const DeltaNetSpec& spec) { return spec.channels(); }
int64_t RatesAt(const DeltaNetSpec& spec) { return spec.channels() + spec.value_width(); }

double Softplus(double x) { return x > 30.0 ? x : std::log1p(std::exp(x)); }

}  // namespace

MixerWidths WidthsOf(const DeltaNetSpec& spec) {
  return {RatesAt(spec) + 2 * spec.value_heads, spec.value_width(), spec.value_width()};
}

uint64_t DeltaNet::SlotBytes(const ModelConfig& config) {
  const DeltaNetSpec* const spec = config.FindMixer<DeltaNetSpec>();
  if (spec == nullptr) return 0;
  return CheckedMul(static_cast<uint64_t>(LayerFloats(*spec)) * sizeof(float),
                    static_cast<uint64_t>(config.NumMixers<DeltaNetSpec>()), "recurrent state");
}

uint64_t DeltaNet::WorkspaceBytes(const ModelConfig& config, const ModelLimits& limits,
                                  int threads) {
  if (config.FindMixer<DeltaNetSpec>() == nullptr) return 0;
  return static_cast<uint64_t>(threads * ScratchFloats(limits)) * sizeof(float);
}

DeltaNet::DeltaNet(const ModelConfig& config, const ModelWeights& weights,
                   const CpuKernels& kernels, const ModelLimits& limits, int most_threads,
                   HostActivations& activations)
    : weights_(weights),
      kernels_(kernels),
      f32_kernels_(F32KernelsOf(kernels)),
      spec_(*config.FindMixer<DeltaNetSpec>()),
      num_layers_(config.NumMixers<DeltaNetSpec>()),
      most_threads_(most_threads),
      scratch_stride_(ScratchFloats(limits)),
      activations_(activations),
      state_(SlotBytes(config) * static_cast<uint64_t>(limits.num_state_slots)),
      scratch_(ZeroedFloats(most_threads * scratch_stride_)) {
  int64_t number = 0;
  for (const LayerSpec& layer : config.layers) {
    of_layer_.push_back(std::holds_alternative<DeltaNetSpec>(layer.mixer) ? number++ : -1);
  }
  // x / sqrt(sum x^2 + eps) is an RMS norm with weights 1 / sqrt(n) and an eps n times less;
  // queries are divided by sqrt(n) once more.
  const double n = static_cast<double>(spec_.key_dim);
  k_norm_.assign(static_cast<size_t>(spec_.key_dim), static_cast<float>(1.0 / std::sqrt(n)));
  q_norm_.assign(static_cast<size_t>(spec_.key_dim), static_cast<float>(1.0 / n));
}

float* DeltaNet::State(int64_t layer, int32_t slot) {
  if (slot < 0) return nullptr;
  const int64_t at = slot * num_layers_ + of_layer_[static_cast<size_t>(layer)];
  float* const state = state_.as<float>() + at * LayerFloats(spec_);
  CHECK_LE((at + 1) * LayerFloats(spec_) * static_cast<int64_t>(sizeof(float)),
           static_cast<int64_t>(state_.bytes()));
  return state;
}

void DeltaNet::PreAttention(int64_t layer, RowRange rows, const float* normed, int64_t stride,
                            const Rows& at, ThreadPool& pool) {
  const DeltaNetWeights& w = weights_.layers[static_cast<size_t>(layer)].delta_net();
  const ActivatedRows x =
      activations_.Of(normed, stride, rows.count(), w.in.matrices.front(), pool);
  float* const y = at.projected + rows.begin * at.projected_stride;
  MultiplyRows(pool, kernels_, x, rows.count(), w.in, y, at.projected_stride);
  MultiplyRows(pool, f32_kernels_, UnroundedRows(normed, stride), rows.count(), w.rates,
               y + RatesAt(spec_), at.projected_stride);
}

void DeltaNet::ListRuns(const SequenceSlice& slice, std::vector<Run>& runs) const {
  const SequenceState& state = slice.state;
  CHECK_GE(state.slot, 0);  // whoever makes the batch gives sequences of such models one
  const int32_t from = slice.start_position == 0 ? -1 : state.from;
  CHECK(slice.start_position == 0 || from >= 0);
  runs.clear();
  const int64_t before = state.snapshot >= 0 ? state.snapshot_tokens : 0;
  CHECK_LT(before, slice.num_tokens);
  if (before > 0) runs.push_back({slice.first_row, before, from, state.snapshot});
  runs.push_back({slice.first_row + before, slice.num_tokens - before,
                  before > 0 ? state.snapshot : from, state.slot});
}

void DeltaNet::Attend(int64_t layer, SliceRange slices, const Rows& at, ThreadPool& pool) {
  CHECK_LE(pool.threads(), most_threads_);  // whose scratch it uses
  CHECK(!at.by_device);
  at_ = at;
  const int64_t count = slices.end - slices.begin;
  if (std::ssize(runs_) < count) runs_.resize(static_cast<size_t>(count));
  for (int64_t s = 0; s < count; ++s) {
    ListRuns(batch_.slices[static_cast<size_t>(slices.begin + s)], runs_[static_cast<size_t>(s)]);
  }
  const int64_t heads = 2 * spec_.key_heads + spec_.value_heads;
  pool.ParallelFor(count * heads, [&](int64_t task, int) {
    for (const Run& run : runs_[static_cast<size_t>(task / heads)]) {
      Convolve(layer, run, task % heads);
    }
  });
  pool.ParallelFor(count * spec_.value_heads, [&](int64_t task, int worker) {
    for (const Run& run : runs_[static_cast<size_t>(task / spec_.value_heads)]) {
      Recur(layer, run, task % spec_.value_heads, scratch_.as<float>() + worker * scratch_stride_);
    }
  });
}

// Of queries, then of keys, then of values, in place; queries and keys are normed then.
void DeltaNet::Convolve(int64_t layer, const Run& run, int64_t head) {
  const DeltaNetWeights& w = weights_.layers[static_cast<size_t>(layer)].delta_net();
  const bool is_value = head >= 2 * spec_.key_heads;
  const int64_t channel =
      is_value ? 2 * spec_.key_width() + (head - 2 * spec_.key_heads) * spec_.value_dim
               : head * spec_.key_dim;
  const float* const from = State(layer, run.from);
  CausalConvArgs conv;
  conv.tokens = run.tokens;
  conv.channels = is_value ? spec_.value_dim : spec_.key_dim;
  conv.width = spec_.conv_width;
  conv.x = at_.projected + run.first_row * at_.projected_stride + channel;
  conv.stride = at_.projected_stride;
  conv.weight = w.conv + channel;
  conv.weight_stride = ConvStride(spec_);
  conv.from = from == nullptr ? nullptr : from + channel;
  conv.to = State(layer, run.to) + channel;
  conv.past_stride = ConvStride(spec_);
  kernels_.causal_conv(conv);
  if (is_value) return;
  const float* const norm = head < spec_.key_heads ? q_norm_.data() : k_norm_.data();
  const auto eps = static_cast<float>(kHeadNormEps / static_cast<double>(spec_.key_dim));
  for (int64_t t = 0; t < run.tokens; ++t) {
    float* const x = conv.x + t * conv.stride;
    kernels_.rms_norm(x, norm, eps, spec_.key_dim, x);
  }
}

// A value head of a run: the state, what is read from it, its norm and its gate.
void DeltaNet::Recur(int64_t layer, const Run& run, int64_t head, float* scratch) {
  const DeltaNetWeights& w = weights_.layers[static_cast<size_t>(layer)].delta_net();
  float* const rows = at_.projected + run.first_row * at_.projected_stride;
  float* const decays = scratch;
  float* const betas = scratch + scratch_stride_ / 2;
  for (int64_t t = 0; t < run.tokens; ++t) {
    const float* const rates = rows + t * at_.projected_stride + RatesAt(spec_);
    const double step =
        Softplus(static_cast<double>(rates[spec_.value_heads + head] + w.bias[head]));
    decays[t] = static_cast<float>(std::exp(-static_cast<double>(w.decay[head]) * step));
    betas[t] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(rates[head]))));
  }
  const int64_t key_head = spec_.by_turns ? head % spec_.key_heads : head / spec_.group();
  const int64_t in_layer = ConvStateFloats(spec_) + head * HeadFloats(spec_);
  const float* const from = State(layer, run.from);
  DeltaRuleArgs rule;
  rule.tokens = run.tokens;
  rule.key_dim = spec_.key_dim;
  rule.value_dim = spec_.value_dim;
  rule.q = rows + key_head * spec_.key_dim;
  rule.k = rows + spec_.key_width() + key_head * spec_.key_dim;
  rule.v = rows + 2 * spec_.key_width() + head * spec_.value_dim;
  rule.stride = at_.projected_stride;
  rule.decay = decays;
  rule.beta = betas;
  rule.from = from == nullptr ? nullptr : from + in_layer;
  rule.state = State(layer, run.to) + in_layer;
  rule.out = at_.mixed + run.first_row * at_.mixed_stride + head * spec_.value_dim;
  rule.out_stride = at_.mixed_stride;
  kernels_.delta_rule(rule);
  // Products take inputs in pairs; what another layer left in the place of a missing one may not
  // be a number.
  if (head + 1 == spec_.value_heads && spec_.value_width() % 2 != 0) {
    for (int64_t t = 0; t < run.tokens; ++t) rule.out[t * rule.out_stride + spec_.value_dim] = 0.0f;
  }
  const auto eps = static_cast<float>(spec_.norm.eps);
  for (int64_t t = 0; t < run.tokens; ++t) {
    float* const out = rule.out + t * rule.out_stride;
    kernels_.rms_norm(out, w.norm, eps, spec_.value_dim, out);
    kernels_.gate_row(RowGate::kSilu,
                      rows + t * at_.projected_stride + GatesAt(spec_) + head * spec_.value_dim,
                      spec_.value_dim, out);
  }
}

void DeltaNet::Project(int64_t layer, RowRange rows, const Rows& at, float* y, ThreadPool& pool) {
  const DeltaNetWeights& w = weights_.layers[static_cast<size_t>(layer)].delta_net();
  const ActivatedRows x = activations_.Of(at.mixed + rows.begin * at.mixed_stride, at.mixed_stride,
                                          rows.count(), w.output, pool);
  MultiplyRows(pool, kernels_, x, rows.count(), w.output, y, w.output.n);
}

}  // namespace moesaic
