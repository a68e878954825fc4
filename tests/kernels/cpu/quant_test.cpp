// Products with integer weights: against double precision on the dequantised values, and bit for
// bit the same on every instruction set, whatever the rows, the panel range and the class.
#include <algorithm>
#include <cstring>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::Dot;
using testing_util::DotOf;
using testing_util::QuantRow;
using testing_util::QuantRowBytes;
using testing_util::Random;
using testing_util::SameBits;
using testing_util::TestSeed;
using testing_util::Weights;

constexpr WeightType kTypes[] = {WeightType::kInt8, WeightType::kInt4};

class QuantTest : public ::testing::TestWithParam<QuantIsa> {
 protected:
  QuantTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}
  const CpuKernels kernels_ = WithQuantIsa(KernelsFor(Isa::kScalar), GetParam());
  Random random_;
  ::testing::ScopedTrace trace_;
};

// The sum of a group is exact; then there is one rounded product and one rounded sum a group.
double QuantTolerance(const Dot& dot, int64_t k) {
  const int64_t roundings = k / 128 + 3;
  return dot.magnitude * static_cast<double>(roundings) * std::ldexp(1.0, -24) + 1e-30;
}

// The rows of h, each in its own bytes that mean something.
using HiddenRowsOfBytes = std::vector<std::vector<std::byte>>;
HiddenRowsOfBytes QuantGateUp(const CpuKernels& kernels, const Activations& x, const Weights& gate,
                              const Weights& up, int64_t m, int64_t panel_step,
                              const int32_t* rows = nullptr) {
  const int64_t n = gate.matrix.n;
  const int64_t stride = ActivationRowBytes(ActivationType::kInt8, n);
  const AlignedBuffer h = HiddenRows(kernels, x, gate, up, m, panel_step, rows);
  HiddenRowsOfBytes result;
  for (int64_t r = 0; r < m; ++r) {
    const std::byte* row = h.data() + r * stride;
    result.emplace_back(row, row + QuantRowBytes(n));
  }
  return result;
}

TEST_P(QuantTest, MatchesDouble) {
  const auto check = [&](WeightType type, int64_t m, int64_t n, int64_t k) {
    SCOPED_TRACE(fmt::format("{} m={} n={} k={}", WeightTypeName(type), m, n, k));
    const Activations x(kernels_, random_.Normals(m * k), m, k, type);
    const Weights w(kernels_, random_.Normals(n * k), n, k, type);
    const std::vector<float> bias = random_.Normals(n);
    const std::vector<float> plain = Multiply(kernels_, x, w, m, nullptr, w.matrix.panels());
    const std::vector<float> y = Multiply(kernels_, x, w, m, bias.data(), w.matrix.panels());
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t o = 0; o < n; ++o) {
        const Dot dot = DotOf(&x.values[r * k], &w.values[o * k], k);
        ASSERT_NEAR(plain[r * n + o], dot.sum, QuantTolerance(dot, k)) << r << "," << o;
        ASSERT_EQ(y[r * n + o], plain[r * n + o] + bias[o]) << r << "," << o;
      }
    }
  };
  for (const WeightType type : kTypes) {
    for (int64_t n = 1; n <= 70; n += 7) {
      for (int64_t k = 1; k <= 300; k += 1 + random_.Uniform(0, 25)) {
        check(type, random_.Uniform(1, 8), n, k);
      }
    }
    for (int64_t m = 1; m <= 20; ++m) check(type, m, 16 * (1 + m % 9) - 3, 101);
    check(type, 3, 300, 1029);
    check(type, 97, 40, 515);
    check(type, 200, 33, 288);
  }
}

// The largest values of every operand: nothing saturates or overflows on the way.
TEST_P(QuantTest, ExtremesDoNotSaturate) {
  constexpr int64_t kN = 32, kK = 256;
  for (const WeightType type : kTypes) {
    for (const float sign : {1.0f, -1.0f}) {
      const Weights w(kernels_, std::vector<float>(kN * kK, sign * 127.0f), kN, kK, type);
      for (const int64_t m : {1, 2, 7}) {
        const Activations x(kernels_, std::vector<float>(m * kK, -127.0f), m, kK, type);
        for (const float y : Multiply(kernels_, x, w, m, nullptr, 2)) {
          ASSERT_NEAR(y, -sign * 127.0f * 127.0f * kK, 500.0f);
        }
      }
    }
  }
}

TEST_P(QuantTest, BitsDoNotDependOnRowsPanelRangeOrInstructionSet) {
  constexpr int64_t kRows = 131, kN = 200, kK = 601;
  const CpuKernels& reference = KernelsFor(Isa::kScalar);
  for (const WeightType type : kTypes) {
    const Activations x(reference, random_.Normals(kRows * kK), kRows, kK, type);
    const Weights w(reference, random_.Normals(kN * kK), kN, kK, type);
    const std::vector<float> all = Multiply(reference, x, w, kRows, nullptr, w.matrix.panels());
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 33, 48, 49, 131}) {
      const std::vector<float> expected(all.begin(), all.begin() + m * kN);
      for (const int64_t step : {1, 2, 3, 4, 7, 13}) {
        ASSERT_TRUE(SameBits(Multiply(kernels_, x, w, m, nullptr, step), expected))
            << WeightTypeName(type) << " m=" << m << " panel step " << step;
      }
    }
  }
}

