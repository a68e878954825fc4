#include "core/config/model_config.h"

#include <algorithm>
#include <optional>
#include <variant>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_fields.h"
#include "core/config/family_fields.h"
#include "core/config/gguf_config.h"
#include "core/config/model_family.h"
#include "core/config/served_layers.h"
#include "core/io/gguf.h"

namespace moesaic {
namespace {

using nlohmann::json;

constexpr double kMostParameters = 1e14;
constexpr uint64_t kMostConfigBytes = 16 << 20;

// The kinds of quantised checkpoints that are read: fp8 with a scale for each block, and what the
// family's plan already says, mxfp4 experts.
std::optional<BlockScales> ReadQuantization(const JsonFields& config, const TensorPlan& plan) {
  if (config.Absent("quantization_config")) return std::nullopt;
  const auto refuse = [&](std::string_view what) {
    config.FailAt("quantization_config",
                  fmt::format("the checkpoint is quantised ({}); supported are fp8 weights with "
                              "block scales (quant_method \"fp8\", fmt \"e4m3\", "
                              "weight_block_size of two numbers) and mxfp4 experts of gpt_oss; "
                              "else use the bf16, fp16 or fp32 "
                              "checkpoint of the model",
                              what),
                  ErrorKind::kUnsupported);
  };
  const json& object = *config.Find("quantization_config");
  if (!object.is_object()) refuse("quant_method \"?\"");
  const JsonFields fields(object, config.file(), "quantization_config.");
  const std::string method = fields.String("quant_method", "?");
  if (method == "mxfp4" && plan.HasMxfp4Experts()) return std::nullopt;
  if (method != "fp8") refuse(fmt::format("quant_method \"{}\"", method.substr(0, 80)));
  const std::string format = fields.String("fmt", "e4m3");
  if (format != "e4m3" && format != "float8_e4m3fn")
    refuse(fmt::format("fp8, fmt \"{}\"", format.substr(0, 80)));
  const std::vector<int64_t> block = fields.Ints("weight_block_size", 1, kMostWidth);
  if (block.size() != 2) refuse("fp8 without a weight_block_size");
  return BlockScales{block[0], block[1]};
}

// Refuses what no machine could hold, so that sizes in bytes do not overflow.
void CheckTotalSize(std::string_view file, const ModelConfig& model) {
  const auto hidden = static_cast<double>(model.hidden_size);
  double total = 2 * static_cast<double>(model.vocab_size) * hidden;
  for (const LayerSpec& layer : model.layers) {
    total += static_cast<double>(ParametersOf(layer.mixer, model.hidden_size)) +
             3 * hidden * static_cast<double>(layer.dense_mlp().width);
    if (!layer.sparse()) continue;
    const ExpertsSpec& experts = layer.experts();
    total += static_cast<double>(experts.router.experts) * 3 * hidden *
             static_cast<double>(experts.expert.width);
  }
  if (total <= kMostParameters) return;
  Fail(ErrorKind::kCorrupt,
       "{}: hidden_size {}, num_hidden_layers {}, experts {} of width {}, attention of {} values a "
       "layer and vocab_size {} make a model of more than {:.0f} parameters; expected at most that",
       file, model.hidden_size, model.num_layers(), model.num_experts(), model.expert_width(),
       ParametersOf(model.layers.front().mixer, model.hidden_size), model.vocab_size,
       kMostParameters);
}

const ExpertsSpec* FirstExperts(const std::vector<LayerSpec>& layers) {
  const auto sparse = std::find_if(layers.begin(), layers.end(),
                                   [](const LayerSpec& layer) { return layer.sparse(); });
  return sparse != layers.end() ? &sparse->experts() : nullptr;
}

}  // namespace

int64_t ModelConfig::num_sparse_layers() const {
  return std::count_if(layers.begin(), layers.end(),
                       [](const LayerSpec& layer) { return layer.sparse(); });
}

const GroupedQuerySpec& ModelConfig::attention() const {
  const auto* const attention = FindMixer<GroupedQuerySpec>();
  CHECK(attention != nullptr);
  return *attention;
}

const RopeConfig& ModelConfig::rope() const {
  const auto rotates = std::find_if(layers.begin(), layers.end(), [](const LayerSpec& layer) {
    return RopeOf(layer.mixer) != nullptr;
  });
  CHECK(rotates != layers.end());
  return *RopeOf(rotates->mixer);
}

int64_t ModelConfig::num_attention_layers() const {
  return std::count_if(layers.begin(), layers.end(),
                       [](const LayerSpec& layer) { return layer.has_attention(); });
}

const ExpertsSpec& ModelConfig::experts() const {
  const ExpertsSpec* const experts = FirstExperts(layers);
  CHECK(experts != nullptr);
  return *experts;
}

int64_t ModelConfig::num_experts() const {
  const ExpertsSpec* const experts = FirstExperts(layers);
  return experts != nullptr ? experts->router.experts : 0;
}

int64_t ModelConfig::top_k() const {
  const ExpertsSpec* const experts = FirstExperts(layers);
  return experts != nullptr ? experts->router.top_k : 0;
}

int64_t ModelConfig::dense_width() const {
  int64_t widest = 0;
  for (const LayerSpec& layer : layers) {
    if (!layer.sparse()) widest = std::max(widest, layer.dense_mlp().width);
  }
  return widest;
}

int64_t ModelConfig::shared_width() const {
  int64_t widest = 0;
  for (const LayerSpec& layer : layers) {
    if (layer.sparse()) widest = std::max(widest, layer.dense_mlp().width);
  }
  return widest;
}

int64_t ModelConfig::widest_dense_mlp() const { return std::max(dense_width(), shared_width()); }

ModelConfig ParseModelConfig(std::string_view text, std::string_view name) {
  const json object = ParseJsonObject(text, name);
  const JsonFields config(object, name);
  const ModelFamily& family = FindFamily(config);
  ModelConfig model;
  model.architecture = family.architecture;
  model.model_type = family.model_type;
  family.read(config, model);
  if (const std::optional<BlockScales> scales = ReadQuantization(config, model.tensors)) {
    model.tensors.TransformAll(*scales);
  }
  CheckServedLayers(model, name);
  CheckTotalSize(name, model);
  return model;
}

ModelConfig LoadModelConfig(const std::filesystem::path& model_dir) {
  if (IsGgufModel(model_dir)) return ParseGgufConfig(ReadGgufModel(model_dir), model_dir.string());
  const std::filesystem::path path = model_dir / "config.json";
  return ParseModelConfig(ReadTextFile(path, kMostConfigBytes), path.string());
}

}  // namespace moesaic
