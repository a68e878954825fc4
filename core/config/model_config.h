// ModelConfig: what config.json says of a model, checked and with the family's defaults filled in:
// its layers as specs, and where their tensors are.
// Plain data, immutable after loading.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/tensor.h"
#include "core/config/layer_spec.h"
#include "core/config/tensor_plan.h"

namespace moesaic {

struct ModelConfig {
  std::string architecture;  // "Qwen3MoeForCausalLM"
  std::string model_type;    // "qwen3_moe"

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_position = 0;
  bool tie_word_embeddings = false;
  double embedding_scale = 1.0;  // of the residual stream that the first layer gets
  NormSpec final_norm;
  double logit_divisor = 1.0;
  std::vector<LayerSpec> layers;
  TensorPlan tensors;
  // Behind the last layer of the checkpoint, to predict further tokens; they are not read.
  int64_t prediction_layers = 0;
  DType checkpoint_dtype = DType::kBF16;  // torch_dtype; tensors may differ
  // Of the tensors of a GGUF file their types (GgufType::id) by name; of other models empty.
  std::map<std::string, uint32_t> gguf_types;

  // Modules whose tensors a quantised checkpoint has in plain floats, as config.json names them:
  // see IsPlainModule.
  std::vector<std::string> plain_modules;

  // Where bf16 weights are coded (serving/model/coded_weights.h): tensors that are not, by name;
  // and whether experts are, which may be otherwise than the rest. nullopt: as the rest.
  std::set<std::string> uncoded_tensors;
  std::optional<bool> coded_experts;

  // From config.json, superseded by generation_config.json where that has them.
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;
  int32_t pad_token_id = -1;

  int64_t num_layers() const { return static_cast<int64_t>(layers.size()); }
  const LayerSpec& layer(int64_t index) const { return layers[static_cast<size_t>(index)]; }
  bool is_sparse(int64_t index) const { return layer(index).sparse(); }
  int64_t num_sparse_layers() const;

  // The first mixer of this kind, null without one. The sizes of others of the kind are the same
  // (CheckServedLayers).
  template <typename Spec>
  const Spec* FindMixer() const {
    for (const LayerSpec& layer : layers) {
      if (const auto* const found = std::get_if<Spec>(&layer.mixer)) return found;
    }
    return nullptr;
  }
  // Layers that have this kind.
  template <typename Spec>
  int64_t NumMixers() const {
    int64_t count = 0;
    for (const LayerSpec& layer : layers)
      count += std::holds_alternative<Spec>(layer.mixer) ? 1 : 0;
    return count;
  }
  // Layers of latent attention that have an indexer of their own.
  int64_t num_indexers() const {
    int64_t count = 0;
    for (const LayerSpec& layer : layers) {
      const auto* const latent = std::get_if<LatentSpec>(&layer.mixer);
      count += latent != nullptr && latent->indexer.heads > 0 ? 1 : 0;
    }
    return count;
  }
  // Of a model that has it (CHECK): heads, their size and rotation, in all layers that do.
  const GroupedQuerySpec& attention() const;
  // Of all layers that rotate; one does.
  const RopeConfig& rope() const;
  // Layers with keys and values; one is there.
  int64_t num_attention_layers() const;
  // Their number, top_k and the sizes of one, in all sparse layers (CheckServedLayers); one is
  // there.
  const ExpertsSpec& experts() const;
  int64_t num_experts() const;  // 0: no layer is sparse
  int64_t top_k() const;        // likewise
  bool experts_read_input() const { return num_experts() > 0 && experts().read_input; }  // likewise
  int64_t expert_width() const { return experts().expert.width; }
  // Values of one expert's matrices.
  int64_t expert_parameters() const { return experts().expert.Weights(hidden_size); }

  // Of the MLPs that every token runs, the dense layers' and the shared experts'; 0: none.
  int64_t widest_dense_mlp() const;
  // Whether config.json says that the tensor NAME.weight, or the module NAME, is not quantised.
  bool IsPlainModule(std::string_view name) const;

  // Of the dense layers' alone, and of the shared experts' alone; 0: none.
  int64_t dense_width() const;
  int64_t shared_width() const;
};

// Sampling defaults of generation_config.json; a negative number means that the file has none.
struct GenerationDefaults {
  double temperature = -1.0;
  double top_p = -1.0;
  int64_t top_k = -1;
  double min_p = -1.0;
  double repetition_penalty = -1.0;
  bool do_sample = true;
  std::vector<int32_t> eos_token_ids;  // empty: as in config.json
  int32_t bos_token_id = -1;
};

// Parses and checks; `name` is the file that messages name. Throws Error: kCorrupt (not JSON, wrong
// types, absurd or contradictory sizes), kUnsupported (architecture, activation, rope kind: names
// what is supported).
ModelConfig ParseModelConfig(std::string_view json, std::string_view name);
GenerationDefaults ParseGenerationConfig(std::string_view json, std::string_view name);

// Reads config.json / generation_config.json (absent: defaults) of a model directory; of a GGUF
// model (core/io/gguf.h) its metadata, which have no sampling defaults.
ModelConfig LoadModelConfig(const std::filesystem::path& model_dir);
GenerationDefaults LoadGenerationDefaults(const std::filesystem::path& model_dir);

// A directory or a .gguf file as it is, or a hub id ("Qwen/Qwen3-30B-A3B") found in the local
// Hugging Face cache (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface/hub). Throws Error(kNotFound)
// that lists where it looked.
std::filesystem::path ResolveModelPath(std::string_view model);

}  // namespace moesaic
