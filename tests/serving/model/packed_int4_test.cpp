// Checkpoints of packed int4: numbers and scales stay what they are in memory and in stores, and
// logits are those of the products.
#include "serving/model/packed_int4.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "core/base/error.h"
#include "serving/model/weights.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/model/checkpoint_test_util.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/reference_util.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const char* const kPacked[] = {"kimi_k2_int4", "kimi_k25_int4", "kimi_k25_int4_wide"};

TEST(PackedInt4Test, LowerHalvesComeFirstAndAreEightTooLarge) {
  constexpr int64_t kCols = 16;
  const std::array<std::byte, kCols / 2> codes = {std::byte{0x10}, std::byte{0x32}, std::byte{0x54},
                                                  std::byte{0x76}, std::byte{0x98}, std::byte{0xba},
                                                  std::byte{0xdc}, std::byte{0xfe}};
  const std::array<uint16_t, 2> bf16 = {0x3fc0, 0x4040};  // 1.5, 3
  const std::array<uint16_t, 2> f16 = {0x3e00, 0x4200};
  const std::array<float, 2> f32 = {1.5f, 3};
  const std::pair<const void*, DType> scales[] = {
      {bf16.data(), DType::kBF16}, {f16.data(), DType::kF16}, {f32.data(), DType::kF32}};
  for (const auto& [values, type] : scales) {
    std::array<float, kCols> out;
    DequantisePackedInt4(codes.data(), static_cast<const std::byte*>(values), type, 8, kCols,
                         out.data());
    for (int64_t i = 0; i < kCols; ++i) {
      EXPECT_EQ(out[static_cast<size_t>(i)], static_cast<float>(i - 8) * (i < 8 ? 1.5f : 3.0f));
    }
  }
}

// An expert as the checkpoint's extents make it is what its tensors make, of which stores are made;
// and its numbers are the products, which f32 has exactly.
TEST(PackedInt4Test, KeptExpertsAreThoseOfTheCheckpoint) {
  for (const char* const name : kPacked) {
    SCOPED_TRACE(name);
    const ModelConfig config = LoadModelConfig(FixtureModel(name));
    ASSERT_TRUE(HasW4A16Experts(config));
    const Checkpoint checkpoint = Checkpoint::Open(FixtureModel(name));
    ExpertId id;
    id.layer = 1;
    id.index = 5;
    EXPECT_LT(MakeCpuExpertLayout(config, WeightType::kW4A16).blob_bytes * 3,
              MakeCpuExpertLayout(config, WeightType::kBf16).blob_bytes);
    ExpectNumbersKept(config, checkpoint, WeightType::kW4A16, id);
  }
}

// The rest is bf16 in both, and experts' numbers and activations are the same.
TEST(PackedInt4Test, OnlyExpertsArePacked) {
  const ModelWeights weights =
      ModelWeights::Shapes(LoadModelConfig(FixtureModel("kimi_k2_int4")), WeightType::kW4A16);
  EXPECT_EQ(weights.head.type, WeightType::kBf16);
  EXPECT_EQ(weights.layers.back().router.type, WeightType::kBf16);
  EXPECT_EQ(weights.layers.back().gate.type, WeightType::kBf16);
  EXPECT_EQ(weights.layers.front().gate.type, WeightType::kBf16);
}

TEST(PackedInt4Test, SaysWhatIsWrong) {
  const std::vector<BrokenCheckpoint> cases = {
      {"model.safetensors",
       "2.mlp.experts.3.up_proj.weight_scale",
       "2.mlp.experts.3.up_proj.weight_xcale",
       ErrorKind::kNotFound,
       {"layers.2.mlp.experts.3.up_proj.weight_scale"}},
      {"model.safetensors", "\"I32\"", "\"F32\"", ErrorKind::kCorrupt, {"weight_packed", "I32"}},
      {"model.safetensors",
       "\"I32\",\"shape\":[64,12]",
       "\"I32\",\"shape\":[12,64]",
       ErrorKind::kCorrupt,
       {"gate_proj.weight_packed", "shape [12, 64]", "expected [64, 12]"}},
      {"model.safetensors",
       "\"BF16\",\"shape\":[64,3]",
       "\"F16\", \"shape\":[64,3]",
       ErrorKind::kUnsupported,
       {"experts.0.gate_proj.weight", "scales that are not BF16", "--dtype bfloat16"}},
      {"model.safetensors",
       "1.mlp.experts.0.gate_proj.weight_packed",
       "1.mlp.experts.0.gate_proj.weight_xacked",
       ErrorKind::kNotFound,
       {"experts.0.gate_proj.weight"}},
      {"config.json",
       "\"group_size\": 32",
       "\"group_size\": 64",
       ErrorKind::kUnsupported,
       {"rows of 96", "multiple of 64"}},
      {"config.json",
       "\"num_bits\": 4",
       "\"num_bits\": 5",
       ErrorKind::kUnsupported,
       {"quantization_config", "pack-quantized"}}};
  ExpectRefused(FixtureModel("kimi_k2_int4"), cases, [](const fs::path& directory) {
    const ModelConfig config = LoadModelConfig(directory);
    MakeCheckpointExpertSource(config, WeightType::kW4A16, Checkpoint::Open(directory),
                               KernelsFor(Isa::kScalar));
  });
}

// A checkpoint whose experts are floats, whose configuration says packed.
TEST(PackedInt4Test, ExpertsThatAreNotPackedAreRefusedByName) {
  ModelConfig config = LoadModelConfig(FixtureModel("deepseek_v3_bf16_groups"));
  config.tensors.TransformAll(PackedInt4{32});
  const Checkpoint checkpoint = Checkpoint::Open(FixtureModel("deepseek_v3_bf16_groups"));
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  try {
    MakeCheckpointExpertSource(config, WeightType::kW4A16, checkpoint, kernels);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    for (const char* const word :
         {"experts.0.gate_proj.weight", "not packed", "--dtype bfloat16"}) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
  // As floats they are read.
  MakeCheckpointExpertSource(config, WeightType::kBf16, checkpoint, kernels);
}

}  // namespace
}  // namespace moesaic
