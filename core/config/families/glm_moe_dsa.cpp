// GLM-5, 5.1 and 5.2: DeepSeek-V3.2 in other sizes, and with another rotation in the indexer.
// In 5.2 layers share the positions that the indexer of an earlier one chooses.
#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "core/config/family_fields.h"
#include "core/config/latent_fields.h"
#include "core/config/model_family.h"

namespace moesaic {
namespace {

// Which layers have an indexer, by a list of "full" and "shared" or a text of F and S.
std::vector<bool> ListedIndexers(const JsonFields& config, const char* key, int64_t layers) {
  std::vector<bool> full;
  full.reserve(static_cast<size_t>(layers));
  const nlohmann::json& types = *config.Find(key);
  const auto at_least = [&](size_t count) {
    if (count >= static_cast<size_t>(layers)) return;
    config.FailAt(key,
                  fmt::format("has {} entries, expected one for each of {} layers", count, layers));
  };
  const auto add = [&](bool is_full, bool is_shared) {
    if (!is_full && !is_shared) {
      config.FailAt(key, fmt::format("layer {} is neither full nor shared", full.size()),
                    ErrorKind::kUnsupported);
    }
    full.push_back(is_full);
  };
  if (types.is_string()) {
    const auto& text = types.get_ref<const std::string&>();
    at_least(text.size());
    for (int64_t layer = 0; layer < layers; ++layer) {
      const char type = text[static_cast<size_t>(layer)];
      add(type == 'F', type == 'S');
    }
    return full;
  }
  if (!types.is_array()) config.FailAt(key, "expected a list of \"full\" and \"shared\"");
  at_least(types.size());
  for (int64_t layer = 0; layer < layers; ++layer) {
    const nlohmann::json& type = types[static_cast<size_t>(layer)];
    add(type == "full", type == "shared");
  }
  return full;
}

// Otherwise every so many layers has one, from a certain layer on, and all before that.
std::vector<bool> IndexersByTurns(const JsonFields& config, int64_t layers) {
  const int64_t every =
      std::max<int64_t>(1, config.OptionalInt("index_topk_freq", 1, 0, kMostLayers).value_or(1));
  const int64_t offset =
      config.OptionalInt("index_skip_topk_offset", 2, -kMostLayers, kMostLayers).value_or(2);
  std::vector<bool> full;
  full.reserve(static_cast<size_t>(layers));
  for (int64_t layer = 0; layer < layers; ++layer) {
    full.push_back(std::max<int64_t>(layer - offset + 1, 0) % every == 0);
  }
  return full;
}

void ShareIndexers(const JsonFields& config, ModelConfig& model) {
  const char* key = "index_topk_freq";
  std::vector<bool> full;
  for (const char* const list : {"indexer_types", "index_topk_pattern"}) {
    if (!full.empty() || config.Absent(list)) continue;
    key = list;
    full = ListedIndexers(config, list, model.num_layers());
  }
  if (full.empty()) full = IndexersByTurns(config, model.num_layers());
  if (!full.front()) {
    config.FailAt(key, "leaves the first layer without an indexer, whose choice others share");
  }
  for (size_t layer = 0; layer < full.size(); ++layer) {
    if (!full[layer]) std::get<LatentSpec>(model.layers[layer].mixer).indexer = {};
  }
}

}  // namespace

const ModelFamily& GlmMoeDsaFamily() {
  static constexpr ModelFamily kFamily = {
      "GlmMoeDsaForCausalLM", "glm_moe_dsa", [](const JsonFields& config, ModelConfig& model) {
        ReadIndexedLatent(
            config,
            {.model = {.vocab_size = 154880,
                       .hidden_size = 6144,
                       .max_position = 202752,
                       .rms_norm_eps = 1e-5,
                       .bos = 0,
                       .eos = 1},
             .layers = 78,
             .latent = {.heads = 64, .q_rank = 2048, .nope_dim = 192, .value_dim = 256},
             .dense_width = 12288},
            {.heads = 32, .rope_form = RopeForm::kInterleaved}, model);
        ShareIndexers(config, model);
      }};
  return kFamily;
}

}  // namespace moesaic
