// Row kernels: norms, rotary embedding, softmax, activations.
#include <algorithm>
#include <bit>
#include <limits>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;
using testing_util::RoundToBf16;
using testing_util::SameBits;
using testing_util::TestSeed;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kGuard = 777.0f;

class RowsTest : public ::testing::TestWithParam<Isa> {
 protected:
  RowsTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
  ::testing::ScopedTrace trace_;
};

std::vector<int64_t> Lengths() {
  std::vector<int64_t> lengths;
  for (int64_t n = 1; n <= 70; ++n) lengths.push_back(n);
  for (const int64_t n : {127, 128, 129, 500, 1024, 4096, 5003}) lengths.push_back(n);
  return lengths;
}

TEST_P(RowsTest, RmsNorm) {
  for (const int64_t n : Lengths()) {
    const std::vector<float> x = random_.Normals(n, 2.0f);
    const std::vector<float> weight = random_.Normals(n);
    std::vector<float> out(n + 1, kGuard);
    kernels_.rms_norm(x.data(), weight.data(), 1e-5f, n, out.data());
    double sum = 0.0;
    for (const float v : x) sum += static_cast<double>(v) * v;
    const double scale = 1.0 / std::sqrt(sum / static_cast<double>(n) + 1e-5);
    for (int64_t i = 0; i < n; ++i) {
      const double expected = x[i] * scale * weight[i];
      ASSERT_NEAR(out[i], expected, std::abs(expected) * 1e-6) << n << "," << i;
    }
    EXPECT_EQ(out[n], kGuard);
    std::vector<float> in_place = x;
    kernels_.rms_norm(in_place.data(), weight.data(), 1e-5f, n, in_place.data());
    out.pop_back();
    EXPECT_TRUE(SameBits(in_place, out));
  }
}

// Rows far from zero too: their squares less the mean's would lose all digits.
TEST_P(RowsTest, LayerNorm) {
  for (const double mean : {0.0, 1000.0}) {
    for (const int64_t n : Lengths()) {
      std::vector<float> x = random_.Normals(n, 2.0f);
      for (float& v : x) v += static_cast<float>(mean);
      const std::vector<float> weight = random_.Normals(n);
      std::vector<float> out(n + 1, kGuard);
      kernels_.layer_norm(x.data(), weight.data(), 1e-2f, n, out.data());
      double middle = 0.0;
      for (const float v : x) middle += v / static_cast<double>(n);
      double squares = 0.0;
      for (const float v : x) squares += (v - middle) * (v - middle);
      const double scale = 1.0 / std::sqrt(squares / static_cast<double>(n) + 1e-2);
      const double digits = 2e-6 + mean * 1e-6;
      for (int64_t i = 0; i < n; ++i) {
        const double expected = (x[i] - middle) * scale * weight[i];
        ASSERT_NEAR(out[i], expected,
                    digits * std::max(1.0, std::abs(scale * weight[i])) + std::abs(expected) * 1e-6)
            << n << "," << i;
      }
      EXPECT_EQ(out[n], kGuard);
      std::vector<float> in_place = x;
      kernels_.layer_norm(in_place.data(), weight.data(), 1e-2f, n, in_place.data());
      out.pop_back();
      EXPECT_TRUE(SameBits(in_place, out));
    }
  }
}

TEST_P(RowsTest, Rope) {
  for (const int64_t half : {1, 5, 16, 18, 32, 40, 64, 128}) {
    std::vector<float> x = random_.Normals(2 * half);
    x.push_back(kGuard);
    const std::vector<float> before = x;
    std::vector<float> cos(half), sin(half);
    for (int64_t i = 0; i < half; ++i) {
      cos[i] = std::cos(static_cast<float>(i));
      sin[i] = std::sin(static_cast<float>(i));
    }
    kernels_.rope(x.data(), cos.data(), sin.data(), half);
    for (int64_t i = 0; i < half; ++i) {
      const double a = before[i], b = before[half + i], c = cos[i], s = sin[i];
      ASSERT_NEAR(x[i], a * c - b * s, 1e-6) << half << "," << i;
      ASSERT_NEAR(x[half + i], b * c + a * s, 1e-6) << half << "," << i;
    }
    EXPECT_EQ(x[2 * half], kGuard);
  }
}

