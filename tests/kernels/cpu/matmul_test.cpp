// Matrix products and gate_up: against double precision, and bit for bit against themselves
// whatever the rows, the panel range and (within a class) the instruction set.
#include <algorithm>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::Dot;
using testing_util::DotOf;
using testing_util::DotTolerance;
using testing_util::kUntouched;
using testing_util::Random;
using testing_util::SameBits;
using testing_util::TestSeed;
using testing_util::Weights;

struct Problem {
  int64_t m, n, k;
  WeightType type;
};

std::string Describe(const Problem& p) {
  return fmt::format("m={} n={} k={} weights={} seed={}", p.m, p.n, p.k,
                     p.type == WeightType::kBf16 ? "bf16" : "f32", TestSeed());
}

class MatmulTest : public ::testing::TestWithParam<Isa> {
 protected:
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;

  void CheckAgainstDouble(const Problem& p) {
    SCOPED_TRACE(Describe(p));
    const Activations x(kernels_, random_.Normals(p.m * p.k), p.m, p.k);
    const Weights w(kernels_, random_.Normals(p.n * p.k), p.n, p.k, p.type);
    const std::vector<float> bias = random_.Normals(p.n);
    const std::vector<float> plain = Multiply(kernels_, x, w, p.m, nullptr, w.matrix.panels());
    const std::vector<float> y = Multiply(kernels_, x, w, p.m, bias.data(), w.matrix.panels());
    for (int64_t r = 0; r < p.m; ++r) {
      for (int64_t o = 0; o < p.n; ++o) {
        const Dot dot = DotOf(&x.values[r * p.k], &w.values[o * p.k], p.k);
        ASSERT_NEAR(plain[r * p.n + o], dot.sum, DotTolerance(dot, p.k)) << r << "," << o;
        // The bias is added once, after the sum.
        ASSERT_EQ(y[r * p.n + o], plain[r * p.n + o] + bias[o]) << r << "," << o;
      }
    }
  }
};

TEST_P(MatmulTest, MatchesDoubleAtOddSizes) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    for (int64_t n = 1; n <= 40; n += 3) {
      for (int64_t k = 1; k <= 70; k += 1 + random_.Uniform(0, 4)) {
        CheckAgainstDouble({random_.Uniform(1, 14), n, k, type});
      }
    }
  }
}

TEST_P(MatmulTest, MatchesDoubleAtEveryTileShape) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    for (int64_t m = 1; m <= 26; ++m) CheckAgainstDouble({m, 16 * (1 + m % 11) - 3, 37, type});
  }
}

TEST_P(MatmulTest, MatchesDoubleAtLargerSizes) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    CheckAgainstDouble({3, 300, 1029, type});
    CheckAgainstDouble({97, 40, 515, type});
    CheckAgainstDouble({200, 33, 256, type});
  }
}

TEST_P(MatmulTest, BitsDoNotDependOnRowsOrPanelRange) {
  constexpr int64_t kRows = 131, kN = 200, kK = 601;
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    const Activations x(kernels_, random_.Normals(kRows * kK), kRows, kK);
    const Weights w(kernels_, random_.Normals(kN * kK), kN, kK, type);
    const std::vector<float> all = Multiply(kernels_, x, w, kRows, nullptr, w.matrix.panels());
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 33, 96, 97}) {
      for (const int64_t step : {1, 2, 3, 5, 8, 13}) {
        const std::vector<float> y = Multiply(kernels_, x, w, m, nullptr, step);
        const std::vector<float> expected(all.begin(), all.begin() + m * kN);
        ASSERT_TRUE(SameBits(y, expected)) << "m=" << m << " panel step " << step;
      }
    }
  }
}

