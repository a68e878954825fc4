// What a layer of a DenseOperator queues: norms, products, attention, routing, MLPs.
#include "core/base/check.h"
#include "serving/model/dense_operator.h"
#include "serving/model/dense_sizes.h"
#include "serving/model/device_rows.h"

namespace moesaic {

// Of the residual stream into x_ and, if wanted, normed_.
void DenseOperator::Norm(int64_t layer, const float* weight, bool normed) {
  const int64_t n = config_.hidden_size;
  const cuda::RmsNormArgs args = {.x = FloatsOf(hidden_) + first_row_ * n,
                                  .rows = run_rows_,
                                  .n = n,
                                  .token_stride = n,
                                  .weight = weight,
                                  .eps = static_cast<float>(config_.layer(layer).norm.eps),
                                  .out = normed ? FloatsOf(normed_) + first_row_ * n : nullptr,
                                  .out_bf16 = Bf16Of(x_) + first_row_ * cuda::ActivationStride(n)};
  stream_->Launch(
      [run = kernels_.rms_norm, args](cuda::StreamHandle stream) { return run(args, stream); });
}

void DenseOperator::Product(const PackedMatrix& w, const DeviceBuffer& x, int64_t rows,
                            const DeviceBuffer& y, bool accumulate) {
  const cuda::ProductArgs args = {.x = Bf16Of(x) + first_row_ * cuda::ActivationStride(w.k),
                                  .rows = rows,
                                  .matrix = w.data,
                                  .type = GpuWeights(w.type),
                                  .n = w.n,
                                  .k = w.k,
                                  .y = FloatsOf(y) + first_row_ * w.n,
                                  .accumulate = accumulate};
  stream_->Launch([run = kernels_.product, args](cuda::StreamHandle stream) {
    return run(args, cuda::ProductPath::kMatrix, stream);
  });
}

// Of normed_, which is not rounded: [rows, w.n].
void DenseOperator::Logits(const PackedMatrix& w, const DeviceBuffer& out) {
  CHECK(w.type == WeightType::kBf16 || w.type == WeightType::kF32);
  const cuda::RouterLogitsArgs args = {.x = FloatsOf(normed_) + first_row_ * w.k,
                                       .matrix = w.data,
                                       .f32_weights = w.type == WeightType::kF32,
                                       .tokens = run_rows_,
                                       .experts = w.n,
                                       .k = w.k,
                                       .logits = FloatsOf(out) + first_row_ * w.n};
  stream_->Launch([run = kernels_.router_logits, args](cuda::StreamHandle stream) {
    return run(args, stream);
  });
}

// In place, of `heads` runs of n floats of each row.
void DenseOperator::NormHeads(const NormSpec& norm, float* first, int64_t heads, int64_t n,
                              const float* weight) {
  const cuda::RmsNormArgs args = {.x = first,
                                  .rows = run_rows_ * heads,
                                  .n = n,
                                  .heads = heads,
                                  .token_stride = qkv_width_,
                                  .weight = weight,
                                  .eps = static_cast<float>(norm.eps),
                                  .out = first};
  stream_->Launch(
      [run = kernels_.rms_norm, args](cuda::StreamHandle stream) { return run(args, stream); });
}

// Queries, keys and values, rotated.
void DenseOperator::Queries(int64_t layer, const LayerWeights& w) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t q_width = spec.q_width();
  const int64_t kv_width = spec.kv_width();
  float* const q = FloatsOf(qkv_) + first_row_ * qkv_width_;
  Product(w.qkv, x_, run_rows_, qkv_);
  if (spec.qk_norm == QkNorm::kPerHead) {
    NormHeads(spec.norm, q, spec.heads, spec.head_dim, w.q_norm);
    NormHeads(spec.norm, q + q_width, spec.kv_heads, spec.head_dim, w.k_norm);
  } else if (spec.qk_norm == QkNorm::kProjection) {
    NormHeads(spec.norm, q, 1, q_width, w.q_norm);
    NormHeads(spec.norm, q + q_width, 1, kv_width, w.k_norm);
  }
  const cuda::RopeArgs rope = {.x = q,
                               .tokens = run_rows_,
                               .heads = spec.heads + spec.kv_heads,  // keys follow queries
                               .head_dim = spec.head_dim,
                               .token_stride = qkv_width_,
                               .positions = device_positions_ + first_row_,
                               .cos = FloatsOf(cos_),
                               .sin = FloatsOf(sin_)};
  stream_->Launch(
      [run = kernels_.rope, rope](cuda::StreamHandle stream) { return run(rope, stream); });
}