TEST_P(RowsTest, AxpyIsOneFusedMultiplyAdd) {
  for (const int64_t n : Lengths()) {
    const std::vector<float> x = random_.Normals(n);
    std::vector<float> y = random_.Normals(n);
    std::vector<float> expected = y;
    for (int64_t i = 0; i < n; ++i) expected[i] = std::fma(0.37f, x[i], y[i]);
    expected.push_back(kGuard);
    y.push_back(kGuard);
    kernels_.axpy(0.37f, x.data(), n, y.data());
    EXPECT_TRUE(SameBits(y, expected)) << n;
  }
}

// exp over its whole range: softmax of {0, x} is {1, e^x} / (1 + e^x), and for x << 0 its second
// term is exp.
TEST_P(RowsTest, ExpIsAccurate) {
  double worst = 0.0;
  for (float x = -87.3f; x <= -18.0f; x += 0.0137f) {
    const float pair[2] = {0.0f, x};
    float out[2];
    kernels_.softmax(pair, 2, out);
    // 1 + e^-18 rounds to 1, so the division changes nothing.
    worst = std::max(worst, std::abs(out[1] / std::exp(static_cast<double>(x)) - 1.0));
  }
  // And near zero, where softmax of {x, x, ...} + {0} spreads over the fraction.
  for (float x = -18.0f; x <= 0.0f; x += 0.0031f) {
    const float pair[2] = {0.0f, x};
    float out[2];
    kernels_.softmax(pair, 2, out);
    const double e = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(out[1] / (e / (1.0 + e)) - 1.0));
  }
  EXPECT_LT(worst, 2.5e-7);
}

TEST_P(RowsTest, SoftmaxMatchesDouble) {
  for (const int64_t n : Lengths()) {
    std::vector<float> x = random_.Normals(n, 5.0f);
    if (n > 3) x[n / 2] = -kInf;  // a masked entry becomes exactly zero
    const double max = *std::max_element(x.begin(), x.end());
    double sum = 0.0;
    for (const float v : x) sum += std::exp(v - max);
    std::vector<float> out(n + 1, kGuard);
    kernels_.softmax(x.data(), n, out.data());
    for (int64_t i = 0; i < n; ++i) {
      if (std::isinf(x[i])) {
        ASSERT_EQ(out[i], 0.0f) << n << "," << i;
        continue;
      }
      const double expected = std::exp(x[i] - max) / sum;
      // x - max is rounded before exp.
      ASSERT_NEAR(out[i], expected, expected * (1e-6 + (max - x[i]) * 6e-8) + 1e-37)
          << n << "," << i;
    }
    EXPECT_EQ(out[n], kGuard);
    kernels_.softmax(x.data(), n, x.data());
    out.pop_back();
    EXPECT_TRUE(SameBits(x, out)) << "in place, n=" << n;
  }
}

TEST_P(RowsTest, SoftmaxShowsBadInput) {
  for (const int64_t n : {3, 16, 37}) {
    std::vector<float> x = random_.Normals(n);
    std::vector<float> out(n);
    x[n - 1] = NAN;
    kernels_.softmax(x.data(), n, out.data());
    for (const float v : out) EXPECT_TRUE(std::isnan(v));
    x.assign(n, -kInf);
    kernels_.softmax(x.data(), n, out.data());
    for (const float v : out) EXPECT_TRUE(std::isnan(v));
  }
}

