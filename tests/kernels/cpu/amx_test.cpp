// The products of the tile registers, on emulated ones: packing and control flow on any CPU. Where
// the CPU has the registers, MatmulTest and QuantTest run them as they run every instruction set.
#include <algorithm>

#include "kernels/cpu/amx_support.h"
#include "kernels/cpu/coded_weights.h"
#include "kernels/cpu/internal/tables.h"
#include "tests/kernels/cpu/emulated_amx.h"
#include "tests/kernels/cpu/gguf_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::AsWeights;
using testing_util::BlockWeights;
using testing_util::Dot;
using testing_util::DotOf;
using testing_util::DotTolerance;
using testing_util::Random;
using testing_util::SameBits;
using testing_util::TestSeed;
using testing_util::Weights;

constexpr WeightType kIntegers[] = {WeightType::kInt8, WeightType::kInt4};

class AmxTest : public ::testing::Test {
 protected:
  AmxTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}
  void TearDown() override { EXPECT_TRUE(testing_util::EmulatedTilesAreReleased()); }

  const CpuKernels& scalar_ = KernelsFor(Isa::kScalar);
  const CpuKernels amx_ = testing_util::WithEmulatedAmx(scalar_);
  Random random_;
  ::testing::ScopedTrace trace_;
};

// The rows of h in their own bytes.
std::vector<std::byte> HiddenBytes(const CpuKernels& kernels, const Activations& x,
                                   const Weights& gate, const Weights& up, int64_t m,
                                   int64_t panel_step, const int32_t* rows = nullptr) {
  const AlignedBuffer h = testing_util::HiddenRows(kernels, x, gate, up, m, panel_step, rows);
  return {h.data(), h.data() + h.bytes()};
}

TEST_F(AmxTest, IntegersGiveTheBitsOfOtherInstructionSets) {
  for (const WeightType type : kIntegers) {
    for (const int64_t m : {1, 2, 15, 16, 17, 33, 48, 49, 70}) {
      const int64_t n = random_.Uniform(1, 300);
      const int64_t k = random_.Uniform(1, 1000);
      SCOPED_TRACE(fmt::format("{} m={} n={} k={}", WeightTypeName(type), m, n, k));
      const Activations x(scalar_, random_.Normals(m * k), m, k, type);
      const Weights w(scalar_, random_.Normals(n * k), n, k, type);
      const Weights up(scalar_, random_.Normals(n * k), n, k, type);
      const std::vector<float> bias = random_.Normals(n);
      const std::vector<float> expected = Multiply(scalar_, x, w, m, bias.data(), 100);
      for (const int64_t step : {1, 3, 100}) {
        ASSERT_TRUE(SameBits(Multiply(amx_, x, w, m, bias.data(), step), expected)) << step;
      }
      EXPECT_EQ(HiddenBytes(amx_, x, w, up, m, 8), HiddenBytes(scalar_, x, w, up, m, 100));
    }
  }
}

// Rows whose scales just have room beside each other, and longer ones.
TEST_F(AmxTest, IntegersOfVeryLongRows) {
  for (const int64_t k : {131072, 131080}) {
    constexpr int64_t kRows = 33, kN = 3;
    std::vector<float> source(static_cast<size_t>(kRows * k));
    for (size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<float>(i * 7919 % 2003) - 1000.0f;
    }
    const Activations x(scalar_, source, kRows, k, WeightType::kInt8);
    source.resize(static_cast<size_t>(kN * k));
    const Weights w(scalar_, source, kN, k, WeightType::kInt8);
    EXPECT_TRUE(SameBits(Multiply(amx_, x, w, kRows, nullptr, 1),
                         Multiply(scalar_, x, w, kRows, nullptr, 1)))
        << k;
  }
}

