// MXFP4 weights: every code and exponent against the definition, and a checkpoint of them against
// the one of its products.
#include "serving/model/mxfp4_weights.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/gguf_blocks.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/pack_section.h"
#include "serving/model/stored_tensor.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/model/checkpoint_test_util.h"
#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/reference_util.h"
#include "tests/serving/model/relative_distance.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const fs::path kMxfp4Model = fs::path(MOESAIC_TEST_DATA_DIR) / "models/gpt_oss_mxfp4";
const fs::path kGgufModel = fs::path(MOESAIC_TEST_DATA_DIR) / "gguf/models/gpt_oss_mxfp4.gguf";

// One bit of sign, two of exponent (bias 1), one of mantissa.
TEST(Mxfp4Test, EveryCode) {
  for (int code = 0; code < 16; ++code) {
    const int exponent = code >> 1 & 3;
    const int mantissa = code & 1;
    const double magnitude =
        exponent == 0 ? 0.5 * mantissa : std::ldexp(1.0 + 0.5 * mantissa, exponent - 1);
    EXPECT_EQ(E2M1ToF32(code), code < 8 ? magnitude : -magnitude) << code;
    EXPECT_EQ(std::signbit(E2M1ToF32(code)), code >= 8) << code;
  }
}

TEST(Mxfp4Test, EveryExponent) {
  for (int exponent = 0; exponent < 255; ++exponent) {
    EXPECT_EQ(E8M0ToF32(static_cast<uint8_t>(exponent)), std::ldexp(1.0, exponent - 127));
  }
  EXPECT_TRUE(std::isnan(E8M0ToF32(255)));
}

TEST(Mxfp4Test, LowerHalvesComeFirstAndGroupsHaveTheirOwnScale) {
  constexpr int64_t kCols = 64;
  std::array<std::byte, kCols / 2> blocks;
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::byte>(i * 37 + 5);
  const std::array<std::byte, 2> scales = {std::byte{120}, std::byte{0}};
  std::array<float, kCols> out;
  DequantiseMxfp4(blocks.data(), scales.data(), kCols, out.data());
  for (int64_t i = 0; i < kCols; ++i) {
    const int byte = static_cast<int>(blocks[static_cast<size_t>(i / 2)]);
    const int code = i % 2 == 0 ? byte % 16 : byte / 16;
    EXPECT_EQ(static_cast<double>(out[static_cast<size_t>(i)]),
              std::ldexp(static_cast<double>(E2M1ToF32(code)), i < 32 ? -7 : -127))
        << i;
  }
}

// Rows of a form whose bytes are 0, 1, 2, ... as f32.
std::vector<float> Decoded(const RowForm& form, int64_t values, int64_t row_begin, int64_t count) {
  std::vector<float> stored(static_cast<size_t>(values));
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<float>(i);
  const std::array<std::span<const std::byte>, 1> pieces = {std::as_bytes(std::span(stored))};
  const std::array<DType, 1> dtypes = {DType::kF32};
  std::vector<float> out(static_cast<size_t>(count * form.cols));
  DecodeRows(form, pieces, dtypes, row_begin, count, out.data());
  return out;
}

TEST(StoredTensorTest, RowsByTurnsAndTransposed) {
  // [3 columns, 4 stored rows]; wanted are the stored rows 1 and 3.
  RowForm form = {.rows = 2, .cols = 3, .step = 2, .first = 1, .transposed = true};
  EXPECT_EQ(Decoded(form, 12, 0, 2), (std::vector<float>{1, 5, 9, 3, 7, 11}));
  EXPECT_EQ(Decoded(form, 12, 1, 1), (std::vector<float>{3, 7, 11}));
  form.transposed = false;
  EXPECT_EQ(Decoded(form, 12, 0, 2), (std::vector<float>{3, 4, 5, 9, 10, 11}));
}

