#include "serving/cli/model_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/units.h"
#include "core/io/checkpoint.h"
#include "serving/cli/output.h"
#include "serving/model/expert_sources.h"
#include "serving/model/model.h"
#include "serving/model/tied_head.h"
#include "serving/model/weights.h"
#include "serving/online/kv_plan.h"

namespace moesaic {
namespace {

// Parameters of the dense part, norms and biases included.
uint64_t DenseParameters(const ModelConfig& c) {
  int64_t total = c.vocab_size * c.hidden_size * (c.tie_word_embeddings ? 1 : 2) + c.hidden_size;
  for (const LayerSpec& layer : c.layers) {
    total += 2 * c.hidden_size + ParametersOf(layer.mixer, c.hidden_size);
    total += layer.dense_mlp().Parameters(c.hidden_size);
    if (!layer.sparse()) continue;
    const RouterSpec& router = layer.experts().router;
    total += router.experts * c.hidden_size;
    if (layer.has_mlp_norm()) total += c.hidden_size;
    if (router.logit_bias) total += router.experts;
    if (router.correction_bias) total += router.experts;
    if (layer.experts().shared_gate) total += c.hidden_size;
  }
  return static_cast<uint64_t>(total);
}

std::string AttentionText(const LatentSpec& first) {
  std::string text = fmt::format(
      "{} heads of {} + {} rotated, values of {}, on a latent of {} + {} a token", first.heads,
      first.nope_dim, first.rope_dim, first.value_dim, first.kv_rank, first.rope_dim);
  if (first.q_rank > 0) text += fmt::format(", queries of {}", first.q_rank);
  return text;
}

// What chooses the positions that are attended to.
std::string IndexerText(const ModelConfig& c, const LatentSpec& first) {
  std::string text =
      fmt::format("{} heads of {} choose {} positions, by a key of {} a token", first.indexer.heads,
                  first.indexer.dim, first.top_k, first.indexer.dim);
  const int64_t layers = c.num_indexers();
  if (layers < c.num_layers()) {
    text += fmt::format(", in {} layers; the others go by their choice", layers);
  }
  return text;
}

std::string AttentionText(const GroupedQuerySpec& first) {
  std::string text = fmt::format("{} query and {} key/value heads of {}", first.heads,
                                 first.kv_heads, first.head_dim);
  if (first.qk_norm != QkNorm::kNone) text += ", QK norm";
  if (first.qkv_bias) text += ", QKV bias";
  if (first.output_gate) text += ", gated";
  return text;
}

std::string AttentionText(const ModelConfig& c) {
  const auto* const latent = c.FindMixer<LatentSpec>();
  std::string text = latent != nullptr ? AttentionText(*latent) : AttentionText(c.attention());
  if (c.num_attention_layers() < c.num_layers()) {
    text += fmt::format(", in {} layers", c.num_attention_layers());
  }
  int64_t windowed = 0;
  int64_t widest = 0;
  for (const LayerSpec& layer : c.layers) {
    const int64_t window = WindowOf(layer.mixer);
    windowed += window > 0 ? 1 : 0;
    widest = std::max(widest, window);
  }
  if (windowed > 0) text += fmt::format(", window of {} in {} layers", widest, windowed);
  return text;
}

std::string Percent(uint64_t part, uint64_t whole) {
  return fmt::format("{:.1f}%", 100.0 * static_cast<double>(part) /
                                    static_cast<double>(std::max<uint64_t>(1, whole)));
}

// The types by their share of the bytes, the largest first.
std::string TypesText(const ModelSummary& model) {
  std::vector<std::pair<uint64_t, std::string>> types;
  for (const auto& [name, bytes] : model.checkpoint_types) types.emplace_back(bytes, name);
  std::sort(types.rbegin(), types.rend());
  std::string text;
  for (const auto& [bytes, name] : types) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                        Percent(bytes, model.checkpoint_bytes));
  }
  return text;
}

void AddHeads(const GroupedQuerySpec& spec, nlohmann::ordered_json& architecture) {
  architecture["query_heads"] = spec.heads;
  architecture["kv_heads"] = spec.kv_heads;
  architecture["head_dim"] = spec.head_dim;
}

void AddHeads(const LatentSpec& spec, nlohmann::ordered_json& architecture) {
  architecture["query_heads"] = spec.heads;
  architecture["head_dim"] = spec.query_dim();
  architecture["value_head_dim"] = spec.value_dim;
  architecture["kv_lora_rank"] = spec.kv_rank;
  architecture["qk_rope_head_dim"] = spec.rope_dim;
}

}  // namespace

