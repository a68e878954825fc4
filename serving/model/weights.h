// ModelWeights: the dense part of a model (everything but the routed experts), packed for the CPU
// kernels in one arena.
//
// Owned by the Model; immutable after Load, so any thread may read it.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "core/config/model_config.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/delta_net_weights.h"
#include "serving/model/grouped_query_weights.h"
#include "serving/model/latent_weights.h"
#include "serving/model/tensor_source.h"

namespace moesaic {

class LoadProgress;
class WeightLoader;

// Of a layer's mixer; the alternatives are those of MixerSpec.
using MixerWeights = std::variant<GroupedQueryWeights, LatentWeights, DeltaNetWeights>;

struct LayerWeights {
  const float* input_norm = nullptr;           // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden]
  const float* mlp_norm = nullptr;             // [hidden], null unless LayerSpec::has_mlp_norm
  MixerWeights mixer;
  const GroupedQueryWeights& attention() const { return std::get<GroupedQueryWeights>(mixer); }
  const DeltaNetWeights& delta_net() const { return std::get<DeltaNetWeights>(mixer); }
  // Sparse layers
  PackedMatrix router;                       // [experts, hidden]
  const float* router_bias = nullptr;        // [experts], see RouterSpec
  const float* router_correction = nullptr;  // likewise
  // Biases of the experts, which stay here while their matrices come and go; null without.
  const float* expert_gate_bias = nullptr;  // [experts, width]
  const float* expert_up_bias = nullptr;    // [experts, width]
  const float* expert_down_bias = nullptr;  // [experts, hidden]
  PackedMatrix shared_gate;                 // [1, hidden], n = 0 without one
  // The dense MLP of a dense layer, or the shared expert of a sparse one; gate.n = 0 without one.
  PackedMatrix gate;
  PackedMatrix up;
  PackedMatrix down;
};

class ModelWeights {
 public:
  // What Load will allocate. Exact.
  static uint64_t Bytes(const ModelConfig& config, WeightType type);
  // Shapes and types without memory.
  static ModelWeights Shapes(const ModelConfig& config, WeightType type);

  // The same with the addresses of a copy of memory() that lies elsewhere, a device's say.
  static ModelWeights At(const ModelConfig& config, WeightType type, std::byte* base);
  std::span<const std::byte> memory() const {
    return {arena_.data(), arena_.bytes()};
  }  // of loaded weights

  // Reads and packs. Where the pool's threads have slices of the weights, these lie on their nodes.
  // `progress` (may be null) is told what has been read of Bytes. Throws Error from the source
  // (missing tensor, wrong shape, I/O).
  static ModelWeights Load(const ModelConfig& config, WeightType type, const TensorSource& source,
                           const CpuKernels& kernels, ThreadPool& pool,
                           LoadProgress* progress = nullptr);

  // The names of tensors that are in matrices of kBf16Coded and do not fit there (coded_weights.h).
  // Reads everything and keeps nothing. Throws as Load.
  static std::set<std::string> UncodedTensors(const ModelConfig& config, WeightType type,
                                              const TensorSource& source, const CpuKernels& kernels,
                                              ThreadPool& pool);

  PackedMatrix embedding;             // [vocab, hidden]; the head too when they are tied
  PackedMatrix head;                  // [vocab, hidden]
  const float* final_norm = nullptr;  // [hidden]
  std::vector<LayerWeights> layers;

 private:
  // Appends the matrices in the order in which they lie; null: does not.
  uint64_t LayOut(const ModelConfig& config, WeightType type, std::byte* base,
                  std::vector<PackedMatrix>* matrices = nullptr);

  // Reads what has been laid out.
  void Read(const ModelConfig& config, WeightLoader& load) const;

  AlignedBuffer arena_;
};

}  // namespace moesaic
