// The modules of a Model's layer around attention: norms, projections, router, experts.

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "kernels/cpu/moe.h"
#include "serving/model/choose_experts.h"
#include "serving/model/model.h"

namespace moesaic {
namespace {

// Experts of a token that are never deferred (KTransformers: at least two immediate).
constexpr int64_t kLeastImmediate = 2;

}  // namespace

const std::byte* Model::Activate(const float* x, int64_t stride, int64_t rows,
                                 const PackedMatrix& w, ThreadPool& pool, int64_t* stride_bytes) {
  const ActivationType type = ActivationTypeOf(kernels_.numerics, w.type);
  if (type == ActivationType::kF32) {  // the rows are what the products want already
    *stride_bytes = stride * static_cast<int64_t>(sizeof(float));
    return reinterpret_cast<const std::byte*>(x);
  }
  const int64_t row_bytes = ActivationRowBytes(type, w.k);
  *stride_bytes = row_bytes;
  ForRows(pool, {0, rows}, [&](int64_t row) {
    kernels_.prepare_activations(x + row * stride, stride, 1, w.k, type,
                                 activations_.data() + row * row_bytes, row_bytes);
  });
  return activations_.data();
}

void Model::NormRows(const NormSpec& norm, const float* weight, RowRange rows, ThreadPool& pool) {
  const auto eps = static_cast<float>(norm.eps);
  ForRows(pool, rows, [&](int64_t row) {
    kernels_.rms_norm(HiddenRow(row), weight, eps, config_.hidden_size, NormedRow(row));
  });
}

// hidden += scale(row) * mlp_out.
void Model::AddMlpOut(RowRange rows, ThreadPool& pool, FunctionRef<float(int64_t row)> scale) {
  ForRows(pool, rows, [&](int64_t row) {
    kernels_.axpy(scale(row), MlpOutRow(row), config_.hidden_size, HiddenRow(row));
  });
}

void Model::PreAttention(int64_t layer, RowRange rows, ThreadPool& pool, float* qkv_rows) {
  if (dense_in_use()) {
    OnDense([&] { modules_->PreAttention(layer, rows); });
    return;
  }
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  NormRows(config_.layer(layer).norm, w.input_norm, rows, pool);
  MatmulArgs qkv;
  qkv.x =
      Activate(NormedRow(rows.begin), norm_stride_, rows.count(), w.qkv, pool, &qkv.x_stride_bytes);
  qkv.m = rows.count();
  qkv.w = w.qkv;
  qkv.bias = w.qkv_bias;
  qkv.y = qkv_rows + rows.begin * qkv_stride_;
  qkv.y_stride = qkv_stride_;
  ParallelMatmul(pool, kernels_, qkv);
}

void Model::Project(int64_t layer, RowRange rows, ThreadPool& pool, const float* attention_rows) {
  if (dense_in_use()) {
    modules_->Project(layer, rows);
    return;
  }
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  MatmulArgs out;
  out.x = Activate(attention_rows + rows.begin * attn_stride_, attn_stride_, rows.count(), w.output,
                   pool, &out.x_stride_bytes);
  out.m = rows.count();
  out.w = w.output;
  out.bias = w.output_bias;
  out.y = MlpOutRow(rows.begin);
  out.y_stride = config_.hidden_size;
  ParallelMatmul(pool, kernels_, out);
  AddMlpOut(rows, pool, [](int64_t) { return 1.0f; });
}

void Model::Route(int64_t layer, RowRange rows, ThreadPool& pool) {
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const LayerSpec& spec = config_.layer(layer);
  if (dense_in_use()) {
    const bool normed = runner_.NeedsHostRows();
    DensePart::Routed routed;
    OnDense([&] { routed = modules_->Route(layer, rows, normed); });
    if (spec.sparse()) TakeRouting(rows, routed, normed, pool);
    return;
  }
  NormRows(spec.norm, w.post_attention_norm, rows, pool);
  if (!spec.sparse()) return;
  const RouterSpec& choice = spec.experts().router;
  MatmulArgs router;
  router.x = reinterpret_cast<const std::byte*>(NormedRow(rows.begin));
  router.x_stride_bytes = norm_stride_ * static_cast<int64_t>(sizeof(float));
  router.m = rows.count();
  router.w = w.router;
  router.bias = w.router_bias;
  router.y = router_out_.as<float>() + rows.begin * choice.experts;
  router.y_stride = choice.experts;
  ParallelMatmul(pool, f32_kernels_, router);
  ForRows(pool, rows, [&](int64_t row) {
    ChooseExperts(choice, kernels_, router_out_.as<float>() + row * choice.experts,
                  w.router_correction, expert_ids_.data() + row * choice.top_k,
                  expert_weights_.data() + row * choice.top_k);
  });
}

void Model::ShowRouting(int64_t layer, RowRange rows, RoutingHook& hook) {
  if (!config_.is_sparse(layer)) return;
  const auto first = static_cast<size_t>(rows.begin * config_.top_k());
  const auto pairs = static_cast<size_t>(rows.count() * config_.top_k());
  hook.OnRouting(layer, batch_, std::span(expert_ids_).subspan(first, pairs),
                 std::span(expert_weights_).subspan(first, pairs));
}

bool Model::MarkDeferred(int64_t layer) {
  const int64_t k = config_.top_k();
  const int64_t defer = std::min(limits_.defer_experts, k - kLeastImmediate);
  if (defer <= 0 || layer + 1 == config_.num_layers()) return false;
  bool any = false;
  for (const SequenceSlice& slice : batch_.slices) {
    for (int64_t i = 0; i < slice.num_tokens; ++i) {
      const int64_t row = slice.first_row + i;
      const float* const weights = expert_weights_.data() + row * k;
      uint8_t* const deferred = deferred_.data() + row * k;
      std::fill_n(deferred, k, uint8_t{0});
      if (slice.start_position + i < slice.decode_from) continue;
      any = true;
      for (int64_t n = 0; n < defer; ++n) {
        // The lowest weight; of equal ones the last slot, whose expert was chosen last.
        int64_t lowest = -1;
        for (int64_t slot = 0; slot < k; ++slot) {
          if (deferred[slot] == 0 && (lowest < 0 || !(weights[slot] > weights[lowest]))) {
            lowest = slot;
          }
        }
        deferred[lowest] = 1;
      }
    }
  }
  return any;
}

ExpertStats Model::RunMlp(int64_t layer, RowRange rows, ThreadPool& pool) {
  ExpertStats stats = RunMlpOf(layer, rows, pool);
  if (limits_.defer_experts > 0) {
    CHECK_EQ(rows.count(), std::ssize(batch_.tokens));
    stats += runner_.AddDeferred(HiddenRow(rows.begin), pool);
  }
  return stats;
}

ExpertStats Model::RunMlpOf(int64_t layer, RowRange rows, ThreadPool& pool) {
  if (rows.count() == 0) return {};
  if (dense_in_use()) return RunRoutedOnDevice(layer, rows, pool);
  const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const bool sparse = config_.is_sparse(layer);
  ExpertStats stats;
  const auto activate = [&](const PackedMatrix& first, int64_t* stride_bytes) {
    return Activate(NormedRow(rows.begin), norm_stride_, rows.count(), first, pool, stride_bytes);
  };
  int64_t stride_bytes = 0;
  const std::byte* x = nullptr;
  if (sparse) {
    const PackedMatrix first = runner_.Gate();
    x = activate(first, &stride_bytes);
    const int64_t pair = rows.begin * config_.top_k();
    stats = runner_.Run(layer,
                        {.tokens = rows.count(),
                         .x = NormedRow(rows.begin),
                         .x_stride = norm_stride_,
                         .activations = x,
                         .activations_stride_bytes = stride_bytes},
                        {.ids = expert_ids_.data() + pair,
                         .weights = expert_weights_.data() + pair,
                         .deferred = MarkDeferred(layer) ? deferred_.data() : nullptr},
                        HiddenRow(rows.begin), pool);
    if (w.gate.n == 0) return stats;
    CHECK(w.gate.type == first.type);  // x serves both
  }
  if (x == nullptr) x = activate(w.gate, &stride_bytes);
  Mlp(w, x, stride_bytes, rows, pool);
  const bool gated = sparse && w.shared_gate.n > 0;
  if (gated) {
    MatmulArgs gate;
    gate.x = reinterpret_cast<const std::byte*>(NormedRow(rows.begin));
    gate.x_stride_bytes = norm_stride_ * static_cast<int64_t>(sizeof(float));
    gate.m = rows.count();
    gate.w = w.shared_gate;
    gate.y = router_out_.as<float>() + rows.begin;
    gate.y_stride = 1;
    ParallelMatmul(pool, f32_kernels_, gate);
  }
  AddMlpOut(rows, pool, [&](int64_t row) {
    return gated ? 1.0f / (1.0f + std::exp(-router_out_.as<float>()[row])) : 1.0f;
  });
  return stats;
}

void Model::Mlp(const LayerWeights& w, const std::byte* x, int64_t x_stride_bytes, RowRange rows,
                ThreadPool& pool) {
  GateUpArgs gate_up;
  gate_up.x = x;
  gate_up.x_stride_bytes = x_stride_bytes;
  gate_up.m = rows.count();
  gate_up.gate = w.gate;
  gate_up.up = w.up;
  gate_up.h = mlp_hidden_.data();
  gate_up.h_stride_bytes =
      ActivationRowBytes(ActivationTypeOf(kernels_.numerics, w.down.type), w.gate.n);
  ParallelGateUp(pool, kernels_, gate_up);
  MatmulArgs down;
  down.x = mlp_hidden_.data();
  down.x_stride_bytes = gate_up.h_stride_bytes;
  down.m = rows.count();
  down.w = w.down;
  down.y = MlpOutRow(rows.begin);
  down.y_stride = config_.hidden_size;
  ParallelMatmul(pool, kernels_, down);
}

}  // namespace moesaic