// An expert store is made by another way of reading.
TEST(StoredTensorTest, PackedExpertsAreThoseOfTheCheckpoint) {
  for (const auto& [model, type] : {std::pair{"gpt_oss_mxfp4", WeightType::kF32},
                                    {"gpt_oss_mxfp4", WeightType::kMxfp4},
                                    {"gpt_oss_mxfp4", WeightType::kMxfp4F32},
                                    {"gpt_oss_bf16_window", WeightType::kF32},
                                    {"gpt_oss_fp32_odd", WeightType::kF32}}) {
    SCOPED_TRACE(model);
    const ModelConfig config = LoadModelConfig(FixtureModel(model));
    const Checkpoint checkpoint = Checkpoint::Open(FixtureModel(model));
    const auto tensors = MakeCheckpointTensorSource(checkpoint);
    const CpuKernels& kernels = KernelsFor(Isa::kScalar);
    const auto source = MakeCheckpointExpertSource(config, type, checkpoint, kernels);
    ExpertPacker packer(config, type, *tensors, kernels);
    std::vector<std::vector<std::byte>> blobs;
    for (const int index : {0, 3}) {
      ExpertId id;
      id.layer = 1;
      id.index = static_cast<uint16_t>(index);
      AlignedBuffer packed(source->layout().slot_bytes);
      AlignedBuffer loaded(source->layout().slot_bytes);
      packer.Pack(id, packed.span());
      // Gate and up are read once: they are rows of the same bytes.
      EXPECT_EQ(source->Extents(id).size(), model == std::string("gpt_oss_mxfp4") ? 4u : 2u);
      ReadAndPack(*source, checkpoint, id, loaded.span());
      EXPECT_EQ(std::memcmp(packed.data(), loaded.data(), packed.bytes()), 0);
      blobs.emplace_back(packed.data(), packed.data() + packed.bytes());
    }
    EXPECT_NE(blobs[0], blobs[1]);
  }
}

// Values and activations of products are the same numbers, and so are the sums.
TEST(Mxfp4Test, LogitsAreThoseOfTheValuesInBf16) {
  for (const Isa isa : IsasOf(NumericsClass::kF32)) {
    std::vector<float> expected;
    for (const WeightType type : {WeightType::kBf16, WeightType::kMxfp4F32}) {
      HarnessOptions options;
      options.isa = isa;
      options.weight_type = type;
      options.kv_blocks = 8;
      options.expert_slots = type == WeightType::kMxfp4F32 ? 3 : 0;
      ModelHarness model(kMxfp4Model, options);
      auto sequence = model.NewSequence(40);
      const std::vector<float> logits =
          model.Prefill(sequence, PromptOf(7, 33, static_cast<int>(model.config().vocab_size)), 10);
      if (expected.empty()) expected = logits;
      ASSERT_EQ(logits.size(), expected.size());
      EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
          << IsaName(isa);
    }
  }
}

// Of this expert, its blob as its numbers: of each matrix [rows, cols].
std::vector<std::vector<float>> NumbersOf(const ModelConfig& config, WeightType type, ExpertId id,
                                          const std::byte* blob) {
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  std::vector<std::vector<float>> numbers;
  for (const ExpertSection& section : MakeCpuExpertLayout(config, type).sections) {
    const PackedMatrix matrix = SectionMatrix(section, blob, id.layer);
    EXPECT_EQ(matrix.type, InExperts(type));
    std::vector<float>& rows = numbers.emplace_back(static_cast<size_t>(matrix.n * matrix.k));
    for (int64_t row = 0; row < matrix.n; ++row) {
      kernels.unpack_row(matrix, row, rows.data() + row * matrix.k);
    }
  }
  return numbers;
}

// Zeros have no sign there.
TEST(Mxfp4Test, BlocksForInt8ActivationsAreTheSameNumbers) {
  const ModelConfig config = LoadModelConfig(kMxfp4Model);
  const Checkpoint checkpoint = Checkpoint::Open(kMxfp4Model);
  ExpertId id;
  id.layer = 1;
  id.index = 4;
  const std::vector<std::vector<float>> expected =
      NumbersOf(config, WeightType::kMxfp4F32, id,
                LoadExpert(config, checkpoint, WeightType::kMxfp4F32, id).data());
  EXPECT_EQ(NumbersOf(config, WeightType::kMxfp4, id,
                      LoadExpert(config, checkpoint, WeightType::kMxfp4, id).data()),
            expected);
}

