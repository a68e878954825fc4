// Rules of --place, inline and in a file: what is accepted reads the same when its text is read
// again, and the last rule that matches decides about each expert.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/config/model_config.h"
#include "core/config/placement.h"

namespace {

using namespace moesaic;  // NOLINT(google-build-using-namespace)

const ModelConfig& SmallModel() {
  static const ModelConfig model = ParseModelConfig(
      R"({"model_type": "qwen2_moe", "num_hidden_layers": 4, "num_experts": 6,
          "mlp_only_layers": [0, 3]})",
      "config.json");
  return model;
}

std::vector<PlacementRule> Read(std::string_view text) {
  // A rule has no line breaks; a file of several rules has.
  if (text.find('\n') == std::string_view::npos && text.find('=') != std::string_view::npos) {
    return {ParsePlacementRule(text, "--place")};
  }
  return ParsePlacementFile(text, "fuzz.yaml");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<PlacementRule> rules = Read(text);
    for (const PlacementRule& rule : rules) {
      CHECK(ParsePlacementRule(rule.text, rule.origin) == rule);
    }
    const Placement placement(SmallModel(), rules);
    for (int64_t layer = 0; layer < 4; ++layer) {
      for (int64_t expert = 0; expert < 6; ++expert) {
        const PlacementRule* last = nullptr;
        for (const PlacementRule& rule : placement.rules()) {
          const bool matches =
              rule.About(ModelPart::kExperts) && rule.layers.Has(layer) && rule.experts.Has(expert);
          if (matches && SmallModel().is_sparse(layer)) last = &rule;
        }
        CHECK(placement.OfExpert(layer, expert) == last);
      }
    }
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kInvalidArgument);
  }
  return 0;
}
