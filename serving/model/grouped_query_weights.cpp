#include "serving/model/grouped_query_weights.h"

namespace moesaic {

int64_t QNormWidth(const GroupedQuerySpec& attention) {
  return attention.qk_norm == QkNorm::kProjection ? attention.q_width() : attention.head_dim;
}

int64_t KNormWidth(const GroupedQuerySpec& attention) {
  return attention.qk_norm == QkNorm::kProjection ? attention.kv_width() : attention.head_dim;
}

GroupedQueryWeights LayOutMixer(const GroupedQuerySpec& spec, int64_t hidden, WeightType type,
                                WeightArena& arena) {
  GroupedQueryWeights w;
  w.qkv = arena.Matrix(type, spec.qkv_width(), hidden);
  if (spec.qkv_bias) w.qkv_bias = arena.Vector(spec.qkv_width());
  if (spec.qk_norm != QkNorm::kNone) {
    w.q_norm = arena.Vector(QNormWidth(spec));
    w.k_norm = arena.Vector(KNormWidth(spec));
  }
  w.output = arena.Matrix(type, hidden, spec.q_width());
  if (spec.output_bias) w.output_bias = arena.Vector(hidden);
  return w;
}

void LoadMixer(const GroupedQuerySpec& spec, const GroupedQueryWeights& w, const TensorPlan& plan,
               int64_t layer, WeightLoader& load) {
  const auto at = [&](TensorSlot slot) { return plan.At(slot, layer); };
  const int64_t q_rows = spec.q_width();
  const int64_t kv_rows = spec.kv_width();
  load.Matrix(
      w.qkv,
      {{at(TensorSlot::kQ), q_rows}, {at(TensorSlot::kK), kv_rows}, {at(TensorSlot::kV), kv_rows}});
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
}

}  // namespace moesaic
