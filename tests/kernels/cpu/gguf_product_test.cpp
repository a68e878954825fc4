// Products with GGUF's blocks and f32 activations: values, packing, and the bits of the same
// weights in f32.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cpu/gguf_blocks.h"
#include "tests/kernels/cpu/gguf_test_util.h"

namespace moesaic {
namespace {

using namespace testing_util;

constexpr const char* kPlainTypes[] = {"F32", "F16", "BF16"};

std::vector<const char*> AllTypes() {
  std::vector<const char*> types(std::begin(kPlainTypes), std::end(kPlainTypes));
  types.insert(types.end(), std::begin(kGgufBlockTypes), std::end(kGgufBlockTypes));
  return types;
}

class GgufProductTest : public testing::TestWithParam<Isa> {
 protected:
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
};

TEST_P(GgufProductTest, RowsAreTheValuesOfTheirBlocks) {
  for (const char* const type : AllTypes()) {
    SCOPED_TRACE(type);
    const BlockWeights w(type, 37, 512, random_);
    std::vector<float> got(w.values().size());
    for (int64_t row = 0; row < 37; ++row) {
      kernels_.unpack_row(w.matrix(), row, got.data() + row * 512);
    }
    EXPECT_EQ(std::memcmp(got.data(), w.values().data(), got.size() * sizeof(float)), 0);
  }
}

TEST_P(GgufProductTest, ProductsAreThoseOfTheValuesInF32) {
  constexpr int64_t kMostRows = 110;
  for (const char* const type : AllTypes()) {
    SCOPED_TRACE(type);
    const int64_t block = FindGgufType(type)->block_values;
    const int64_t k = block == 256 ? 768 : 288;
    const BlockWeights w(type, 53, k, random_);
    Weights weights(KernelsFor(Isa::kScalar), w.values(), 53, k, WeightType::kF32);
    const PackedMatrix f32 = weights.matrix;
    const std::vector<float> x_values = random_.Normals(kMostRows * k);
    const std::vector<float> bias = random_.Normals(53);
    const Activations x(KernelsFor(Isa::kScalar), x_values, kMostRows, k, WeightType::kF32);
    for (const int64_t m : {int64_t{1}, int64_t{3}, int64_t{17}, kMostRows}) {
      weights.matrix = f32;
      const std::vector<float> expected =
          Multiply(KernelsFor(Isa::kScalar), x, weights, m, bias.data(), 4);
      weights.matrix = w.matrix();
      for (const int64_t step : {1, 3, 4}) {
        EXPECT_TRUE(SameBits(Multiply(kernels_, x, weights, m, bias.data(), step), expected))
            << m << " rows, " << step << " panels at once";
      }
    }
  }
}

// Gate and up are of two types.
TEST_P(GgufProductTest, GateAndUpAreThoseOfTheValuesInF32) {
  constexpr int64_t kOutputs = 40;
  constexpr int64_t kInputs = 512;
  constexpr int64_t kRows = 19;
  const std::pair<const char*, const char*> pairs[] = {
      {"Q4_K", "Q6_K"}, {"Q8_0", "Q4_K"}, {"F16", "IQ4_XS"}};
  for (const auto& [gate_type, up_type] : pairs) {
    SCOPED_TRACE(gate_type);
    const BlockWeights gate(gate_type, kOutputs, kInputs, random_);
    const BlockWeights up(up_type, kOutputs, kInputs, random_);
    const CpuKernels& scalar = KernelsFor(Isa::kScalar);
    Weights gate_f32(scalar, gate.values(), kOutputs, kInputs, WeightType::kF32);
    Weights up_f32(scalar, up.values(), kOutputs, kInputs, WeightType::kF32);
    const Activations x(scalar, random_.Normals(kRows * kInputs, 0.01f), kRows, kInputs,
                        WeightType::kF32);
    const AlignedBuffer expected = HiddenRows(scalar, x, gate_f32, up_f32, kRows, 1);
    gate_f32.matrix = gate.matrix();
    up_f32.matrix = up.matrix();
    for (const int64_t step : {1, 2, 3}) {
      const AlignedBuffer got = HiddenRows(kernels_, x, gate_f32, up_f32, kRows, step);
      ASSERT_EQ(got.bytes(), expected.bytes());
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.bytes()), 0) << step;
    }
  }
}

TEST(GgufFormTest, BytesAreThoseOfTheFile) {
  const PackedMatrix w = {nullptr, WeightType::kGguf, 128, 2048, GgufFormOf(*FindGgufType("Q4_K"))};
  EXPECT_EQ(w.bytes(), 128 * 8 * 144);
  EXPECT_EQ(GgufF32Form(40), (GgufForm{0, 8, 32}));
  EXPECT_EQ(GgufF32Form(33), (GgufForm{0, 1, 4}));
}

INSTANTIATE_TEST_SUITE_P(Isas, GgufProductTest, testing::ValuesIn(SupportedIsas()), IsaParamName);

}  // namespace
}  // namespace moesaic
