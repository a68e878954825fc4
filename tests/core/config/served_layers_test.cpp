// What the engine cannot serve is refused by layer and field, and nothing else is.
#include "core/config/served_layers.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/error.h"
#include "tests/core/base/caught.h"

namespace moesaic {
namespace {

ModelConfig FourLayers() {
  return ParseModelConfig(R"({"model_type": "qwen2_moe", "num_hidden_layers": 4,
                              "mlp_only_layers": [0, 3]})",
                          "config.json");
}

GroupedQuerySpec& Attention(LayerSpec& layer) { return std::get<GroupedQuerySpec>(layer.mixer); }
ExpertsSpec& Experts(LayerSpec& layer) { return std::get<ExpertsSpec>(layer.mlp); }

TEST(ServedLayersTest, LayersMayDifferInWhatIsReadFromTheLayer) {
  ModelConfig model = FourLayers();
  Attention(model.layers[1]).window = 32;
  Attention(model.layers[1]).qkv_bias = false;
  Attention(model.layers[2]).qk_norm = QkNorm::kPerHead;
  Attention(model.layers[2]).scale = 0.5;
  model.layers[3].norm.eps = 1e-3;
  model.layers[3].residual_scale = 0.5;
  std::get<MlpSpec>(model.layers[3].mlp).width = 8;
  Experts(model.layers[2]).router.score = ScoreFunction::kSigmoid;
  Experts(model.layers[2]).shared.width = 64;
  CheckServedLayers(model, "config.json");
}

TEST(ServedLayersTest, WhatItCannotServeIsNamed) {
  struct Case {
    void (*change)(LayerSpec& layer);
    size_t layer;
    const char* named;
  };
  const Case cases[] = {
      {[](LayerSpec& layer) { Attention(layer).heads = 8; }, 1,
       "layer 1: heads is 8, and 16 in layer 0"},
      {[](LayerSpec& layer) { Attention(layer).kv_heads = 2; }, 3, "layer 3: kv_heads is 2"},
      {[](LayerSpec& layer) { Attention(layer).head_dim = 64; }, 2, "layer 2: head_dim is 64"},
      {[](LayerSpec& layer) { Attention(layer).rotary_dim = 64; }, 2, "layer 2: rotary_dim is 64"},
      {[](LayerSpec& layer) { Attention(layer).rope.theta = 5; }, 2, "layer 2: rope"},
      {[](LayerSpec& layer) { Attention(layer).rope_form = RopeForm::kInterleaved; }, 0,
       "layer 0: interleaved rope"},
      {[](LayerSpec& layer) { std::get<MlpSpec>(layer.mlp).gated = false; }, 3,
       "layer 3: a dense MLP without a gate"},
      {[](LayerSpec& layer) { std::get<MlpSpec>(layer.mlp).bias = true; }, 0,
       "layer 0: biases of a dense MLP"},
      {[](LayerSpec& layer) { Experts(layer).router.experts = 7; }, 2,
       "layer 2: experts is 7, and 60 in layer 1"},
      {[](LayerSpec& layer) { Experts(layer).router.top_k = 3; }, 2, "layer 2: top_k is 3"},
      {[](LayerSpec& layer) { Experts(layer).expert.width = 16; }, 2,
       "layer 2: the experts' width"},
      {[](LayerSpec& layer) { Experts(layer).expert.gated = false; }, 1,
       "layer 1: an expert without a gate"},
      {[](LayerSpec& layer) { Experts(layer).expert.bias = true; }, 2,
       "layer 2: experts other than"},
      {[](LayerSpec& layer) { Experts(layer).expert.activation = Activation::kClampedSwiglu; }, 2,
       "layer 2: experts other than"},
      {[](LayerSpec& layer) { Experts(layer).shared.activation = Activation::kClampedSwiglu; }, 1,
       "layer 1: an activation other than silu of a shared expert"},
      {[](LayerSpec& layer) { Experts(layer).shared.bias = true; }, 1,
       "layer 1: biases of a shared expert"},
      {[](LayerSpec& layer) { Experts(layer).shared.gated = false; }, 2,
       "layer 2: a shared expert without a gate"},
      {[](LayerSpec& layer) { Experts(layer).router.num_groups = 300; }, 1, "layer 1: 300 groups"},
      {[](LayerSpec& layer) { Experts(layer).read_input = true; }, 2,
       "layer 2: experts that read something else than those of layer 1"},
      {[](LayerSpec& layer) { Experts(layer).read_input = true; }, 1,
       "layer 1: a gate of the MLP beside experts"},
  };
  for (const Case& test : cases) {
    ModelConfig model = FourLayers();
    test.change(model.layers[test.layer]);
    const Error error = Caught([&] { CheckServedLayers(model, "some/config.json"); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_TRUE(Contains(error, test.named)) << test.named << " in: " << error.what();
    EXPECT_TRUE(Contains(error, "some/config.json")) << error.what();
  }
}

}  // namespace
}  // namespace moesaic
