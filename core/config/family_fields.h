// What families read of config.json in the same way. Internal to core/config.
//
// Defaults are what transformers' configuration classes fill in for a key that is missing
// (transformers 5.23, src/transformers/models/*/configuration_*.py; docs/models.md). All of these
// throw Error(kCorrupt) for a wrong value and Error(kUnsupported) for one that is not implemented,
// naming file and key.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json_fields.h"
#include "core/config/model_config.h"

namespace moesaic {

// Far above any model that exists, and small enough that no product of two overflows.
inline constexpr int64_t kMostVocab = 10'000'000;
inline constexpr int64_t kMostWidth = 1'000'000;
inline constexpr int64_t kMostLayers = 10'000;
inline constexpr int64_t kMostHeads = 65'536;
inline constexpr int64_t kMostHeadDim = 65'536;
inline constexpr int64_t kMostExperts = 65'535;  // ExpertId::index has 16 bits
inline constexpr int64_t kMostPosition = int64_t{1} << 31;

struct ModelDefaults {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t max_position = 0;
  double rms_norm_eps = 1e-6;
  // -1: none
  int64_t bos = -1;
  int64_t eos = -1;
  int64_t pad = -1;
};
// Sizes, norms, types and token ids: all of `model` but its layers and tensors.
void ReadModel(const JsonFields& config, const ModelDefaults& defaults, ModelConfig& model);

int64_t ReadLayerCount(const JsonFields& config, int64_t fallback);

struct AttentionDefaults {
  int64_t heads = 0;
  std::optional<int64_t> kv_heads = std::nullopt;  // as many as heads
  std::optional<int64_t> head_dim = std::nullopt;  // hidden_size / heads
  double rope_theta = 1e4;
  // partial_rotary_factor; without one the family rotates whole heads and knows no other.
  std::optional<double> rotary_share = std::nullopt;
  // With a rotary_share: how many values of a head are rotated, for a configuration that does not
  // say it as a share.
  const char* rotary_dim_key = nullptr;
};
// Heads, their size and rotation, the scale. `model` has been read.
GroupedQuerySpec ReadAttention(const JsonFields& config, const AttentionDefaults& defaults,
                               const ModelConfig& model);

struct RouterDefaults {
  std::string_view experts_key = "num_experts";
  int64_t experts = 0;
  int64_t top_k = 0;
};
// Number of experts and how many of them are chosen.
RouterSpec ReadRouter(const JsonFields& config, const RouterDefaults& defaults);

// `n_group` and `topk_group`: experts are chosen of so many groups.
void ReadGroups(const JsonFields& config, RouterSpec& router, int64_t groups = 1, int64_t kept = 1);

// The router of DeepSeek-V3: sigmoid scores, whose choice a bias corrects and of which the two
// largest of a group make its worth; `norm_topk_prob`, `routed_scaling_factor`.
void ReadCorrectedSigmoid(const JsonFields& config, double scale, RouterSpec& router);

// `n_shared_experts` of the expert's width as one MLP.
MlpSpec ReadSharedExperts(const JsonFields& config, const MlpSpec& expert, int64_t fallback);

// All layers: the first `first_k_dense_replace` like `dense`, in the others experts in the place of
// its MLP.
void AddLayersDenseFirst(const JsonFields& config, int64_t layers, int64_t dense_layers,
                         const LayerSpec& dense, const ExpertsSpec& experts, ModelConfig& model);

// A gated MLP without biases, of the width that the key gives.
MlpSpec ReadMlp(const JsonFields& config, std::string_view width_key, int64_t fallback);

// The object `text_config` of a model that also sees, with what it leaves to the outer one: types
// and token ids. Whether embeddings are tied is what the outer one says.
nlohmann::json TextConfig(const JsonFields& config);

// Linear attention by the gated delta rule, of the keys linear_*. `model` has been read.
DeltaNetSpec ReadDeltaNet(const JsonFields& config, const ModelConfig& model);
// Attention as those models have it in the other layers: a gate of its output, a quarter of each
// head rotated.
GroupedQuerySpec ReadGatedAttention(const JsonFields& config, const ModelConfig& model);
// All of the text of Qwen3.5 MoE whose tensors' names begin with this, with a tensor for each
// matrix of an expert.
void ReadQwen35Text(const JsonFields& config, const std::string& prefix, ModelConfig& model);
// All of Granite MoE but the MLP that every token runs.
void ReadGraniteMoe(const JsonFields& config, ModelConfig& model);
// Which layers have linear attention, by layer_types or full_attention_interval.
std::vector<bool> ReadLinearLayers(const JsonFields& config, int64_t layers);

// Which layers have a sliding window, by layer_types; nullopt without the key.
std::optional<std::vector<bool>> ReadSlidingLayers(const JsonFields& config, int64_t layers);

// Which layers have experts, by decoder_sparse_step and mlp_only_layers (the Qwens).
std::vector<bool> ReadSparseLayers(const JsonFields& config, int64_t layers);

// The names that most families have: embedding, head, norms, attention, dense MLPs, routers and
// experts.
TensorPlan CommonTensors(const std::string& prefix = "model.");
// Queries, keys and values are rows of one matrix, one below the other.
void SetJoinedQkv(const std::string& name, const GroupedQuerySpec& attention, TensorPlan& plan);
// The gate and up matrices of these slots are rows of one matrix, `width` of each, gate's first.
// `stack`: of experts that are in one tensor.
void SetJoinedGateUp(const MlpSlots& slots, const std::string& name, int64_t width,
                     const std::optional<StackOf>& stack, TensorPlan& plan);
// Of the model whose tensors' names begin with this: attention whose gates are stored beside the
// queries of each head, all of linear attention but its projections from the residual stream, and a
// shared expert with a gate.
void SetGatedAttention(const std::string& prefix, const GroupedQuerySpec& attention,
                       TensorPlan& plan);
void SetDeltaNet(const std::string& prefix, TensorPlan& plan);
void SetGatedSharedExpert(const std::string& prefix, TensorPlan& plan);
inline constexpr std::array<const char*, 3> kProjectionNames = {
    "gate_proj.weight", "up_proj.weight", "down_proj.weight"};

}  // namespace moesaic