// Scales of 16 and of 32 inputs, with addends and without; a last group that is not whole, rows of
// one tile and of more, some of which two tiles share.
TEST_F(AmxTest, BlocksGiveTheBitsOfPlainCode) {
  constexpr int64_t kN = 75;
  for (const char* const type : {"Q8_0", "Q4_1", "MXFP4", "Q2_K", "Q4_K", "Q6_K"}) {
    const bool large = std::string_view(type).find('K') != std::string_view::npos;
    const int64_t k = large ? 512 : 416;
    const BlockWeights gate_blocks(type, kN, k, random_, WeightType::kGguf);
    const BlockWeights up_blocks(type, kN, k, random_, WeightType::kGguf);
    const Weights gate = AsWeights(gate_blocks);
    const Weights up = AsWeights(up_blocks);
    for (const int64_t m : {1, 9, 16, 35, 130}) {
      SCOPED_TRACE(fmt::format("{}, {} rows", type, m));
      const Activations x(scalar_, random_.Normals(m * k, 0.01f), m, k, WeightType::kGguf);
      const std::vector<float> expected = Multiply(scalar_, x, gate, m, nullptr, 100);
      for (const int64_t step : {1, 3, 100}) {
        EXPECT_TRUE(SameBits(Multiply(amx_, x, gate, m, nullptr, step), expected)) << step;
      }
      EXPECT_EQ(HiddenBytes(amx_, x, gate, up, m, 8), HiddenBytes(scalar_, x, gate, up, m, 100));
    }
  }
}

// Rows that do not fit beside each other and are multiplied part by part, more panels than one pass
// takes, and a last tile that shares rows with the one before.
TEST_F(AmxTest, LongRowsInParts) {
  constexpr int64_t kRows = 69, kN = 300, kK = 4300, kIntegerN = 70, kIntegerK = 8300;
  for (const WeightType type : kIntegers) {
    const Activations x(scalar_, random_.Normals(kRows * kIntegerK), kRows, kIntegerK, type);
    const Weights w(scalar_, random_.Normals(kIntegerN * kIntegerK), kIntegerN, kIntegerK, type);
    EXPECT_TRUE(SameBits(Multiply(amx_, x, w, kRows, nullptr, 100),
                         Multiply(scalar_, x, w, kRows, nullptr, 100)))
        << WeightTypeName(type);
    EXPECT_EQ(HiddenBytes(amx_, x, w, w, kRows, 16), HiddenBytes(scalar_, x, w, w, kRows, 100))
        << WeightTypeName(type);
  }
  // Few rows are not cut.
  const Activations x(amx_, random_.Normals(kRows * kK), kRows, kK);
  const Weights w(amx_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const std::vector<float> few = Multiply(amx_, x, w, 17, nullptr, 100);
  for (const int64_t step : {1, 17, 100}) {
    const std::vector<float> many = Multiply(amx_, x, w, kRows, nullptr, step);
    EXPECT_TRUE(SameBits(few, {many.begin(), many.begin() + std::ssize(few)})) << step;
    const Dot dot = DotOf(&x.values[68 * kK], &w.values[299 * kK], kK);
    EXPECT_NEAR(many[68 * kN + 299], dot.sum, DotTolerance(dot, kK));
  }
  EXPECT_EQ(HiddenBytes(amx_, x, w, w, kRows, 3), HiddenBytes(amx_, x, w, w, kRows, 100));
}

// Rows of one tile, of two, which go over whole panels, and of more, which go over blocks of
// inputs; rows in parts; steps that are not whole.
TEST_F(AmxTest, CodedWeightsGiveTheBitsOfPlainOnes) {
  const auto expect_same = [&](int64_t m, int64_t n, int64_t k, std::vector<int64_t> steps) {
    SCOPED_TRACE(fmt::format("m={} n={} k={}", m, n, k));
    const std::vector<float> values = random_.Normals(n * k);
    const std::vector<float> up_values = random_.Normals(n * k);
    const Weights coded(scalar_, values, n, k, WeightType::kBf16Coded);
    const Weights coded_up(scalar_, up_values, n, k, WeightType::kBf16Coded);
    ASSERT_TRUE(CodedMatrixFits(coded.matrix) && CodedMatrixFits(coded_up.matrix));
    const Weights plain(scalar_, values, n, k, WeightType::kBf16);
    const Weights plain_up(scalar_, up_values, n, k, WeightType::kBf16);
    const Activations x(amx_, random_.Normals(m * k), m, k);
    const std::vector<float> expected = Multiply(amx_, x, plain, m, nullptr, 100);
    const std::vector<std::byte> hidden = HiddenBytes(amx_, x, plain, plain_up, m, 100);
    for (const int64_t step : steps) {
      EXPECT_TRUE(SameBits(Multiply(amx_, x, coded, m, nullptr, step), expected)) << step;
      EXPECT_EQ(HiddenBytes(amx_, x, coded, coded_up, m, step), hidden) << step;
    }
  };
  for (const int64_t m : {1, 5, 16, 17, 31, 33, 50, 70}) {
    for (const int64_t k : {1, 13, 32, 301, 520}) {
      expect_same(m, random_.Uniform(1, 90), k, {1, 3, 100});
    }
  }
  expect_same(150, 40, 300, {2});
  expect_same(69, 40, 4300, {100});
}

TEST_F(AmxTest, Bf16MatchesDouble) {
  for (const int64_t m : {1, 3, 16, 19, 41, 65}) {
    for (const int64_t k : {1, 2, 31, 33, 64, 300}) {
      const int64_t n = random_.Uniform(1, 70);
      SCOPED_TRACE(fmt::format("m={} n={} k={}", m, n, k));
      const Activations x(amx_, random_.Normals(m * k), m, k);
      const Weights w(amx_, random_.Normals(n * k), n, k, WeightType::kBf16);
      ASSERT_EQ(x.type, ActivationType::kBf16);
      const std::vector<float> y = Multiply(amx_, x, w, m, nullptr, w.matrix.panels());
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t o = 0; o < n; ++o) {
          const Dot dot = DotOf(&x.values[r * k], &w.values[o * k], k);
          ASSERT_NEAR(y[r * n + o], dot.sum, DotTolerance(dot, k)) << r << "," << o;
        }
      }
    }
  }
}

