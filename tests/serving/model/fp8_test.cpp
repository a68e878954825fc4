// Block-scaled fp8 checkpoints: the same bits as the checkpoint of their products in f32
// (tests/reference/make_fp8_fixture.py).
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <numeric>

#include "core/base/error.h"
#include "core/base/file.h"
#include "serving/model/fp8_weights.h"
#include "serving/model/latent_weights.h"
#include "serving/model/weights.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/model/checkpoint_test_util.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/reference_util.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const fs::path kFp8Models = fs::path(MOESAIC_TEST_DATA_DIR) / "fp8";

TEST(Fp8Test, EveryCode) {
  for (int code = 0; code < 256; ++code) {
    const int exponent = code >> 3 & 15;
    const int mantissa = code & 7;
    const double magnitude =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 7 - 3);
    const float value = Fp8E4M3ToF32(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(value, code < 128 ? magnitude : -magnitude) << code;
      EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
  }
}

TEST(Fp8Test, WidensInPlaceFromAnyRow) {
  constexpr int64_t kRows = 7, kCols = 11;
  const BlockScales blocks = {3, 4};
  const std::array<float, 9> scales = {1, 2, 3, 10, 20, 30, 100, 200, 300};  // [3, 3]
  for (const int64_t first : {0, 2, 5}) {
    const int64_t count = (kRows - first) * kCols;
    std::vector<float> out(static_cast<size_t>(count));
    auto* const bytes = reinterpret_cast<std::byte*>(out.data()) + 3 * count;
    for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 37 % 127);
    DequantiseFp8(bytes, first, kRows - first, kCols,
                  reinterpret_cast<const std::byte*>(scales.data()), DType::kF32, blocks,
                  out.data());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t block = (first + i / kCols) / 3 * 3 + i % kCols / 4;
      ASSERT_EQ(out[i], Fp8E4M3ToF32(static_cast<uint8_t>(i * 37 % 127)) * scales[block]) << i;
    }
  }
}

TEST(Fp8Test, ScalesOfEveryType) {
  constexpr int64_t kCols = 4;
  const std::array<std::byte, kCols> values = {std::byte{0x38}, std::byte{0x40}, std::byte{0xb8},
                                               std::byte{0x30}};  // 1, 2, -1, 0.5
  const auto widened = [&](const void* scales, DType type) {
    std::vector<float> out(kCols);
    DequantiseFp8(values.data(), 0, 1, kCols, static_cast<const std::byte*>(scales), type, {1, 2},
                  out.data());
    return out;
  };
  const std::vector<float> expected = {1.5f, 3, -3, 1.5f};
  const std::array<float, 2> f32 = {1.5f, 3};
  const std::array<uint16_t, 2> f16 = {0x3e00, 0x4200};
  const std::array<uint16_t, 2> bf16 = {0x3fc0, 0x4040};
  EXPECT_EQ(widened(f32.data(), DType::kF32), expected);
  EXPECT_EQ(widened(f16.data(), DType::kF16), expected);
  EXPECT_EQ(widened(bf16.data(), DType::kBF16), expected);
}

TEST(Fp8Test, AnotherShapeWithAsManyBlocksIsRefused) {
  const fs::path directory = kFp8Models / "qwen3_moe";
  const Checkpoint checkpoint = Checkpoint::Open(directory);
  const PlannedTensor tensor = LoadModelConfig(directory).tensors.At(TensorSlot::kExpertDown, 0, 0);
  EXPECT_TRUE(FindFp8(checkpoint, tensor, std::array<int64_t, 2>{48, 40}).has_value());
  try {
    FindFp8(checkpoint, tensor, std::array<int64_t, 2>{47, 40});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find("expected [47, 40]"), std::string::npos);
  }
}

std::vector<float> Logits(const fs::path& model_dir, WeightType type, int64_t expert_slots) {
  HarnessOptions options;
  options.weight_type = type;
  options.expert_slots = expert_slots;
  options.kv_blocks = 8;
  ModelHarness model(model_dir, options);
  auto sequence = model.NewSequence(40);
  std::vector<int32_t> tokens(33);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 29 % 64);
  return model.Prefill(sequence, tokens, 10);
}

TEST(Fp8Test, LogitsAreThoseOfTheProducts) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    const std::vector<float> expected = Logits(kFp8Models / "qwen3_moe_dequantised", type, 0);
    ASSERT_TRUE(std::isfinite(std::accumulate(expected.begin(), expected.end(), 0.0)));
    for (const int64_t slots : {0, 3}) {
      const std::vector<float> logits = Logits(kFp8Models / "qwen3_moe", type, slots);
      ASSERT_EQ(logits.size(), expected.size());
      EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
          << WeightTypeName(type) << ", " << slots << " slots";
    }
  }
}