TEST_P(QuantTest, GateUpMatchesDouble) {
  for (const WeightType type : kTypes) {
    for (const int64_t m : {1, 2, 5, 7, 50}) {
      for (const int64_t n : {1, 16, 17, 47, 127, 128, 150, 300}) {
        const int64_t k = random_.Uniform(1, 300);
        SCOPED_TRACE(fmt::format("{} m={} n={} k={}", WeightTypeName(type), m, n, k));
        const Activations x(kernels_, random_.Normals(m * k), m, k, type);
        const Weights gate(kernels_, random_.Normals(n * k), n, k, type);
        const Weights up(kernels_, random_.Normals(n * k), n, k, type);
        const auto h = QuantGateUp(kernels_, x, gate, up, m, gate.matrix.panels());
        for (int64_t r = 0; r < m; ++r) {
          const QuantRow row(h[r].data(), n);
          for (int64_t o = 0; o < (n + 127) / 128 * 128; ++o) {
            const float scale = row.scales[o / 128].scale;
            if (o >= n) {
              ASSERT_EQ(row.values[o], 0) << "padding " << r << "," << o;
              continue;
            }
            const Dot g = DotOf(&x.values[r * k], &gate.values[o * k], k);
            const Dot u = DotOf(&x.values[r * k], &up.values[o * k], k);
            const double silu = g.sum / (1.0 + std::exp(-g.sum));
            // |silu'| <= 1.1; then the rounding of silu, of the product and to half a step.
            const double tolerance =
                1.1 * QuantTolerance(g, k) * (std::abs(u.sum) + QuantTolerance(u, k)) +
                QuantTolerance(u, k) * std::abs(silu) + std::abs(silu * u.sum) * 1e-6 +
                0.5001 * static_cast<double>(scale) + 1e-30;
            ASSERT_NEAR(static_cast<float>(row.values[o]) * scale, silu * u.sum, tolerance)
                << r << "," << o;
          }
        }
      }
    }
  }
}

TEST_P(QuantTest, GateUpBitsDoNotDependOnRowsPanelRangeOrInstructionSet) {
  constexpr int64_t kRows = 120, kN = 350, kK = 333;
  const CpuKernels& reference = KernelsFor(Isa::kScalar);
  std::vector<int32_t> reversed(kRows);
  for (int64_t r = 0; r < kRows; ++r) reversed[r] = static_cast<int32_t>(kRows - 1 - r);
  for (const WeightType type : kTypes) {
    const Activations x(reference, random_.Normals(kRows * kK), kRows, kK, type);
    const Weights gate(reference, random_.Normals(kN * kK), kN, kK, type);
    const Weights up(reference, random_.Normals(kN * kK), kN, kK, type);
    const auto all = QuantGateUp(reference, x, gate, up, kRows, gate.matrix.panels());
    for (const int64_t m : {1, 2, 3, 7, 48, 49, 120}) {
      for (const int64_t step : {8, 16, 24}) {
        ASSERT_EQ(QuantGateUp(kernels_, x, gate, up, m, step),
                  HiddenRowsOfBytes(all.begin(), all.begin() + m))
            << WeightTypeName(type) << " m=" << m << " panel step " << step;
        const auto gathered = QuantGateUp(kernels_, x, gate, up, m, step, reversed.data());
        for (int64_t r = 0; r < m; ++r) ASSERT_EQ(gathered[r], all[reversed[r]]) << r;
      }
    }
  }
}

// One row with NaN or infinity leaves the others alone, and a bad weight shows in its output.
TEST_P(QuantTest, BadValuesStayAlone) {
  constexpr int64_t kRows = 14, kN = 35, kK = 70;
  for (const WeightType type : kTypes) {
    std::vector<float> source = random_.Normals(kRows * kK);
    std::vector<float> weights = random_.Normals(kN * kK);
    const Weights w(kernels_, weights, kN, kK, type);
    const Activations good(kernels_, source, kRows, kK, type);
    const std::vector<float> expected = Multiply(kernels_, good, w, kRows, nullptr, 3);
    source[5 * kK + 69] = NAN;
    source[9 * kK] = INFINITY;
    weights[20 * kK + 40] = NAN;
    const Weights bad_weights(kernels_, weights, kN, kK, type);
    const Activations bad(kernels_, source, kRows, kK, type);
    const std::vector<float> y = Multiply(kernels_, bad, bad_weights, kRows, nullptr, 3);
    for (int64_t i = 0; i < kRows * kN; ++i) {
      if (i / kN == 5 || i / kN == 9 || i % kN == 20) {
        EXPECT_TRUE(std::isnan(y[i])) << i;
      } else {
        EXPECT_EQ(y[i], expected[i]) << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, QuantTest, ::testing::ValuesIn(testing_util::SupportedQuantIsas()),
                         [](const auto& test) { return QuantIsaName(test.param); });

}  // namespace
}  // namespace moesaic
