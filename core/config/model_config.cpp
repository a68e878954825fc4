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

constexpr std::string_view kPattern = "re:";
constexpr size_t kMostPlainModules = 1 << 16;
constexpr size_t kMostAlternatives = 64;

// Whether the name, or its first part, matches; "*" is any text, and "$" the end of the name.
bool MatchesPattern(std::string_view name, std::string_view pattern) {
  const bool whole = pattern.ends_with('$');
  if (whole) pattern.remove_suffix(1);
  size_t at = 0;
  bool any = false;  // text before the next part
  while (!pattern.empty()) {
    const size_t star = pattern.find('*');
    const std::string_view part = pattern.substr(0, star);
    size_t found = any ? name.find(part, at) : name.starts_with(part) ? 0 : name.npos;
    if (found == name.npos) return false;
    const bool last = star == pattern.npos;
    if (whole && last) {
      if (any && name.ends_with(part)) found = name.size() - part.size();
      if (found < at || found + part.size() != name.size()) return false;
    }
    at = found + part.size();
    any = true;
    pattern.remove_prefix(last ? pattern.size() : star + 1);
  }
  return true;
}

// The expressions that one with groups of alternatives, "(a|b)", stands for; nullopt for groups in
// groups, for open ones, and for more than kMostAlternatives.
std::optional<std::vector<std::string>> Alternatives(std::string_view expression) {
  std::vector<std::string> all = {""};
  while (true) {
    const size_t open = expression.find('(');
    const std::string_view text = expression.substr(0, open);
    for (std::string& one : all) one += text;
    if (open == expression.npos) return all;
    const size_t close = expression.find(')', open);
    if (close == expression.npos || (open > 0 && expression[open - 1] == '\\')) return std::nullopt;
    std::vector<std::string> longer;
    for (size_t first = open + 1; first <= close;) {
      const size_t end = std::min(close, expression.find('|', first));
      const std::string_view part = expression.substr(first, end - first);
      if (part.find('(') != part.npos) return std::nullopt;
      for (const std::string& one : all) longer.push_back(one + std::string(part));
      if (longer.size() > kMostAlternatives) return std::nullopt;
      first = end + 1;
    }
    all = std::move(longer);
    expression.remove_prefix(close + 1);
  }
}

// A regular expression of text, "\\.", ".*" and a "$" at its end as MatchesPattern has it; nullopt
// for others.
std::optional<std::string> SimplePattern(std::string_view expression) {
  if (expression.starts_with('^')) expression.remove_prefix(1);
  std::string pattern;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size() && expression[i + 1] == '.') {
      pattern += expression[++i];
    } else if (c == '.' && i + 1 < expression.size() && expression[i + 1] == '*') {
      pattern += expression[++i];
    } else if (c == '$' && i + 1 == expression.size()) {
      pattern += c;
    } else if (std::string_view("*\\[](){}+?|^$").find(c) != std::string_view::npos) {
      return std::nullopt;
    } else {
      pattern += c;
    }
  }
  return pattern;
}

std::vector<std::string> ReadPlainModules(const JsonFields& fields, std::string_view key) {
  std::vector<std::string> modules;
  if (fields.Absent(key)) return modules;
  for (const JsonFields& element : fields.At(key).Elements(kMostPlainModules)) {
    std::string module = element.String();
    if (!module.starts_with(kPattern)) {
      if (!module.empty()) modules.push_back(std::move(module));
      continue;
    }
    const auto alternatives = Alternatives(std::string_view(module).substr(kPattern.size()));
    for (const std::string& one : alternatives.value_or(std::vector<std::string>{"("})) {
      const auto pattern = SimplePattern(one);
      if (!pattern) {
        element.Refuse(
            "this pattern is not understood; supported are names, and patterns of text, \".*\" and "
            "alternatives in parentheses",
            ErrorKind::kUnsupported);
      }
      modules.push_back(std::string(kPattern) + *pattern);
    }
  }
  return modules;
}

using Quantization = std::variant<BlockScales, PackedInt4>;

// Of compressed-tensors' weights of 4 bits: symmetric, with a scale for each group of inputs or for
// each output. Weights ordered by activations have groups of another kind.
std::optional<Quantization> ReadPackedInts(const JsonFields& weights) {
  if (weights.Int("num_bits", 0, 0, 64) != 4 || weights.String("type", "?") != "int" ||
      !weights.OptionalBool("symmetric").value_or(true)) {
    return std::nullopt;
  }
  const json* const order = weights.Find("actorder");
  if (order != nullptr && !order->is_null() && *order != "weight" && *order != "static") {
    return std::nullopt;
  }
  const std::string strategy = weights.String("strategy", "?");
  if (strategy == "channel") return PackedInt4{};
  if (strategy != "group") return std::nullopt;
  const int64_t group = weights.Int("group_size", 0, 1, kMostWidth);
  return group > 0 ? std::optional<Quantization>(PackedInt4{group}) : std::nullopt;
}