// Random weights, of which there are numbers alone, are rounded to the same ones.
TEST(Mxfp4Test, DummiesOfBothKindsAreTheSameNumbers) {
  const ModelConfig config = LoadModelConfig(kMxfp4Model);
  const auto tensors = MakeDummyTensorSource(5);
  ExpertId id;
  id.index = 2;
  std::vector<std::vector<std::vector<float>>> numbers;
  for (const WeightType type : {WeightType::kMxfp4F32, WeightType::kMxfp4}) {
    ExpertPacker packer(config, type, *tensors, KernelsFor(Isa::kScalar));
    AlignedBuffer blob(packer.layout().slot_bytes);
    packer.Pack(id, blob.span());
    numbers.push_back(NumbersOf(config, type, id, blob.data()));
  }
  EXPECT_EQ(numbers[0], numbers[1]);
  EXPECT_NE(numbers[0][0], numbers[0][1]);
}

// llama.cpp's converter keeps the blocks of the checkpoint.
TEST(Mxfp4Test, ExpertsAreThoseOfTheGgufFile) {
  const CpuKernels& kernels = KernelsFor(Isa::kScalar);
  const ModelConfig config = LoadModelConfig(kMxfp4Model);
  const ModelConfig gguf_config = LoadModelConfig(kGgufModel);
  const Checkpoint checkpoint = Checkpoint::Open(kMxfp4Model);
  const Checkpoint gguf = Checkpoint::Open(kGgufModel);
  const auto source = MakeCheckpointExpertSource(config, WeightType::kMxfp4, checkpoint, kernels);
  const auto gguf_source =
      MakeCheckpointExpertSource(gguf_config, WeightType::kGguf, gguf, kernels);
  ASSERT_EQ(source->layout().slot_bytes, gguf_source->layout().slot_bytes);
  AlignedBuffer blob(source->layout().slot_bytes);
  AlignedBuffer gguf_blob(source->layout().slot_bytes);
  for (const ExpertId id : AllExperts(config)) {
    ReadAndPack(*source, checkpoint, id, blob.span());
    ReadAndPack(*gguf_source, gguf, id, gguf_blob.span());
    EXPECT_EQ(std::memcmp(blob.data(), gguf_blob.data(), blob.bytes()), 0)
        << id.layer << " " << id.index;
  }
}

// And so do the whole models, wherever experts are: the rest is the same numbers.
TEST(Mxfp4Test, LogitsAreThoseOfTheGgufFile) {
  enum class Experts { kOfGguf, kFromDisk, kOnDevice };
  std::vector<float> expected;
  for (const Isa isa : IsasOf(NumericsClass::kF32)) {
    for (const Experts experts : {Experts::kOfGguf, Experts::kFromDisk, Experts::kOnDevice}) {
      const bool of_gguf = experts == Experts::kOfGguf;
      HarnessOptions options;
      options.isa = isa;
      options.weight_type = of_gguf ? WeightType::kGguf : WeightType::kMxfp4;
      options.kv_blocks = 8;
      options.threads = of_gguf ? 1 : 2;
      if (experts == Experts::kFromDisk) options.expert_slots = 2;
      if (experts == Experts::kOnDevice) {
        options.devices = 1;
        options.device_slots = 3;
      }
      ModelHarness model(of_gguf ? kGgufModel : kMxfp4Model, options);
      auto sequence = model.NewSequence(40);
      const std::vector<float> logits = model.Prefill(sequence, PromptOf(7, 33, 90), 10);
      if (expected.empty()) expected = logits;
      ASSERT_EQ(logits.size(), expected.size());
      EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
          << IsaName(isa) << ", way " << static_cast<int>(experts);
    }
  }
  HarnessOptions unrounded;
  unrounded.weight_type = WeightType::kMxfp4F32;
  unrounded.kv_blocks = 8;
  ModelHarness model(kMxfp4Model, unrounded);
  auto sequence = model.NewSequence(40);
  const std::vector<float> f32 = model.Prefill(sequence, PromptOf(7, 33, 90), 10);
  const double distance = RelativeDistance(expected, f32);
  EXPECT_GT(distance, 0.0);
  EXPECT_LT(distance, 0.03);
}

