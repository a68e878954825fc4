#include "serving/model/grouped_query_weights.h"

#include <algorithm>
#include <vector>

namespace moesaic {
namespace {

// Of GroupedQueryWeights::qkv.
std::vector<SlotRows> ProjectedRows(const GroupedQuerySpec& spec) {
  std::vector<SlotRows> rows = {{TensorSlot::kQ, spec.q_width()},
                                {TensorSlot::kK, spec.kv_width()},
                                {TensorSlot::kV, spec.kv_width()}};
  if (spec.output_gate) rows.push_back({TensorSlot::kAttentionGate, spec.q_width()});
  return rows;
}

// A sink is a score without a value: a partial result whose sum of exponentials is 1.
void LoadSinks(const GroupedQuerySpec& spec, const PlannedTensor& tensor, WeightLoader& load,
               const float* target) {
  std::vector<float> scores(static_cast<size_t>(spec.heads));
  load.Vector(scores.data(), {{tensor, spec.heads}});
  const int64_t stride = AttentionPartialFloats(spec.head_dim);
  auto* partial = const_cast<float*>(target);
  for (const float score : scores) {
    std::fill_n(partial, stride, 0.0f);
    float* const max_and_sum = partial + stride - kPanelOutputs;
    max_and_sum[0] = score;
    max_and_sum[1] = 1.0f;
    partial += stride;
  }
}

}  // namespace

int64_t QNormWidth(const GroupedQuerySpec& attention) {
  return attention.qk_norm == QkNorm::kProjection ? attention.q_width() : attention.head_dim;
}

int64_t KNormWidth(const GroupedQuerySpec& attention) {
  return attention.qk_norm == QkNorm::kProjection ? attention.kv_width() : attention.head_dim;
}

GroupedQueryWeights LayOutMixer(const GroupedQuerySpec& spec, int64_t hidden, WeightType type,
                                WeightArena& arena) {
  GroupedQueryWeights w;
  w.qkv = arena.Rows(type, hidden, ProjectedRows(spec));
  if (spec.qkv_bias) w.qkv_bias = arena.Vector(spec.qkv_width());
  if (spec.qk_norm != QkNorm::kNone) {
    w.q_norm = arena.Vector(QNormWidth(spec));
    w.k_norm = arena.Vector(KNormWidth(spec));
  }
  w.output = arena.Matrix(type, hidden, spec.q_width(), TensorSlot::kOutput);
  if (spec.output_bias) w.output_bias = arena.Vector(hidden);
  if (spec.sinks) w.sinks = arena.Vector(spec.heads * AttentionPartialFloats(spec.head_dim));
  return w;
}

void LoadMixer(const GroupedQuerySpec& spec, const GroupedQueryWeights& w, const TensorPlan& plan,
               int64_t layer, WeightLoader& load) {
  const auto at = [&](TensorSlot slot) { return plan.At(slot, layer); };
  const int64_t q_rows = spec.q_width();
  const int64_t kv_rows = spec.kv_width();
  load.Matrices(w.qkv, ProjectedRows(spec), plan, layer);
  if (w.qkv_bias != nullptr) {
    load.Vector(w.qkv_bias, {{at(TensorSlot::kQBias), q_rows},
                             {at(TensorSlot::kKBias), kv_rows},
                             {at(TensorSlot::kVBias), kv_rows}});
  }
  if (w.q_norm != nullptr) {
    load.Norm(w.q_norm, spec.norm, at(TensorSlot::kQNorm), QNormWidth(spec));
    load.Norm(w.k_norm, spec.norm, at(TensorSlot::kKNorm), KNormWidth(spec));
  }
  load.Matrix(w.output, at(TensorSlot::kOutput));
  if (w.output_bias != nullptr) {
    load.Vector(w.output_bias, {{at(TensorSlot::kOutputBias), w.output.n}});
  }
  if (w.sinks != nullptr) LoadSinks(spec, at(TensorSlot::kSinks), load, w.sinks);
}

}  // namespace moesaic