// Not every NaN is the one that a division of zeros gives; bits of this one would be shifted out.
TEST_P(RowsTest, EveryNanIsShown) {
  std::vector<float> x(16, 1.0f);
  x[5] = std::bit_cast<float>(0x7fc001ffu);
  std::vector<float> out(16);
  kernels_.sigmoid(x.data(), 16, out.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(std::isnan(out[i]), i == 5) << i;
  EXPECT_TRUE(std::isnan(kernels_.log_sum_exp(x.data(), 16)));
}

TEST_P(RowsTest, RowsFarBelowZero) {
  for (const int64_t n : {1, 3, 16, 37}) {
    const std::vector<float> x(n, -200.0f);
    std::vector<float> out(n);
    kernels_.softmax(x.data(), n, out.data());
    for (const float v : out) EXPECT_NEAR(v, 1.0 / static_cast<double>(n), 1e-6);
    EXPECT_NEAR(kernels_.log_sum_exp(x.data(), n), std::log(static_cast<double>(n)) - 200, 1e-4);
  }
}

TEST_P(RowsTest, LogSumExpMatchesDouble) {
  for (const float scale : {0.01f, 1.0f, 30.0f}) {
    for (const int64_t n : Lengths()) {
      const std::vector<float> x = random_.Normals(n, scale);
      const double max = *std::max_element(x.begin(), x.end());
      double sum = 0.0;
      for (const float v : x) sum += std::exp(v - max);
      const double expected = max + std::log(sum);
      EXPECT_NEAR(kernels_.log_sum_exp(x.data(), n), expected, 1e-6 + std::abs(expected) * 1e-7);
    }
  }
}

TEST_P(RowsTest, LogSumExpAtTheEdges) {
  const std::vector<float> none(20, -kInf);
  EXPECT_EQ(kernels_.log_sum_exp(none.data(), 20), -kInf);
  EXPECT_EQ(kernels_.log_sum_exp(none.data(), 0), -kInf);
  const float infinite[2] = {1.0f, kInf};
  EXPECT_EQ(kernels_.log_sum_exp(infinite, 2), kInf);
  const float bad[2] = {1.0f, NAN};
  EXPECT_TRUE(std::isnan(kernels_.log_sum_exp(bad, 2)));
  const float big[2] = {3e38f, 3e38f};
  EXPECT_EQ(kernels_.log_sum_exp(big, 2), 3e38f);
}

TEST_P(RowsTest, ActivationsAreRoundedAndPadded) {
  for (const int64_t k : Lengths()) {
    for (const ActivationType type : {ActivationType::kF32, ActivationType::kBf16}) {
      const bool bf16 = type == ActivationType::kBf16;
      constexpr int64_t kRows = 3;
      std::vector<float> x = random_.Normals(kRows * (k + 2));
      x[0] = NAN;
      x[k + 2] = kInf;
      x[2 * (k + 2)] = 1e-40f;
      const int64_t stride = ActivationRowBytes(type, k) + 64;
      AlignedBuffer out(static_cast<size_t>(kRows * stride));
      std::fill_n(out.as<uint8_t>(), kRows * stride, uint8_t{0x55});
      kernels_.prepare_activations(x.data(), k + 2, kRows, k, type, out.data(), stride);
      for (int64_t r = 0; r < kRows; ++r) {
        const std::byte* row = out.data() + r * stride;
        for (int64_t i = 0; i < (stride - 64) / (bf16 ? 2 : 4); ++i) {
          const float got = bf16 ? Bf16ToF32(reinterpret_cast<const uint16_t*>(row)[i])
                                 : reinterpret_cast<const float*>(row)[i];
          const float from = i < k ? x[r * (k + 2) + i] : 0.0f;
          const float want = bf16 ? RoundToBf16(from) : from;
          ASSERT_TRUE(SameBits({got}, {want})) << k << " row " << r << " element " << i;
        }
        for (int64_t b = stride - 64; b < stride; ++b) ASSERT_EQ(row[b], std::byte{0x55});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, RowsTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

// These have no matrix product in them: every instruction set gives the same bits, whatever its
// class.
TEST(RowsIsaTest, SameBits) {
  for (const int64_t n : Lengths()) {
    Random random;
    std::vector<float> x = random.Normals(n, 4.0f);
    if (n > 5) x[5] = -kInf;
    if (n > 20) x[20] = -95.0f;
    const std::vector<float> finite = random.Normals(n, 4.0f);
    const std::vector<float> weight = random.Normals(n);
    std::vector<std::vector<float>> expected;
    for (const Isa isa : testing_util::SupportedIsas()) {
      const CpuKernels& kernels = KernelsFor(isa);
      std::vector<std::vector<float>> got(5, std::vector<float>(n));
      kernels.rms_norm(finite.data(), weight.data(), 1e-6f, n, got[0].data());
      kernels.softmax(x.data(), n, got[1].data());
      got[2][0] = kernels.log_sum_exp(x.data(), n);
      got[3] = finite;
      kernels.rope(got[3].data(), weight.data(), finite.data(), n / 2);
      kernels.layer_norm(finite.data(), weight.data(), 1e-6f, n, got[4].data());
      if (expected.empty()) expected = got;
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(SameBits(got[i], expected[i])) << IsaName(isa) << " n=" << n << " case " << i;
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