TEST_P(MatmulTest, StoresPastTheCachesTheSame) {
  constexpr int64_t kRows = 40, kN = 70, kK = 64, kStride = 80;
  const Activations x(kernels_, random_.Normals(kRows * kK), kRows, kK);
  const Weights w(kernels_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const std::vector<float> expected = Multiply(kernels_, x, w, kRows, nullptr, 100);
  // Aligned rows, rows that are not, and a beginning that is not.
  for (const auto& [offset, stride] : {std::pair(0, kStride), {0, kStride + 1}, {1, kStride}}) {
    AlignedBuffer memory(kRows * (kStride + 1) * sizeof(float) + 64);
    float* y = memory.as<float>() + offset;
    std::fill_n(memory.as<float>(), memory.bytes() / sizeof(float), kUntouched);
    MatmulArgs args;
    args.x = x.memory.data();
    args.x_stride_bytes = x.stride_bytes;
    args.m = kRows;
    args.w = w.matrix;
    args.panel_end = w.matrix.panels();
    args.y = y;
    args.y_stride = stride;
    args.y_is_large = true;
    kernels_.matmul(args);
    for (int64_t r = 0; r < kRows; ++r) {
      ASSERT_TRUE(std::equal(y + r * stride, y + r * stride + kN, &expected[r * kN])) << r;
      ASSERT_EQ(y[r * stride + kN], kUntouched) << r;
    }
  }
}

TEST_P(MatmulTest, GathersAndScattersRows) {
  constexpr int64_t kRows = 40, kN = 50, kK = 64;
  const Activations x(kernels_, random_.Normals(kRows * kK), kRows, kK);
  const Weights w(kernels_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const std::vector<float> all = Multiply(kernels_, x, w, kRows, nullptr, w.matrix.panels());
  for (const int64_t m : {1, 3, 17, 31}) {
    std::vector<int32_t> from(m), to(m);
    for (int64_t r = 0; r < m; ++r) {
      from[r] = static_cast<int32_t>(random_.Uniform(0, kRows - 1));  // a row may come twice
      to[r] = static_cast<int32_t>((r * 7 + 3) % kRows);
    }
    constexpr int64_t kStride = kN + 5;
    std::vector<float> y(kRows * kStride, kUntouched);
    std::vector<float> expected = y;
    for (int64_t r = 0; r < m; ++r) {
      std::copy_n(&all[from[r] * kN], kN, &expected[to[r] * kStride]);
    }
    MatmulArgs args;
    args.x = x.memory.data();
    args.x_stride_bytes = x.stride_bytes;
    args.x_rows = from.data();
    args.m = m;
    args.w = w.matrix;
    args.panel_end = w.matrix.panels();
    args.y = y.data();
    args.y_stride = kStride;
    args.y_rows = to.data();
    kernels_.matmul(args);
    EXPECT_TRUE(SameBits(y, expected)) << "m=" << m << " seed=" << TestSeed();
  }
}

TEST_P(MatmulTest, ComputesNothingOutsideThePanelRange) {
  constexpr int64_t kN = 70, kK = 9;
  const Activations x(kernels_, random_.Normals(kK), 1, kK);
  const Weights w(kernels_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  std::vector<float> y(kN + 16, kUntouched);
  MatmulArgs args;
  args.x = x.memory.data();
  args.x_stride_bytes = x.stride_bytes;
  args.m = 1;
  args.w = w.matrix;
  args.panel_begin = 3;
  args.panel_end = 5;
  args.y = y.data();
  args.y_stride = kN;
  kernels_.matmul(args);
  for (int64_t i = 0; i < 48; ++i) EXPECT_EQ(y[i], kUntouched);
  for (int64_t i = 48; i < kN; ++i) EXPECT_NE(y[i], kUntouched);
  for (int64_t i = kN; i < kN + 16; ++i) EXPECT_EQ(y[i], kUntouched);
  y.assign(y.size(), kUntouched);
  args.panel_end = args.panel_begin;
  kernels_.matmul(args);
  args.panel_end = 5;
  args.m = 0;
  kernels_.matmul(args);
  for (const float v : y) EXPECT_EQ(v, kUntouched);
}

// One row with NaN or infinity leaves the others alone.
TEST_P(MatmulTest, BadRowsStayAlone) {
  constexpr int64_t kRows = 14, kN = 35, kK = 33;
  std::vector<float> source = random_.Normals(kRows * kK);
  const Weights w(kernels_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const Activations good(kernels_, source, kRows, kK);
  const std::vector<float> expected = Multiply(kernels_, good, w, kRows, nullptr, 2);
  source[5 * kK + 32] = NAN;
  source[9 * kK] = INFINITY;
  const Activations bad(kernels_, source, kRows, kK);
  const std::vector<float> y = Multiply(kernels_, bad, w, kRows, nullptr, 2);
  for (int64_t i = 0; i < kRows * kN; ++i) {
    if (i / kN == 5) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else if (i / kN == 9) {
      EXPECT_FALSE(std::isfinite(y[i]));
    } else {
      EXPECT_EQ(y[i], expected[i]);
    }
  }
}

struct GateUpResult {
  std::vector<float> h;  // [m, padded n]
  int64_t padded = 0;
};

GateUpResult GateUp(const CpuKernels& kernels, const Activations& x, const Weights& gate,
                    const Weights& up, int64_t m, int64_t panel_step,
                    const int32_t* rows = nullptr) {
  const int64_t stride = ActivationRowBytes(x.type, gate.matrix.n);
  const AlignedBuffer h = HiddenRows(kernels, x, gate, up, m, panel_step, rows);
  GateUpResult result;
  const bool bf16 = x.type == ActivationType::kBf16;
  result.padded = stride / (bf16 ? 2 : 4);
  for (int64_t i = 0; i < m * result.padded; ++i) {
    result.h.push_back(bf16 ? Bf16ToF32(h.as<uint16_t>()[i]) : h.as<float>()[i]);
  }
  return result;
}

TEST_P(MatmulTest, GateUpMatchesDouble) {
  const bool bf16 = kernels_.numerics != NumericsClass::kF32;
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    for (const int64_t m : {1, 2, 3, 5, 7, 12, 13, 100}) {
      for (const int64_t n : {1, 15, 16, 17, 32, 47, 130}) {
        const int64_t k = random_.Uniform(1, 90);
        SCOPED_TRACE(Describe({m, n, k, type}));
        const Activations x(kernels_, random_.Normals(m * k), m, k);
        const Weights gate(kernels_, random_.Normals(n * k), n, k, type);
        const Weights up(kernels_, random_.Normals(n * k), n, k, type);
        const GateUpResult result = GateUp(kernels_, x, gate, up, m, gate.matrix.panels());
        for (int64_t r = 0; r < m; ++r) {
          for (int64_t o = 0; o < result.padded; ++o) {
            const float h = result.h[r * result.padded + o];
            if (o >= n) {
              ASSERT_EQ(h, 0.0f) << "padding " << r << "," << o;
              continue;
            }
            const Dot g = DotOf(&x.values[r * k], &gate.values[o * k], k);
            const Dot u = DotOf(&x.values[r * k], &up.values[o * k], k);
            const double silu = g.sum / (1.0 + std::exp(-g.sum));
            // |silu'| <= 1.1; then the rounding of silu, of the product and of the store.
            const double tolerance =
                1.1 * DotTolerance(g, k) * (std::abs(u.sum) + DotTolerance(u, k)) +
                DotTolerance(u, k) * std::abs(silu) +
                std::abs(silu * u.sum) * (bf16 ? 0.0042 : 1e-6) + 1e-30;
            ASSERT_NEAR(h, silu * u.sum, tolerance) << r << "," << o;
          }
        }
      }
    }
  }
}

TEST_P(MatmulTest, GateUpBitsDoNotDependOnRowsOrPanelRange) {
  constexpr int64_t kRows = 120, kN = 170, kK = 333;
  const Activations x(kernels_, random_.Normals(kRows * kK), kRows, kK);
  const Weights gate(kernels_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const Weights up(kernels_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
  const GateUpResult all = GateUp(kernels_, x, gate, up, kRows, gate.matrix.panels());
  std::vector<int32_t> reversed(kRows);
  for (int64_t r = 0; r < kRows; ++r) reversed[r] = static_cast<int32_t>(kRows - 1 - r);
  for (const int64_t m : {1, 2, 3, 7, 16, 33, 97}) {
    for (const int64_t step : {1, 2, 3, 8}) {
      const GateUpResult some = GateUp(kernels_, x, gate, up, m, step);
      const std::vector<float> expected(all.h.begin(), all.h.begin() + m * all.padded);
      ASSERT_TRUE(SameBits(some.h, expected)) << "m=" << m << " panel step " << step;
      const GateUpResult gathered = GateUp(kernels_, x, gate, up, m, step, reversed.data());
      for (int64_t r = 0; r < m; ++r) {
        const auto row = gathered.h.begin() + r * all.padded;
        const auto from = all.h.begin() + reversed[r] * all.padded;
        ASSERT_TRUE(SameBits({row, row + all.padded}, {from, from + all.padded}));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, MatmulTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

TEST(MatmulIsaTest, SameBitsInClassF32) {
  Random random;
  const CpuKernels& scalar = KernelsFor(Isa::kScalar);
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    for (int i = 0; i < 12; ++i) {
      const int64_t m = random.Uniform(1, 30), n = random.Uniform(1, 90);
      const int64_t k = random.Uniform(1, 400);
      const std::vector<float> source = random.Normals(m * k, 3.0f);
      const Weights gate(scalar, random.Normals(n * k), n, k, type);
      const Weights up(scalar, random.Normals(n * k), n, k, type);
      const Activations x(scalar, source, m, k);
      const std::vector<float> expected = Multiply(scalar, x, gate, m, nullptr, 100);
      const GateUpResult expected_h = GateUp(scalar, x, gate, up, m, 100);
      for (const Isa isa : testing_util::SupportedIsas()) {
        const CpuKernels& kernels = KernelsFor(isa);
        if (kernels.numerics != NumericsClass::kF32) continue;
        SCOPED_TRACE(std::string(IsaName(isa)) + " " + Describe({m, n, k, type}));
        const Activations own(kernels, source, m, k);
        EXPECT_TRUE(SameBits(Multiply(kernels, own, gate, m, nullptr, 100), expected));
        EXPECT_TRUE(SameBits(GateUp(kernels, own, gate, up, m, 100).h, expected_h.h));
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
