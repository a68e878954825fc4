// ModelConfig: what config.json says of a model, checked and with the family's defaults filled in.
// Plain data, immutable after loading.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/tensor.h"

namespace moesaic {

enum class ModelFamily { kQwen3Moe, kMixtral, kQwen2Moe, kOlmoe };

const char* ModelFamilyName(ModelFamily family);

enum class RopeKind { kDefault, kLinear, kDynamicNtk, kYarn, kLlama3 };

struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_position = 0;  // dynamic, yarn, llama3; defaults as transformers does
  // yarn
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 0.0;  // 0: derived from factor (or mscale, mscale_all_dim)
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
  bool truncate = true;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
};

enum class QkNorm {
  kNone,
  kPerHead,     // RMSNorm over head_dim, one weight [head_dim] for all heads (Qwen3)
  kProjection,  // RMSNorm over the whole projection, weight [heads * head_dim] (OLMoE)
};

// Values of a block-scaled fp8 tensor that share a scale; 0 x 0: there are no such tensors.
struct Fp8Blocks {
  int64_t rows = 0;
  int64_t cols = 0;
};

struct ModelConfig {
  ModelFamily family = ModelFamily::kQwen3Moe;
  std::string architecture;  // "Qwen3MoeForCausalLM"
  std::string model_type;    // "qwen3_moe"

  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position = 0;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;  // bias of the attention's output projection
  QkNorm qk_norm = QkNorm::kNone;
  double clip_qkv = 0.0;  // 0: none (OLMoE)
  RopeConfig rope;
  std::vector<int64_t> layer_window;  // [num_layers] sliding window in tokens, 0: full attention

  int64_t num_experts = 0;
  int64_t top_k = 0;
  bool norm_topk_prob = false;
  int64_t moe_intermediate_size = 0;
  int64_t dense_intermediate_size = 0;    // of layers that are not sparse
  int64_t shared_intermediate_size = 0;   // 0: no shared expert
  bool shared_expert_gate = false;        // sigmoid gate before the shared expert (Qwen2-MoE)
  std::vector<uint8_t> layer_is_sparse;   // [num_layers]
  DType checkpoint_dtype = DType::kBF16;  // torch_dtype; tensors may differ
  Fp8Blocks fp8_blocks;                   // of the fp8 tensors that it may have

  // From config.json, superseded by generation_config.json where that has them.
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;
  int32_t pad_token_id = -1;

  int64_t num_sparse_layers() const;
  // Of the MLPs that every token runs, the dense layers' and the shared expert's; 0: none.
  int64_t widest_dense_mlp() const;
  // Values of one expert: gate, up and down matrices.
  int64_t expert_parameters() const { return 3 * hidden_size * moe_intermediate_size; }
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

// Reads config.json / generation_config.json (absent: defaults) of a model directory.
ModelConfig LoadModelConfig(const std::filesystem::path& model_dir);
GenerationDefaults LoadGenerationDefaults(const std::filesystem::path& model_dir);

// A directory as it is, or a hub id ("Qwen/Qwen3-30B-A3B") found in the local Hugging Face cache
// (HF_HUB_CACHE, HF_HOME, ~/.cache/huggingface/hub). Throws Error(kNotFound) that lists where it
// looked.
std::filesystem::path ResolveModelPath(std::string_view model);

}  // namespace moesaic
