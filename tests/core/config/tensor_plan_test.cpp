#include "core/config/tensor_plan.h"

#include <gtest/gtest.h>

#include "core/config/model_config.h"

namespace moesaic {
namespace {

TEST(TensorPlanTest, NamesHaveTheirNumbers) {
  TensorPlan plan;
  plan.Set(TensorSlot::kHead, "output.weight");
  plan.Set(TensorSlot::kRouter, "blk.{layer}.gate");
  plan.SetMlp(kExpertSlots, "blk.{layer}.exps.{expert}.", {"w1", "w3", "w2"});
  EXPECT_EQ(plan.At(TensorSlot::kHead).name, "output.weight");
  EXPECT_EQ(plan.At(TensorSlot::kRouter, 12).name, "blk.12.gate");
  EXPECT_EQ(plan.At(TensorSlot::kExpertGate, 3, 104).name, "blk.3.exps.104.w1");
  EXPECT_EQ(plan.At(TensorSlot::kExpertUp, 0, 0).name, "blk.0.exps.0.w3");
  EXPECT_EQ(plan.At(TensorSlot::kExpertDown, 10, 1).name, "blk.10.exps.1.w2");
}

TEST(TensorPlanTest, TransformsOfTheSlotComeBeforeThoseOfAll) {
  TensorPlan plan;
  plan.TransformAll(BlockScales{128, 128, "_all"});
  plan.Set(TensorSlot::kQ, "q", {BlockScales{1, 64, "_own"}});
  plan.Set(TensorSlot::kK, "k");
  const PlannedTensor q = plan.At(TensorSlot::kQ);
  ASSERT_EQ(q.transforms.size(), 2u);
  EXPECT_EQ(q.Find<BlockScales>()->suffix, "_own");
  EXPECT_EQ(std::get<BlockScales>(q.transforms[1]).suffix, "_all");
  EXPECT_EQ(plan.At(TensorSlot::kK).Find<BlockScales>()->rows, 128);
  EXPECT_EQ(TensorPlan(plan).At(TensorSlot::kK).name, "k");
  EXPECT_EQ(PlannedTensor{}.Find<BlockScales>(), nullptr);
}

TEST(TensorPlanTest, AnExpertOfAStackHasItsNumber) {
  const auto plan_of = [](const char* json) { return ParseModelConfig(json, "c").tensors; };
  const TensorPlan plain = plan_of(R"({"model_type": "gpt_oss"})");
  const PlannedTensor up = plain.At(TensorSlot::kExpertUp, 3, 17);
  EXPECT_EQ(up.name, "model.layers.3.mlp.experts.gate_up_proj");
  ASSERT_NE(up.Find<StackOf>(), nullptr);
  EXPECT_EQ(up.Find<StackOf>()->count, 128);
  EXPECT_EQ(up.Find<StackOf>()->index, 17);
  ASSERT_NE(up.Find<EveryNthRow>(), nullptr);
  EXPECT_EQ(up.Find<EveryNthRow>()->first, 1);
  EXPECT_EQ(up.Find<EveryNthRow>()->step, 2);
  EXPECT_NE(up.Find<Transposed>(), nullptr);
  EXPECT_EQ(plain.At(TensorSlot::kExpertDownBias, 0, 1).Find<Transposed>(), nullptr);
  EXPECT_FALSE(plain.HasMxfp4Experts());
  const TensorPlan mxfp4 =
      plan_of(R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})");
  EXPECT_TRUE(mxfp4.HasMxfp4Experts());
  EXPECT_EQ(mxfp4.At(TensorSlot::kExpertUp, 3, 17).Find<Transposed>(), nullptr);
}

TEST(TensorPlanTest, ScalesAreThoseOfTheQuantization) {
  const auto plan_of = [](const char* json) { return ParseModelConfig(json, "c").tensors; };
  const TensorPlan plain = plan_of(R"({"model_type": "mixtral"})");
  EXPECT_TRUE(plain.At(TensorSlot::kExpertUp, 1, 2).transforms.empty());
  const TensorPlan fp8 = plan_of(R"({"model_type": "mixtral", "quantization_config":
      {"quant_method": "fp8", "weight_block_size": [128, 64]}})");
  const PlannedTensor up = fp8.At(TensorSlot::kExpertUp, 1, 2);
  EXPECT_EQ(up.name, "model.layers.1.block_sparse_moe.experts.2.w3.weight");
  ASSERT_NE(up.Find<BlockScales>(), nullptr);
  EXPECT_EQ(up.Find<BlockScales>()->rows, 128);
  EXPECT_EQ(up.Find<BlockScales>()->cols, 64);
  EXPECT_EQ(up.Find<BlockScales>()->suffix, "_scale_inv");
}

}  // namespace
}  // namespace moesaic