TEST_F(AmxTest, Bf16BitsDoNotDependOnRowsPanelRangeOrGathering) {
  constexpr int64_t kRows = 70, kN = 90, kK = 301;
  const Activations x(amx_, random_.Normals(kRows * kK), kRows, kK);
  const Weights gate(amx_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const Weights up(amx_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const std::vector<float> all = Multiply(amx_, x, gate, kRows, nullptr, 100);
  const std::vector<std::byte> all_h = HiddenBytes(amx_, x, gate, up, kRows, 100);
  const auto stride = static_cast<int64_t>(all_h.size()) / kRows;
  std::vector<int32_t> reversed(kRows);
  for (int64_t r = 0; r < kRows; ++r) reversed[r] = static_cast<int32_t>(kRows - 1 - r);
  for (const int64_t m : {1, 2, 7, 16, 17, 31, 40, 65}) {
    for (const int64_t step : {1, 4}) {
      ASSERT_TRUE(
          SameBits(Multiply(amx_, x, gate, m, nullptr, step), {all.begin(), all.begin() + m * kN}))
          << "m=" << m << " panel step " << step;
    }
    const auto gathered = HiddenBytes(amx_, x, gate, up, m, 3, reversed.data());
    for (int64_t r = 0; r < m; ++r) {
      ASSERT_TRUE(std::equal(gathered.begin() + r * stride, gathered.begin() + (r + 1) * stride,
                             all_h.begin() + reversed[r] * stride))
          << r;
    }
  }
}

// One row with NaN or infinity leaves the others of its tile alone.
TEST_F(AmxTest, BadRowsStayAlone) {
  constexpr int64_t kRows = 20, kN = 35, kK = 70;
  std::vector<float> source = random_.Normals(kRows * kK);
  const Weights w(amx_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const Activations good(amx_, source, kRows, kK);
  const std::vector<float> expected = Multiply(amx_, good, w, kRows, nullptr, 100);
  source[5 * kK + 69] = NAN;
  source[12 * kK] = INFINITY;
  const Activations bad(amx_, source, kRows, kK);
  const std::vector<float> y = Multiply(amx_, bad, w, kRows, nullptr, 100);
  for (int64_t i = 0; i < kRows * kN; ++i) {
    if (i / kN == 5 || i / kN == 12) {
      EXPECT_FALSE(std::isfinite(y[i])) << i;
    } else {
      EXPECT_EQ(y[i], expected[i]) << i;
    }
  }
}

// f32 weights (the router's) have no tiles: the products of class kBf16.
TEST_F(AmxTest, F32WeightsAreMultipliedInVectors) {
  constexpr int64_t kRows = 9, kN = 20, kK = 33;
  const Activations x(amx_, random_.Normals(kRows * kK), kRows, kK);
  const Weights w(amx_, random_.Normals(kN * kK), kN, kK, WeightType::kF32);
  const std::vector<float> y = Multiply(amx_, x, w, kRows, nullptr, 100);
  for (int64_t i = 0; i < kRows * kN; ++i) {
    const Dot dot = DotOf(&x.values[i / kN * kK], &w.values[i % kN * kK], kK);
    ASSERT_NEAR(y[i], dot.sum, DotTolerance(dot, kK)) << i;
  }
}

#if defined(__x86_64__)
// The products for few rows: the same bits without tiles, denormals and all.
TEST_F(AmxTest, VectorsGiveTheBitsOfTiles) {
  if (!IsaSupported(Isa::kAvx512)) GTEST_SKIP() << "needs AVX-512";
  CpuKernels vectors = amx_;
  vectors.matmul = internal::kAmxOrderProducts.matmul;
  vectors.gate_up = internal::kAmxOrderProducts.gate_up;
  std::vector<CpuKernels> tiles = {amx_};
  if (IsaSupported(Isa::kAmx)) {
    tiles.push_back(amx_);
    tiles.back().matmul = KernelsFor(Isa::kAmx).matmul;
    tiles.back().gate_up = KernelsFor(Isa::kAmx).gate_up;
  }
  for (const int64_t m : {1, 2, 3, 4, 5, 7, 9}) {
    // From ordinary numbers to products, sums and inputs that are denormal.
    for (const float scale : {1.0f, 3e-19f, 1e-21f, 1e-38f}) {
      const int64_t n = random_.Uniform(1, 200);
      const int64_t k = random_.Uniform(1, 300);
      SCOPED_TRACE(fmt::format("m={} n={} k={} scale={}", m, n, k, scale));
      std::vector<float> values = random_.Normals(m * k);
      for (float& value : values) value *= scale;
      const Activations x(vectors, values, m, k);
      std::vector<float> weights = random_.Normals(n * k);
      for (float& weight : weights) weight *= std::max(scale, 3e-19f);
      const Weights gate(vectors, weights, n, k, WeightType::kBf16);
      const Weights up(vectors, random_.Normals(n * k), n, k, WeightType::kBf16);
      const std::vector<float> y = Multiply(vectors, x, gate, m, nullptr, 100);
      for (const int64_t step : {1, 3}) {
        EXPECT_TRUE(SameBits(Multiply(vectors, x, gate, m, nullptr, step), y)) << step;
      }
      for (const CpuKernels& kernels : tiles) {
        EXPECT_TRUE(SameBits(Multiply(kernels, x, gate, m, nullptr, 100), y));
        EXPECT_EQ(HiddenBytes(kernels, x, gate, up, m, 100),
                  HiddenBytes(vectors, x, gate, up, m, 3));
      }
    }
  }
}
#endif

// What decides at start whether the registers are used.
TEST_F(AmxTest, WrongProductsAreFoundOut) {
  const ProductKernels bf16 = {.matmul = amx_.matmul, .gate_up = amx_.gate_up};
  const ProductKernels integers = {.matmul = amx_.quant_matmul, .gate_up = amx_.quant_gate_up};
  EXPECT_TRUE(ProductsAreRight(bf16, NumericsClass::kAmxBf16, WeightType::kBf16));
  for (const WeightType type : kIntegers) {
    EXPECT_TRUE(ProductsAreRight(integers, NumericsClass::kF32, type)) << WeightTypeName(type);
  }
  static decltype(CpuKernels::matmul) right = nullptr;
  right = amx_.matmul;
  ProductKernels wrong = bf16;
  wrong.matmul = [](const MatmulArgs& args) {
    right(args);
    args.y[args.m * args.y_stride - 1] += 1.0f;
  };
  EXPECT_FALSE(ProductsAreRight(wrong, NumericsClass::kAmxBf16, WeightType::kBf16));
}

}  // namespace
}  // namespace moesaic