ModelSummary SummariseModel(const EngineOptions& options) {
  ModelSummary model;
  model.directory = options.model_dir;
  model.config = LoadModelConfig(options.model_dir);
  // A directory with config.json alone can still be described (and run with dummy weights).
  model.has_weights = Checkpoint::IsThere(options.model_dir);
  if (model.has_weights) {
    const Checkpoint checkpoint = Checkpoint::Open(options.model_dir);
    UntieOtherHead(checkpoint, model.config);
    model.checkpoint_bytes = checkpoint.total_bytes();
    model.checkpoint_files = checkpoint.files().size();
    model.checkpoint_tensors = checkpoint.tensors().size();
    for (const auto& [name, tensor] : checkpoint.tensors()) {
      model.checkpoint_types[tensor.dtype_name] += tensor.extent.bytes;
    }
  }
  const ModelConfig& c = model.config;
  const WeightType type = ChooseWeightType(options);
  model.weight_type = WeightTypeName(type);

  const uint64_t dense_parameters = DenseParameters(c);
  const auto expert_parameters =
      static_cast<uint64_t>(c.experts().expert.Parameters(c.hidden_size));
  model.total_parameters = dense_parameters + model.num_experts() * expert_parameters;
  model.active_parameters =
      dense_parameters +
      static_cast<uint64_t>(c.num_sparse_layers() * c.top_k()) * expert_parameters;

  const ExpertLayout layout = MakeCpuExpertLayout(c, type);
  model.expert_bytes = layout.blob_bytes;
  model.slot_bytes = layout.slot_bytes;
  model.dense_bytes = ModelWeights::Bytes(c, type);
  model.state_bytes = Model::StateSlotBytes(c);
  model.kv_bytes_per_token = Model::KvBytesOfAllLayers(c, ChooseKvType(options)) / kKvBlockTokens;
  model.kv_context_bytes =
      static_cast<uint64_t>(KvNeedsOf(c).Most(c.max_position, options.max_num_batched_tokens)) *
      Model::KvBlockBytes(c, ChooseKvType(options));
  return model;
}

std::string ModelSummaryText(const ModelSummary& model) {
  const ModelConfig& c = model.config;
  std::string out =
      fmt::format("{}  {}\n\nArchitecture\n", model.directory.string(), c.architecture);
  TextTable architecture("<<");
  architecture.Add(
      {"layers", fmt::format("{}, {} of them sparse", c.num_layers(), c.num_sparse_layers())});
  architecture.Add({"hidden size", fmt::format("{}", c.hidden_size)});
  architecture.Add({"attention", AttentionText(c)});
  if (const auto* const latent = c.FindMixer<LatentSpec>();
      latent != nullptr && latent->top_k > 0) {
    architecture.Add({"indexer", IndexerText(c, *latent)});
  }
  if (const DeltaNetSpec* const delta = c.FindMixer<DeltaNetSpec>()) {
    architecture.Add({"linear attention",
                      fmt::format("gated DeltaNet in {} layers, {} key heads of {} and {} value "
                                  "heads of {}",
                                  c.NumMixers<DeltaNetSpec>(), delta->key_heads, delta->key_dim,
                                  delta->value_heads, delta->value_dim)});
  }
  architecture.Add(
      {"experts",
       fmt::format("{} per layer, top {}, intermediate size {}{}", c.num_experts(), c.top_k(),
                   c.expert_width(), c.experts_read_input() ? ", routed before attention" : "")});
  if (c.shared_width() > 0) {
    architecture.Add({c.experts_read_input() ? "dense MLP beside them" : "shared expert",
                      fmt::format("intermediate size {}{}", c.shared_width(),
                                  c.experts().shared_gate ? ", gated" : "")});
  }
  architecture.Add({"vocabulary", fmt::format("{}{}", c.vocab_size,
                                              c.tie_word_embeddings ? ", tied embeddings" : "")});
  architecture.Add({"context", fmt::format("{} tokens", c.max_position)});
  architecture.Add(
      {"parameters", fmt::format("{}, {} active per token ({})",
                                 FormatCount(static_cast<double>(model.total_parameters)),
                                 FormatCount(static_cast<double>(model.active_parameters)),
                                 Percent(model.active_parameters, model.total_parameters))});
  out += architecture.Render();

  const bool coded = model.weight_type == WeightTypeName(WeightType::kBf16Coded);
  out += fmt::format("\nSizes in memory ({})\n",
                     coded ? "bf16 in 12 bits, lossless, where that fits" : model.weight_type);
  const uint64_t all_experts_bytes = model.num_experts() * model.slot_bytes;
  TextTable sizes("<><");
  sizes.Add({"dense weights", FormatBytes(model.dense_bytes), "always in memory"});
  sizes.Add({"one expert", FormatBytes(model.slot_bytes),
             fmt::format("{} bytes, in slots of whole pages", model.expert_bytes)});
  sizes.Add({"all experts", FormatBytes(all_experts_bytes),
             fmt::format("{} experts, {} of the weights", model.num_experts(),
                         Percent(all_experts_bytes, all_experts_bytes + model.dense_bytes))});
  sizes.Add(
      {"one token's experts",
       FormatBytes(static_cast<uint64_t>(c.num_sparse_layers() * c.top_k()) * model.slot_bytes),
       "what one decode step computes with"});
  sizes.Add(
      {"keys and values", FormatBytes(model.kv_bytes_per_token),
       fmt::format("per token; {} for a whole context", FormatBytes(model.kv_context_bytes))});
  if (model.state_bytes > 0) {
    sizes.Add(
        {"recurrent state", FormatBytes(model.state_bytes), "per sequence, whatever its length"});
  }
  out += sizes.Render();
  if (model.has_weights) {
    out += fmt::format("\nCheckpoint: {} in {} tensors, {} file{}; {:.2f} bits per parameter: {}\n",
                       FormatBytes(model.checkpoint_bytes), model.checkpoint_tensors,
                       model.checkpoint_files, model.checkpoint_files == 1 ? "" : "s",
                       8.0 * static_cast<double>(model.checkpoint_bytes) /
                           static_cast<double>(std::max<uint64_t>(1, model.total_parameters)),
                       TypesText(model));
  } else {
    out += "\nCheckpoint: no weights here (--load-format dummy makes random ones)\n";
  }
  return out;
}