// Of compressed-tensors: fp8 with a scale for each output, or for each block, or packed int4.
std::optional<Quantization> ReadCompressedTensors(const JsonFields& fields) {
  const std::string format = fields.String("format", "?");
  if (format != "float-quantized" && format != "pack-quantized") return std::nullopt;
  const JsonFields groups(fields.Object("config_groups"), fields.file(), "config_groups.");
  const JsonFields group(groups.Object("group_0"), fields.file(), "config_groups.group_0.");
  const JsonFields weights(group.Object("weights"), fields.file(),
                           "config_groups.group_0.weights.");
  if (format == "pack-quantized") return ReadPackedInts(weights);
  if (weights.Int("num_bits", 8, 0, 64) != 8 || weights.String("type", "float") != "float" ||
      !weights.OptionalBool("symmetric").value_or(true)) {
    return std::nullopt;
  }
  const std::string strategy = weights.String("strategy", "?");
  constexpr char kSuffix[] = "_scale";
  if (strategy == "channel") return BlockScales{1, kMostWidth, kSuffix};
  if (strategy != "block") return std::nullopt;
  const std::vector<int64_t> block = weights.Ints("block_structure", 1, kMostWidth);
  if (block.size() != 2) return std::nullopt;
  return BlockScales{block[0], block[1], kSuffix};
}

// The kinds of quantised checkpoints that are read: fp8 with a scale for each block or output,
// packed int4, and what the family's plan already says, mxfp4 experts.
std::optional<Quantization> ReadQuantization(const JsonFields& config, ModelConfig& model) {
  if (config.Absent("quantization_config")) return std::nullopt;
  const auto refuse = [&](std::string_view what) {
    config.FailAt("quantization_config",
                  fmt::format("the checkpoint is quantised ({}); supported are fp8 weights with "
                              "block scales (quant_method \"fp8\", fmt \"e4m3\", "
                              "weight_block_size of two numbers; or compressed-tensors "
                              "float-quantized by channel or block), int4 weights of "
                              "compressed-tensors (pack-quantized, symmetric, by group or channel) "
                              "and mxfp4 experts of gpt_oss; "
                              "else use the bf16, fp16 or fp32 "
                              "checkpoint of the model",
                              what),
                  ErrorKind::kUnsupported);
  };
  const json& object = *config.Find("quantization_config");
  if (!object.is_object()) refuse("quant_method \"?\"");
  const JsonFields fields(object, config.file(), "quantization_config.");
  const std::string method = fields.String("quant_method", "?");
  if (method == "mxfp4" && model.tensors.HasMxfp4Experts()) return std::nullopt;
  if (method == "compressed-tensors") {
    const std::optional<Quantization> how = ReadCompressedTensors(fields);
    if (!how) {
      refuse(fmt::format("compressed-tensors, format \"{}\"",
                         fields.String("format", "?").substr(0, 80)));
    }
    model.plain_modules = ReadPlainModules(fields, "ignore");
    return how;
  }
  if (method != "fp8") refuse(fmt::format("quant_method \"{}\"", method.substr(0, 80)));
  const std::string format = fields.String("fmt", "e4m3");
  if (format != "e4m3" && format != "float8_e4m3fn")
    refuse(fmt::format("fp8, fmt \"{}\"", format.substr(0, 80)));
  const std::vector<int64_t> block = fields.Ints("weight_block_size", 1, kMostWidth);
  if (block.size() != 2) refuse("fp8 without a weight_block_size");
  model.plain_modules = ReadPlainModules(fields, "modules_to_not_convert");
  return BlockScales{block[0], block[1]};
}

// The object that has the key quantization_config: this one, or its text_config (Kimi-K2.5).
JsonFields WithQuantization(const JsonFields& config) {
  if (!config.Absent("quantization_config") || config.Absent("text_config")) return config;
  const json* const text = config.Find("text_config");
  return text->is_object() ? JsonFields(*text, config.file(), "text_config.") : config;
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

// As transformers (should_convert_module) and compressed-tensors (match_name) take the names: a
// module, what is in it, a last part of a name; or "re:" and a pattern, of which ReadQuantization
// leaves text and "*".
bool ModelConfig::IsPlainModule(std::string_view name) const {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return std::any_of(plain_modules.begin(), plain_modules.end(), [&](std::string_view module) {
    if (module.starts_with(kPattern)) return MatchesPattern(name, module.substr(kPattern.size()));
    if (!name.starts_with(module) && !name.ends_with(module)) return false;
    const size_t rest = name.size() - module.size();
    return rest == 0 || (name.starts_with(module) && name[module.size()] == '.') ||
           (name.ends_with(module) && name[rest - 1] == '.');
  });
}

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
  if (const std::optional<Quantization> how = ReadQuantization(WithQuantization(config), model)) {
    std::visit([&](const auto& transform) { model.tensors.TransformAll(transform); }, *how);
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