TEST(Mxfp4Test, ABlockThatIsNoNumberIsRefused) {
  constexpr int64_t kInputs = 64;
  const std::vector<std::byte> codes(16 * kInputs / 2, std::byte{0x21});
  std::vector<std::byte> exponents(16 * kInputs / kMxfp4Group, std::byte{127});
  PackedMatrix matrix = {nullptr, WeightType::kGguf, 16, kInputs, kMxfp4Form};
  AlignedBuffer blob(static_cast<size_t>(matrix.bytes()));
  matrix.data = blob.data();
  const auto pack = [&] {
    const RowForm form = {.values = StoredValues::kMxfp4, .rows = 16, .cols = kInputs};
    const std::array<std::span<const std::byte>, 2> pieces = {codes, exponents};
    const std::array<DType, 2> dtypes = {DType::kU8, DType::kU8};
    PackSection(matrix, KernelsFor(Isa::kScalar), form, pieces, dtypes);
  };
  EXPECT_NO_THROW(pack());
  exponents.back() = std::byte{255};
  const Error error = Caught(pack);
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_NE(std::string(error.what()).find("--dtype mxfp4-float32"), std::string::npos)
      << error.what();
}

// The two kinds lie differently: a store is of one, and says how the other is made.
TEST(Mxfp4Test, AStoreIsOfOneKindOfActivations) {
  const ModelConfig config = LoadModelConfig(kMxfp4Model);
  const Checkpoint checkpoint = Checkpoint::Open(kMxfp4Model);
  const auto tensors = MakeCheckpointTensorSource(checkpoint);
  ThreadPool pool(1);
  const TempDir directory;
  const std::vector<fs::path> store = {directory.path() / "store"};
  const auto open = [&](WeightType type) {
    return MakeStoreExpertSource(config, type, tensors->Fingerprint(), store);
  };
  for (const auto& [packed, other] : {std::pair{WeightType::kMxfp4, WeightType::kMxfp4F32},
                                      std::pair{WeightType::kMxfp4F32, WeightType::kMxfp4}}) {
    WriteExpertStore(config, packed, *tensors, KernelsFor(Isa::kScalar), pool, store.front(),
                     [](int64_t, int64_t) {});
    EXPECT_NO_THROW(open(packed));
    const WeightType wanted = other;
    const Error error = Caught([&] { open(wanted); });
    const std::string message = error.what();
    EXPECT_NE(message.find(fmt::format("its weights are {} and not {} (--dtype)",
                                       TraitsOf(packed).dtype, TraitsOf(wanted).dtype)),
              std::string::npos)
        << message;
    EXPECT_NE(message.find(fmt::format("pack MODEL --dtype {} -o", TraitsOf(wanted).dtype)),
              std::string::npos)
        << message;
  }
}

TEST(Mxfp4Test, SaysWhatIsWrong) {
  const std::vector<BrokenCheckpoint> cases = {
      {"model.safetensors",
       "1.mlp.experts.down_proj_scales",
       "1.mlp.experts.down_proj_xcales",
       ErrorKind::kNotFound,
       {"layers.1.mlp.experts.down_proj_scales", "missing", "mxfp4"}},
      {"model.safetensors",
       "[6,96,2,16]",
       "[6,2,96,16]",
       ErrorKind::kCorrupt,
       {"down_proj_blocks", "[6, 2, 96, 16]", "expected [6, 96, 2, 16]"}},
      {"config.json",
       "\"hidden_size\": 96",
       "\"hidden_size\": 80",
       ErrorKind::kUnsupported,
       {"80", "multiple of 32"}},
      {"config.json",
       "\"mxfp4\"",
       "\"mxfp6\"",
       ErrorKind::kUnsupported,
       {"quantization_config", "mxfp6", "mxfp4 experts of gpt_oss"}}};
  ExpectRefused(kMxfp4Model, cases, [](const fs::path& directory) {
    const ModelConfig config = LoadModelConfig(directory);
    MakeCheckpointExpertSource(config, WeightType::kBf16, Checkpoint::Open(directory),
                               KernelsFor(Isa::kScalar));
  });
}

}  // namespace
}  // namespace moesaic