ExpertId ExpertOf(uint16_t layer, uint16_t index) {
  ExpertId id;
  id.layer = layer;
  id.index = index;
  return id;
}

TEST(Fp8Test, PackedExpertsAreThoseOfTheCheckpoint) {
  const ModelConfig config = LoadModelConfig(kFp8Models / "qwen3_moe");
  const Checkpoint checkpoint = Checkpoint::Open(kFp8Models / "qwen3_moe");
  LoadExpert(config, checkpoint, WeightType::kInt4, ExpertOf(1, 3));
}

const char* const kReleased[] = {"deepseek_v3_fp8", "minimax_m2_fp8", "glm4_moe_fp8"};

// Values and scales in memory are the checkpoint's, so that both are near transformers on the
// products; rounding the weights to bf16 is not.
TEST(Fp8Test, LogitsAreThoseOfTransformersOnTheProducts) {
  for (const char* const name : kReleased) {
    const Reference reference(FixtureModel(name));
    const auto& prompt = reference.prompts().back();
    const std::vector<float> expected =
        reference.Floats(Key(reference.prompts().size() - 1, "logits"));
    double largest = 0;
    for (const float logit : expected) largest = std::max(largest, std::abs(double{logit}));
    const auto distance = [&](WeightType type, Isa isa) {
      HarnessOptions options;
      options.isa = isa;
      options.weight_type = type;
      options.kv_type = WeightType::kF32;
      options.kv_blocks = 8;
      options.max_batch_tokens = static_cast<int64_t>(prompt.tokens.size());
      ModelHarness model(FixtureModel(name), options);
      auto sequence = model.NewSequence(static_cast<int64_t>(prompt.tokens.size()));
      const std::vector<float> logits = model.Prefill(sequence, prompt.tokens, 64);
      EXPECT_EQ(logits.size(), expected.size());
      double worst = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(std::isfinite(logits[i])) << i;
        worst = std::max(worst, std::abs(double{logits[i]} - double{expected[i]}));
      }
      return worst / largest;
    };
    for (const Isa isa : IsasOf(NumericsClass::kF32)) {
      EXPECT_LE(distance(WeightType::kFp8, isa), 1e-4) << name << " " << IsaName(isa);
      EXPECT_LE(distance(WeightType::kF32, isa), 1e-4) << name << " " << IsaName(isa);
    }
    EXPECT_GT(distance(WeightType::kBf16, Isa::kScalar), 1e-4) << name;
  }
}

TEST(Fp8Test, WeightsInMemoryAreEightBitsButForWhatTheCheckpointHasInBf16) {
  for (const char* const name : kReleased) {
    const ModelConfig config = LoadModelConfig(FixtureModel(name));
    ASSERT_TRUE(HasFp8Experts(config)) << name;
    const ModelWeights weights = ModelWeights::Shapes(config, WeightType::kFp8);
    EXPECT_EQ(weights.embedding.type, WeightType::kBf16);
    EXPECT_EQ(weights.head.type, WeightType::kBf16);
    const LayerWeights& layer = weights.layers.back();
    EXPECT_EQ(layer.router.type, WeightType::kBf16);
    if (config.shared_width() > 0) {
      EXPECT_EQ(layer.gate.type, WeightType::kFp8) << name;
      EXPECT_EQ(layer.down.type, WeightType::kFp8) << name;
    }
    if (const auto* const latent = std::get_if<LatentWeights>(&layer.mixer)) {
      for (const PackedMatrix* matrix : MatricesOf(*latent)) {
        EXPECT_TRUE(matrix->n == 0 || matrix->type == WeightType::kFp8) << name;
      }
    }
    const ExpertLayout layout = MakeCpuExpertLayout(config, WeightType::kFp8);
    EXPECT_EQ(layout.sections[0].dtype, DType::kF8E4M3);
    EXPECT_LT(layout.blob_bytes,
              MakeCpuExpertLayout(config, WeightType::kBf16).blob_bytes * 6 / 10);
  }
  // Blocks of 32 columns have four scales for a group.
  EXPECT_FALSE(HasFp8Experts(LoadModelConfig(kFp8Models / "qwen3_moe")));
}

TEST(Fp8Test, GateAndUpAreOfOneType) {
  ModelConfig config = LoadModelConfig(FixtureModel("glm4_moe_fp8"));
  config.plain_modules = {"model.layers.0.mlp.gate_proj"};
  const ModelWeights weights = ModelWeights::Shapes(config, WeightType::kFp8);
  EXPECT_EQ(weights.layers[0].gate.type, WeightType::kBf16);
  EXPECT_EQ(weights.layers[0].up.type, WeightType::kBf16);
  EXPECT_EQ(weights.layers[0].down.type, WeightType::kFp8);
  EXPECT_EQ(weights.layers[1].gate.type, WeightType::kFp8);
}

