// Rules of --place as text and YAML: what each says, and what is refused with which words.
#include "core/config/placement_rule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

PlacementRule Rule(const std::string& text) { return ParsePlacementRule(text, "--place"); }

template <typename Body>
std::string Said(const Body& body) {
  return Caught(body).what();
}

TEST(PlacementRuleTest, SaysWhatItIsAbout) {
  const PlacementRule pinned = Rule("layers.0-2|5|7-.experts=pin");
  EXPECT_TRUE(pinned.About(ModelPart::kExperts));
  EXPECT_FALSE(pinned.About(ModelPart::kAttention));
  EXPECT_FALSE(pinned.outside_of_layers);
  for (const int64_t layer : {0, 2, 5, 7, 1000}) EXPECT_TRUE(pinned.layers.Has(layer)) << layer;
  for (const int64_t layer : {3, 4, 6}) EXPECT_FALSE(pinned.layers.Has(layer)) << layer;
  EXPECT_TRUE(pinned.experts.all());
  EXPECT_EQ(pinned.residency, Residency::kPinned);
  EXPECT_FALSE(pinned.device || pinned.numa_node);
  EXPECT_EQ(pinned.Name(), "layers.0-2|5|7-.experts=pin (--place)");

  const PlacementRule some = Rule("model.layers.*.experts.4-5 = cache @ emulated:1 @ numa:2");
  EXPECT_TRUE(some.layers.all());
  EXPECT_TRUE(some.experts.Has(5));
  EXPECT_FALSE(some.experts.Has(6));
  EXPECT_EQ(some.residency, Residency::kCached);
  EXPECT_EQ(some.device, 1);
  EXPECT_EQ(some.device_kind, "emulated");
  EXPECT_EQ(some.numa_node, 2);

  const PlacementRule dense = Rule("dense=device:0");
  for (const auto& part : kModelParts) {
    EXPECT_EQ(dense.About(part.value), part.value != ModelPart::kExperts) << part.name;
  }
  EXPECT_TRUE(dense.outside_of_layers);
  EXPECT_EQ(dense.device_kind, "");

  const PlacementRule layer = Rule("layers.3=host");
  EXPECT_TRUE(layer.About(ModelPart::kExperts) && layer.About(ModelPart::kRouter));
  EXPECT_FALSE(layer.outside_of_layers);
  EXPECT_EQ(Rule("*=devices").device, PlacementRule::kAllDevices);
}

// Names of checkpoints, of llama.cpp's tensors and its buffer types.
TEST(PlacementRuleTest, KnowsTheNamesOfOthers) {
  const auto same = [](const char* theirs, const char* ours) {
    PlacementRule rule = Rule(ours);
    rule.text = theirs;
    EXPECT_EQ(Rule(theirs), rule) << theirs;
  };
  same("exps=CPU", "experts=host");
  same("blk.0-2.exps=CUDA0", "layers.0-2.experts=cuda:0");
  same("model.layers.4.self_attn=cpu", "layers.4.attention=host");
  same("model.embed_tokens|lm_head=pinned", "embedding|head=pin");
}

TEST(PlacementRuleTest, RefusesByWhatIsWrong) {
  const auto expect = [](const char* text, const char* words) {
    EXPECT_NE(Said([&] { Rule(text); }).find(words), std::string::npos)
        << text << ": " << Said([&] { Rule(text); });
  };
  expect("experts", "PATTERN=PLACE");
  expect("layers=pin", "which layers");
  expect("layers.0-2.expert=pin", "there is no module 'expert'");
  expect("layers.x.experts=pin", "expected a whole number, not 'x'");
  expect("layers.-3.experts=pin", "expected a whole number, not ''");
  expect("layers.5-3.experts=pin", "ends before it begins");
  expect("layers.99999999999999999999=pin", "expected a whole number");
  expect("layers.0.attention.3=host", "only experts have numbers");
  expect("experts.3.7=pin", "'7' is more than an expert");
  expect("experts=", "'' is no place");
  expect("experts=gpu", "'gpu' is no place");
  expect("experts=cuda", "expected a whole number");
  expect("experts=pin@cache", "one residency");
  expect("experts=cuda:0@device:1", "one device");
  expect("experts=host@cuda:0", "on no device");
  EXPECT_TRUE(Said([] { Rule("experts=gpu"); }).starts_with("--place: 'experts=gpu': "));
}

TEST(PlacementRuleTest, ReadsFiles) {
  const std::vector<PlacementRule> rules = ParsePlacementFile(
      "rules:\n"
      "  - match: layers.0-2.experts\n"
      "    residency: pin\n"
      "    device: 1\n"
      "    numa: 0\n"
      "  - experts.7=host\n"
      "  - {match: dense, device: cuda:0}\n",
      "rules.yaml");
  ASSERT_EQ(rules.size(), 3u);
  EXPECT_EQ(rules[0].Name(), "layers.0-2.experts=pin@device:1@numa:0 (rules.yaml:2)");
  EXPECT_EQ(rules[0].device, 1);
  EXPECT_EQ(rules[0].numa_node, 0);
  EXPECT_EQ(rules[1].Name(), "experts.7=host (rules.yaml:6)");
  EXPECT_EQ(rules[2].device_kind, "cuda");
  EXPECT_EQ(ParsePlacementFile("[experts=pin]", "rules.yaml").size(), 1u);

  const auto expect = [](const char* yaml, const char* words) {
    const std::string said = Said([&] { ParsePlacementFile(yaml, "r.yaml"); });
    EXPECT_NE(said.find(words), std::string::npos) << yaml << ": " << said;
  };
  expect("", "r.yaml: expected a list of rules");
  expect("{rules: [experts=pin], more: 1}", "expected a list of rules");
  expect("- [experts=pin]", "r.yaml:1: a rule is a text or a mapping");
  expect("\n- match: experts\n", "r.yaml:2: a rule has a match, and");
  expect("- residency: pin\n", "a rule has a match, and");
  expect("- {match: experts, residence: pin}", "unknown key 'residence'");
  expect("- {match: experts, residency: [pin]}", "'residency' is one value");
  expect("- {match: experts, numa: one}", "expected a whole number, not 'one'");
  expect("- {", "not YAML");
}

TEST(PlacementRuleTest, AnItemIsARuleOrAFile) {
  EXPECT_EQ(ReadPlacement("experts=pin", "--place").front().origin, "--place");
  EXPECT_NE(Said([] {
              ReadPlacement("/nonexistent/rules.yaml", "--place");
            }).find("/nonexistent/rules.yaml"),
            std::string::npos);
}

}  // namespace
}  // namespace moesaic