void DenseOperator::Attention(int64_t layer, const LayerWeights& w) {
  const GroupedQuerySpec& spec = config_.layer(layer).attention();
  const int64_t q_width = spec.q_width();
  const int64_t kv_width = spec.kv_width();
  const float* const q = FloatsOf(qkv_);
  Queries(layer, w);
  cuda::AttentionArgs attend = attend_;
  attend.scale = static_cast<float>(spec.scale);
  attend.cache.data = kv_.data() + layer * limits_.num_kv_blocks * block_bytes_;
  attend.window = spec.window;
  const cuda::StoreKvArgs store = {.cache = attend.cache,
                                   .keys = q + q_width,
                                   .values = q + q_width + kv_width,
                                   .token_stride = qkv_width_,
                                   .tokens = run_rows_,
                                   .slots = device_slots_};
  stream_->Launch(
      [run = kernels_.store_kv, store](cuda::StreamHandle stream) { return run(store, stream); });
  stream_->Launch([run = kernels_.attention, attend](cuda::StreamHandle stream) {
    return run(attend, stream);
  });
  Product(w.output, attention_, run_rows_, hidden_, true);
}

// Softmax over all experts in f32, then the top k.
void DenseOperator::QueueRouting(int64_t layer, const LayerWeights& w) {
  const RouterSpec& router = config_.layer(layer).experts().router;
  Logits(w.router, scores_);
  const int64_t first_number = 2 * first_row_ * router.top_k;
  int32_t* const ids = IntsOf(routing_) + first_number;
  const cuda::RouterTopKArgs args = {
      .logits = FloatsOf(scores_) + first_row_ * router.experts,
      .tokens = run_rows_,
      .experts = router.experts,
      .top_k = router.top_k,
      .normalize = router.norm == RouterNorm::kSum,
      .ids = ids,
      .weights = reinterpret_cast<float*>(ids + run_rows_ * router.top_k)};
  stream_->Launch(
      [run = kernels_.router_top_k, args](cuda::StreamHandle stream) { return run(args, stream); });
}

// What the host needs of a sparse layer.
void DenseOperator::BringRouting() {
  Bring(routing_, 2 * first_row_ * config_.top_k(), 2 * run_rows_ * config_.top_k(), host_routing_);
  if (limits_.host_attention) return;
  BringNormed();
  Bring(hidden_, 0, run_rows_ * config_.hidden_size, host_hidden_);
}

void DenseOperator::BringNormed() {
  const int64_t n = config_.hidden_size;
  Bring(normed_, first_row_ * n, run_rows_ * n, host_normed_);
}

// So many numbers of four bytes, to the same place.
void DenseOperator::Bring(const DeviceBuffer& from, int64_t first, int64_t count,
                          const HostBuffer& to) {
  stream_->CopyToHost(to.span().subspan(Floats(first), Floats(count)),
                      from.Subspan(Floats(first), Floats(count)));
}

// The MLP of a dense layer or the shared expert of a sparse one.
void DenseOperator::Mlp(const LayerWeights& w) {
  Product(w.gate, x_, run_rows_, gate_);
  Product(w.up, x_, run_rows_, up_);
  const int64_t n = w.gate.n;
  const cuda::SwiGluArgs activation = {.gate = FloatsOf(gate_) + first_row_ * n,
                                       .up = FloatsOf(up_) + first_row_ * n,
                                       .rows = run_rows_,
                                       .n = n,
                                       .out = Bf16Of(h_) + first_row_ * cuda::ActivationStride(n)};
  stream_->Launch([run = kernels_.swiglu, activation](cuda::StreamHandle stream) {
    return run(activation, stream);
  });
  if (w.shared_gate.n == 0) {
    Product(w.down, h_, run_rows_, hidden_, true);
    return;
  }
  Product(w.down, h_, run_rows_, out_);
  Logits(w.shared_gate, scores_);
  const int64_t first = first_row_ * config_.hidden_size;
  const cuda::AddGatedArgs add = {.x = FloatsOf(out_) + first,
                                  .gate = FloatsOf(scores_) + first_row_,
                                  .rows = run_rows_,
                                  .n = config_.hidden_size,
                                  .y = FloatsOf(hidden_) + first};
  stream_->Launch(
      [run = kernels_.add_gated, add](cuda::StreamHandle stream) { return run(add, stream); });
}

}  // namespace moesaic