nlohmann::ordered_json ModelSummaryJson(const ModelSummary& model) {
  const ModelConfig& c = model.config;
  nlohmann::ordered_json root;
  root["model"] = model.directory.string();
  root["architecture"] = {{"name", c.architecture},
                          {"model_type", c.model_type},
                          {"layers", c.num_layers()},
                          {"sparse_layers", c.num_sparse_layers()},
                          {"hidden_size", c.hidden_size},
                          {"experts_per_layer", c.num_experts()},
                          {"top_k", c.top_k()},
                          {"expert_intermediate_size", c.expert_width()},
                          {"shared_intermediate_size", c.shared_width()},
                          {"vocab_size", c.vocab_size},
                          {"tied_embeddings", c.tie_word_embeddings},
                          {"max_position", c.max_position}};
  if (const auto* const latent = c.FindMixer<LatentSpec>()) {
    AddHeads(*latent, root["architecture"]);
    if (latent->top_k > 0) {
      root["architecture"]["indexer"] = {{"heads", latent->indexer.heads},
                                         {"head_dim", latent->indexer.dim},
                                         {"top_k", latent->top_k},
                                         {"layers", c.num_indexers()}};
    }
  } else {
    AddHeads(c.attention(), root["architecture"]);
  }
  root["parameters"] = {{"total", model.total_parameters}, {"active", model.active_parameters}};
  root["bytes"] = {{"weight_type", model.weight_type},
                   {"dense", model.dense_bytes},
                   {"expert", model.expert_bytes},
                   {"expert_slot", model.slot_bytes},
                   {"all_experts", model.num_experts() * model.slot_bytes},
                   {"kv_per_token", model.kv_bytes_per_token}};
  if (const DeltaNetSpec* const delta = c.FindMixer<DeltaNetSpec>()) {
    root["architecture"]["linear_attention"] = {
        {"layers", c.NumMixers<DeltaNetSpec>()}, {"key_heads", delta->key_heads},
        {"value_heads", delta->value_heads},     {"key_dim", delta->key_dim},
        {"value_dim", delta->value_dim},         {"convolution", delta->conv_width}};
    root["bytes"]["state_per_sequence"] = model.state_bytes;
  }
  root["checkpoint"] = {{"weights", model.has_weights},
                        {"bytes", model.checkpoint_bytes},
                        {"files", model.checkpoint_files},
                        {"tensors", model.checkpoint_tensors},
                        {"type_bytes", model.checkpoint_types}};
  return root;
}

}  // namespace moesaic
