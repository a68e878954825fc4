#include "serving/model/delta_net_weights.h"

#include <cmath>
#include <vector>

namespace moesaic {
namespace {

// Of DeltaNetWeights::in.
std::vector<SlotRows> ProjectedRows(const DeltaNetSpec& spec) {
  return {{TensorSlot::kDeltaQ, spec.key_width()},
          {TensorSlot::kDeltaK, spec.key_width()},
          {TensorSlot::kDeltaV, spec.value_width()},
          {TensorSlot::kDeltaGate, spec.value_width()}};
}

// Stored [channels, conv_width].
void LoadConv(const DeltaNetSpec& spec, const PlannedTensor& tensor, WeightLoader& load,
              const float* target) {
  const int64_t channels = spec.channels();
  std::vector<float> stored(static_cast<size_t>(channels * spec.conv_width));
  load.Rows(tensor, channels, spec.conv_width, 0, channels, stored.data());
  auto* const out = const_cast<float*>(target);
  for (int64_t channel = 0; channel < channels; ++channel) {
    for (int64_t j = 0; j < spec.conv_width; ++j) {
      out[j * ConvStride(spec) + channel] =
          stored[static_cast<size_t>(channel * spec.conv_width + j)];
    }
  }
}

}  // namespace

DeltaNetWeights LayOutMixer(const DeltaNetSpec& spec, int64_t hidden, WeightType type,
                            WeightArena& arena) {
  const bool f32 = type == WeightType::kF32 || IsGguf(type);
  const WeightType exact = f32 ? WeightType::kF32 : WeightType::kBf16;
  DeltaNetWeights w;
  w.in = arena.Rows(type, hidden, ProjectedRows(spec));
  w.rates = arena.Computed(exact, 2 * spec.value_heads, hidden);
  w.conv = arena.Vector(spec.conv_width * ConvStride(spec));
  w.decay = arena.Vector(spec.value_heads);
  w.bias = arena.Vector(spec.value_heads);
  w.norm = arena.Vector(spec.value_dim);
  w.output = arena.Matrix(type, hidden, spec.value_width(), TensorSlot::kDeltaOutput);
  return w;
}

void LoadMixer(const DeltaNetSpec& spec, const DeltaNetWeights& w, const TensorPlan& plan,
               int64_t layer, WeightLoader& load) {
  const auto at = [&](TensorSlot slot) { return plan.At(slot, layer); };
  load.Matrices(w.in, ProjectedRows(spec), plan, layer);
  load.Matrix(w.rates, {{at(TensorSlot::kDeltaBeta), spec.value_heads},
                        {at(TensorSlot::kDeltaStep), spec.value_heads}});
  LoadConv(spec, at(TensorSlot::kDeltaConv), load, w.conv);
  load.Vector(w.decay, {{at(TensorSlot::kDeltaDecay), spec.value_heads}});
  auto* const decay = const_cast<float*>(w.decay);
  const bool rates = at(TensorSlot::kDeltaDecay).Find<NegativeRates>() != nullptr;
  for (int64_t head = 0; head < spec.value_heads; ++head) {
    decay[head] = rates ? -decay[head] : std::exp(decay[head]);
  }
  load.Vector(w.bias, {{at(TensorSlot::kDeltaStepBias), spec.value_heads}});
  load.Norm(w.norm, spec.norm, at(TensorSlot::kDeltaNorm), spec.value_dim);
  load.Matrix(w.output, at(TensorSlot::kDeltaOutput));
}

}  // namespace moesaic
