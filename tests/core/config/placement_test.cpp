// Which rule decides about what, against the specs of a model.
#include "core/config/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

// Layers 1 and 2 have experts, and a shared one; 0 and 3 a dense MLP.
ModelConfig FourLayers() {
  return ParseModelConfig(R"({"model_type": "qwen2_moe", "num_hidden_layers": 4, "num_experts": 6,
                              "mlp_only_layers": [0, 3]})",
                          "config.json");
}

std::vector<PlacementRule> Rules(const std::vector<std::string>& texts) {
  std::vector<PlacementRule> rules;
  for (const std::string& text : texts) rules.push_back(ParsePlacementRule(text, "--place"));
  return rules;
}

std::string TextOf(const PlacementRule* rule) { return rule == nullptr ? "none" : rule->text; }

const PlacementRule* RuleOf(const Placement& placement, ModelPart part, int64_t layer) {
  const auto& modules = placement.modules();
  const auto found = std::find_if(modules.begin(), modules.end(), [&](const auto& module) {
    return module.part == part && module.layer == layer;
  });
  EXPECT_NE(found, modules.end());
  return found->rule;
}

TEST(PlacementTest, TheLastRuleThatMatchesDecides) {
  const Placement placement(FourLayers(),
                            Rules({"experts=pin", "layers.2.experts.1-3=host", "experts.2=cache"}));
  EXPECT_EQ(TextOf(placement.OfExpert(1, 0)), "experts=pin");
  EXPECT_EQ(TextOf(placement.OfExpert(2, 0)), "experts=pin");
  EXPECT_EQ(TextOf(placement.OfExpert(2, 1)), "layers.2.experts.1-3=host");
  EXPECT_EQ(TextOf(placement.OfExpert(2, 2)), "experts.2=cache");
  EXPECT_EQ(TextOf(placement.OfExpert(0, 0)), "none");  // a dense layer
  EXPECT_EQ(TextOf(RuleOf(placement, ModelPart::kRouter, 1)), "none");
  EXPECT_EQ(placement.extent(0).experts, 12);
  EXPECT_EQ(placement.extent(0).experts_decided, 8);
  EXPECT_EQ(placement.extent(1).experts, 3);
  EXPECT_EQ(placement.extent(1).experts_decided, 2);
  EXPECT_EQ(placement.extent(2).experts_decided, 2);
  EXPECT_EQ(placement.extent(0).modules, 0);
}

TEST(PlacementTest, ModulesAreThoseOfTheSpecs) {
  const Placement placement(FourLayers(),
                            Rules({"dense=host", "layers.1-.norm|mlp=device:0", "head=devices"}));
  std::vector<std::pair<ModelPart, int64_t>> modules;
  for (const auto& module : placement.modules()) modules.emplace_back(module.part, module.layer);
  const std::vector<std::pair<ModelPart, int64_t>> expected = {
      {ModelPart::kEmbedding, Placement::kNoLayer},
      {ModelPart::kNorm, 0},
      {ModelPart::kAttention, 0},
      {ModelPart::kMlp, 0},
      {ModelPart::kNorm, 1},
      {ModelPart::kAttention, 1},
      {ModelPart::kRouter, 1},
      {ModelPart::kSharedExpert, 1},
      {ModelPart::kNorm, 2},
      {ModelPart::kAttention, 2},
      {ModelPart::kRouter, 2},
      {ModelPart::kSharedExpert, 2},
      {ModelPart::kNorm, 3},
      {ModelPart::kAttention, 3},
      {ModelPart::kMlp, 3},
      {ModelPart::kNorm, Placement::kNoLayer},
      {ModelPart::kHead, Placement::kNoLayer}};
  EXPECT_EQ(modules, expected);
  EXPECT_EQ(placement.extent(0).modules, 17);
  EXPECT_EQ(placement.extent(0).modules_decided, 12);
  EXPECT_EQ(placement.extent(1).modules_decided, 4);
  EXPECT_EQ(placement.extent(0).experts, 0);
  EXPECT_EQ(TextOf(RuleOf(placement, ModelPart::kNorm, Placement::kNoLayer)), "dense=host");
  EXPECT_EQ(TextOf(RuleOf(placement, ModelPart::kMlp, 3)), "layers.1-.norm|mlp=device:0");
  EXPECT_EQ(TextOf(RuleOf(placement, ModelPart::kHead, Placement::kNoLayer)), "head=devices");
}

TEST(PlacementTest, ARuleThatMatchesNothingIsNamed) {
  for (const char* text : {"layers.4.experts=pin", "layers.0|3.experts=pin", "experts.6-9=host",
                           "layers.1.mlp=host", "layers.1.head=host"}) {
    const std::string said = Caught([&] {
                               Placement(FourLayers(), Rules({"experts=pin", text}));
                             }).what();
    EXPECT_TRUE(said.starts_with("--place: '" + std::string(text) + "' matches nothing")) << said;
    EXPECT_NE(said.find("layers 0 to 3, 2 of them with experts 0 to 5"), std::string::npos);
  }
  // One that later ones overrule is none.
  Placement(FourLayers(), Rules({"experts=pin", "experts=cache"}));
}

}  // namespace
}  // namespace moesaic