// Where a group of a head's rows has several scales, keys and values of latents are f32, exact.
TEST(Fp8Test, AbsorbedMatricesWhoseScalesDoNotFitAreF32) {
  ModelConfig config = LoadModelConfig(FixtureModel("deepseek_v3_fp8"));
  for (LayerSpec& layer : config.layers) {
    auto& latent = std::get<LatentSpec>(layer.mixer);
    latent.nope_dim = 100;  // 156 rows a head: those of the third one are in two blocks
  }
  const ModelWeights weights = ModelWeights::Shapes(config, WeightType::kFp8);
  const auto& latent = std::get<LatentWeights>(weights.layers[0].mixer);
  EXPECT_EQ(latent.keys.type, WeightType::kF32);
  EXPECT_EQ(latent.values.type, WeightType::kF32);
  EXPECT_EQ(latent.output.type, WeightType::kFp8);
}

TEST(Fp8Test, KeptExpertsAreThoseOfTheCheckpoint) {
  for (const char* const name : kReleased) {
    SCOPED_TRACE(name);
    const ModelConfig config = LoadModelConfig(FixtureModel(name));
    const Checkpoint checkpoint = Checkpoint::Open(FixtureModel(name));
    // The numbers are the products, of which f32 has each rounded once.
    ExpectNumbersKept(config, checkpoint, WeightType::kFp8, ExpertOf(1, 5));
  }
}

// A checkpoint in bf16 whose configuration says fp8.
TEST(Fp8Test, TensorsThatAreNotFp8AreRefusedByName) {
  const fs::path from = FixtureModel("minimax_m2_bf16_rotary_dim");
  const TempDir directory;
  fs::copy_file(from / "model.safetensors", directory.path() / "model.safetensors");
  std::string text = ReadTextFile(from / "config.json", 1 << 20);
  text.insert(text.find('{') + 1, R"("quantization_config": {"quant_method": "fp8",
                                     "weight_block_size": [128, 128]},)");
  std::ofstream(directory.path() / "config.json") << text;
  const ModelConfig config = LoadModelConfig(directory.path());
  ASSERT_TRUE(HasFp8Experts(config));
  const auto expect_refused = [](const char* tensor, const auto& call) {
    try {
      call();
      ADD_FAILURE() << tensor << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      for (const char* const word :
           {tensor, "F8_E4M3", "quantization_config", "--dtype bfloat16"}) {
        EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
      }
    }
  };
  const Checkpoint checkpoint = Checkpoint::Open(directory.path());
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  expect_refused("experts.0.w1.weight", [&] {
    MakeCheckpointExpertSource(config, WeightType::kFp8, checkpoint, kernels);
  });
  expect_refused("experts.0.w1.weight", [&] {
    const auto tensors = MakeCheckpointTensorSource(checkpoint);
    ExpertPacker packer(config, WeightType::kFp8, *tensors, kernels);
    AlignedBuffer slot(packer.layout().slot_bytes);
    packer.Pack({}, slot.span());
  });
  expect_refused("self_attn.q_proj.weight", [&] {
    const auto tensors = MakeCheckpointTensorSource(checkpoint);
    ThreadPool pool(1);
    ModelWeights::Load(config, WeightType::kFp8, *tensors, kernels, pool);
  });
}

TEST(Fp8Test, SaysWhatIsWrong) {
  const std::vector<BrokenCheckpoint> cases = {
      {"model.safetensors",
       "1.self_attn.q_proj.weight_scale_inv",
       "1.self_attn.q_proj.weight_other_inv",
       ErrorKind::kNotFound,
       {"layers.1.self_attn.q_proj.weight_scale_inv", "missing"}},
      {"model.safetensors",
       "0.mlp.experts.2.up_proj.weight_scale_inv",
       "0.mlp.experts.2.up_proj.weight_other_inv",
       ErrorKind::kNotFound,
       {"experts.2.up_proj.weight_scale_inv", "missing"}},
      {"config.json",
       "quantization_config",
       "quantization_xxxxxx",
       ErrorKind::kUnsupported,
       {"F8_E4M3", "quantization_config", "weight_block_size"}},
      {"config.json", "16,", " 8,", ErrorKind::kCorrupt, {"scale_inv", "shape"}}};
  ExpectRefused(kFp8Models / "qwen3_moe", cases,
                [](const fs::path& directory) { Logits(directory, WeightType::kBf16, 0); });
}

}  // namespace
}  // namespace moesaic
