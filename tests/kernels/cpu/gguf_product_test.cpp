// Products with GGUF's blocks: values, packing, and the bits of the same weights in f32.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cpu/gguf_blocks.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using namespace testing_util;

constexpr const char* kTypes[] = {"F32",  "F16",    "BF16",   "Q4_0", "Q4_1", "Q5_0",
                                  "Q5_1", "Q8_0",   "Q2_K",   "Q3_K", "Q4_K", "Q5_K",
                                  "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};

// Where the f16 numbers of a block are, which random bytes would make infinite; -1: none.
struct Halves {
  int first = -1;
  int second = -1;
};
Halves HalvesOf(std::string_view type) {
  if (type == "Q4_1" || type == "Q5_1" || type == "Q4_K" || type == "Q5_K") return {0, 2};
  if (type == "Q2_K") return {80, 82};
  if (type == "Q3_K") return {108, -1};
  if (type == "Q6_K") return {208, -1};
  if (type == "MXFP4") return {};
  return {0, -1};
}

// Rows of random blocks with scales of both signs, some of them subnormal, as they lie in a file,
// in panels and as numbers.
class BlockWeights {
 public:
  BlockWeights(const char* type, int64_t n, int64_t k, Random& random)
      : type_(*FindGgufType(type)), matrix_{nullptr, WeightType::kGguf, n, k, GgufFormOf(type_)} {
    const int64_t blocks = k / type_.block_values;
    const int64_t row_bytes = blocks * type_.block_bytes;
    rows_.resize(static_cast<size_t>(n * row_bytes));
    for (std::byte& byte : rows_) byte = static_cast<std::byte>(random.Uniform(0, 255));
    for (int64_t block = 0; block < n * blocks; ++block) {
      std::byte* const at = rows_.data() + block * type_.block_bytes;
      Tame(at, random);
    }
    values_.resize(static_cast<size_t>(n * k));
    DequantiseGguf(type_, rows_, values_);
    panels_ = AlignedBuffer(static_cast<size_t>(matrix_.bytes()));
    panels_.Zero();
    matrix_.data = panels_.data();
    for (int64_t row = 0; row < n; ++row) {
      PackGgufRow(matrix_, row, rows_.data() + row * row_bytes,
                  panels_.data() + row / kPanelOutputs * matrix_.panel_bytes());
    }
  }
  const PackedMatrix& matrix() const { return matrix_; }
  const std::vector<float>& values() const { return values_; }

 private:
  // Makes numbers finite and not too large.
  void Tame(std::byte* block, Random& random) const {
    if (type_.name == "MXFP4") {
      block[0] = static_cast<std::byte>(random.Uniform(0, 140));
    } else if (type_.block_values > 1) {
      for (const int at : {HalvesOf(type_.name).first, HalvesOf(type_.name).second}) {
        if (at >= 0) block[at + 1] &= std::byte{0xbf};
      }
    } else if (type_.name == "F32") {
      const float value = random.Normal();
      std::memcpy(block, &value, sizeof(value));
    } else {
      block[1] &= std::byte{0xbf};
    }
  }

  const GgufType& type_;
  PackedMatrix matrix_;
  std::vector<std::byte> rows_;
  std::vector<float> values_;
  AlignedBuffer panels_;
};

class GgufProductTest : public testing::TestWithParam<Isa> {
 protected:
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
};

TEST_P(GgufProductTest, RowsAreTheValuesOfTheirBlocks) {
  for (const char* const type : kTypes) {
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
  for (const char* const type : kTypes) {
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
