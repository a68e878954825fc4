#include "serving/model/weights.h"

#include <array>
#include <type_traits>
#include <utility>
#include <variant>

#include "core/device/numa_memory.h"
#include "serving/model/numa_slices.h"
#include "serving/model/weight_arena.h"
#include "serving/model/weight_loader.h"

namespace moesaic {

uint64_t ModelWeights::LayOut(const ModelConfig& c, WeightType type, std::byte* base,
                              std::vector<PackedMatrix>* matrices) {
  WeightArena arena(c, base, matrices);
  // A checkpoint whose values are not bf16 keeps its router exact: a rounded router picks other
  // experts.
  const bool rounded =
      c.checkpoint_dtype == DType::kBF16 && type != WeightType::kF32 && !IsGguf(type);
  const WeightType router_type = rounded ? WeightType::kBf16 : WeightType::kF32;
  const WeightType head_type = TraitsOf(type).head;
  type = TraitsOf(type).dense;
  const TensorSlot head_slot = c.tie_word_embeddings ? TensorSlot::kEmbedding : TensorSlot::kHead;
  head = arena.Matrix(head_type, c.vocab_size, c.hidden_size, head_slot);
  embedding = c.tie_word_embeddings
                  ? head
                  : arena.Matrix(type, c.vocab_size, c.hidden_size, TensorSlot::kEmbedding);
  final_norm = arena.Vector(c.hidden_size);
  layers.assign(c.layers.size(), LayerWeights{});
  for (size_t l = 0; l < layers.size(); ++l) {
    const LayerSpec& spec = c.layers[l];
    LayerWeights& w = layers[l];
    arena.BeginLayer(static_cast<int64_t>(l));
    w.input_norm = arena.Vector(c.hidden_size);
    w.post_attention_norm = arena.Vector(c.hidden_size);
    w.mixer = std::visit(
        [&](const auto& mixer) -> MixerWeights {
          return {LayOutMixer(mixer, c.hidden_size, type, arena)};
        },
        spec.mixer);
    if (spec.sparse()) {
      const RouterSpec& router = spec.experts().router;
      w.router = arena.Computed(router.f32_weights ? WeightType::kF32 : router_type, router.experts,
                                c.hidden_size);
      if (router.logit_bias) w.router_bias = arena.Vector(router.experts);
      if (router.correction_bias) w.router_correction = arena.Vector(router.experts);
      if (const MlpSpec& expert = spec.experts().expert; expert.bias) {
        w.expert_gate_bias = arena.Vector(router.experts * expert.width);
        w.expert_up_bias = arena.Vector(router.experts * expert.width);
        w.expert_down_bias = arena.Vector(router.experts * c.hidden_size);
      }
      if (spec.experts().shared_gate) w.shared_gate = arena.Computed(router_type, 1, c.hidden_size);
    }
    const int64_t width = spec.dense_mlp().width;
    if (width > 0) {
      const MlpSlots& mlp = spec.sparse() ? kSharedMlpSlots : kDenseMlpSlots;
      // One product takes both.
      const WeightType of_both =
          arena.TypeOf(arena.TypeOf(type, c.hidden_size, mlp[0]), c.hidden_size, mlp[1]);
      w.gate = arena.Matrix(of_both, width, c.hidden_size, mlp[0]);
      w.up = arena.Matrix(of_both, width, c.hidden_size, mlp[1]);
      w.down = arena.Matrix(type, c.hidden_size, width, mlp[2]);
      TakeSameActivations({&w.gate, &w.up, &w.down});
    }
  }
  return arena.used_bytes();
}

uint64_t ModelWeights::Bytes(const ModelConfig& config, WeightType type) {
  ModelWeights measured;
  return measured.LayOut(config, type, nullptr);
}

ModelWeights ModelWeights::Shapes(const ModelConfig& config, WeightType type) {
  return At(config, type, nullptr);
}

ModelWeights ModelWeights::At(const ModelConfig& config, WeightType type, std::byte* base) {
  ModelWeights weights;
  weights.LayOut(config, type, base);
  return weights;
}

ModelWeights ModelWeights::Load(const ModelConfig& c, WeightType type, const TensorSource& source,
                                const CpuKernels& kernels, ThreadPool& pool) {
  ModelWeights weights;
  weights.arena_ = AlignedBuffer(Bytes(c, type));
  std::vector<PackedMatrix> matrices;
  weights.LayOut(c, type, weights.arena_.data(), &matrices);
  TakePagesFromNodes(weights.arena_.span(),
                     MatrixStretches(matrices, weights.arena_.data(), pool.node_ids()));
  WeightLoader load(source, kernels, pool);
  weights.Read(c, load);
  return weights;
}

std::set<std::string> ModelWeights::UncodedTensors(const ModelConfig& c, WeightType type,
                                                   const TensorSource& source,
                                                   const CpuKernels& kernels, ThreadPool& pool) {
  // Of the matrices' memory nothing is touched: they are only coded.
  AlignedBuffer memory(Bytes(c, type));
  const ModelWeights weights = At(c, type, memory.data());
  std::set<std::string> uncoded;
  WeightLoader load(source, kernels, pool);
  load.OnlyCode(&uncoded);
  weights.Read(c, load);
  return uncoded;
}

void ModelWeights::Read(const ModelConfig& c, WeightLoader& load) const {
  const TensorPlan& plan = c.tensors;
  load.Matrix(embedding, plan.At(TensorSlot::kEmbedding));
  if (!c.tie_word_embeddings) load.Matrix(head, plan.At(TensorSlot::kHead));
  load.Norm(final_norm, c.final_norm, plan.At(TensorSlot::kFinalNorm), c.hidden_size);
  for (int64_t l = 0; l < c.num_layers(); ++l) {
    const LayerWeights& w = layers[static_cast<size_t>(l)];
    const LayerSpec& spec = c.layer(l);
    const auto at = [&](TensorSlot slot) { return plan.At(slot, l); };
    load.Norm(w.input_norm, spec.norm, at(TensorSlot::kInputNorm), c.hidden_size);
    load.Norm(w.post_attention_norm, spec.norm, at(TensorSlot::kPostAttentionNorm), c.hidden_size);
    std::visit(
        [&](const auto& mixer) {
          using Spec = typename std::decay_t<decltype(mixer)>::Spec;
          LoadMixer(std::get<Spec>(spec.mixer), mixer, plan, l, load);
        },
        w.mixer);
    if (spec.sparse()) load.Matrix(w.router, at(TensorSlot::kRouter));
    if (w.router_bias != nullptr) {
      load.Vector(w.router_bias, {{at(TensorSlot::kRouterBias), w.router.n}});
    }
    if (w.router_correction != nullptr) {
      load.Vector(w.router_correction, {{at(TensorSlot::kRouterCorrection), w.router.n}});
    }
    if (w.expert_gate_bias != nullptr) {
      const int64_t width = spec.experts().expert.width;
      const std::array<std::pair<const float*, int64_t>, 3> biases = {
          {{w.expert_gate_bias, width},
           {w.expert_up_bias, width},
           {w.expert_down_bias, c.hidden_size}}};
      for (size_t matrix = 0; matrix < biases.size(); ++matrix) {
        const auto& [target, n] = biases[matrix];
        for (int64_t e = 0; e < w.router.n; ++e) {
          load.Vector(target + e * n, {{plan.At(kExpertBiasSlots[matrix], l, e), n}});
        }
      }
    }
    if (w.shared_gate.n > 0) load.Matrix(w.shared_gate, at(TensorSlot::kSharedGate));
    if (w.gate.n > 0) {
      const MlpSlots& mlp = spec.sparse() ? kSharedMlpSlots : kDenseMlpSlots;
      load.Matrix(w.gate, at(mlp[0]));
      load.Matrix(w.up, at(mlp[1]));
      load.Matrix(w.down, at(mlp[2]));
    }
  }
}

}  // namespace moesaic
