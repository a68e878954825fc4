// Fp8 weights: packing against the definition, products against double precision, and the same bits
// whatever the rows, panels and instruction set of a class.

#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/fp8_pack.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::HiddenRows;
using testing_util::IsaParamName;
using testing_util::Multiply;
using testing_util::Random;
using testing_util::SameBits;
using testing_util::SupportedIsas;
using testing_util::TestSeed;
using testing_util::Weights;

int64_t GroupsOf(int64_t k) { return (k + kQuantGroup - 1) / kQuantGroup; }

// OCP 8-bit floating point, 5.3: E4M3.
double ValueOf(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  if ((code & 127) == 127) return std::numeric_limits<double>::quiet_NaN();
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code < 128 ? magnitude : -magnitude;
}

// What a checkpoint has: codes [n, k] and, of each group of an output, a scale.
struct Fp8Stored {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  int64_t n = 0;
  int64_t k = 0;

  int CodeAt(int64_t row, int64_t i) const {
    return static_cast<int>(codes[static_cast<size_t>(row * k + i)]);
  }
  float ScaleAt(int64_t row, int64_t i) const {
    return scales[static_cast<size_t>(row * GroupsOf(k) + i / kQuantGroup)];
  }
};

class Fp8KernelTest : public ::testing::TestWithParam<Isa> {
 protected:
  Fp8KernelTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}

  // Of all codes but NaN where `share` in a hundred values are subnormal or zero.
  Fp8Stored RandomStored(int64_t n, int64_t k, int64_t share) {
    Fp8Stored stored = {{}, {}, n, k};
    for (int64_t i = 0; i < n * k; ++i) {
      const bool small = random_.Uniform(0, 99) < share;
      const int64_t magnitude = small ? random_.Uniform(0, 7) : random_.Uniform(8, 126);
      const int64_t sign = random_.Uniform(0, 1);
      stored.codes.push_back(static_cast<std::byte>(magnitude | sign << 7));
    }
    for (int64_t i = 0; i < n * GroupsOf(k); ++i) {
      stored.scales.push_back(std::ldexp(1.0f + 0.5f * std::abs(random_.Normal()), -9));
    }
    return stored;
  }

  // As a model's loader packs it.
  Weights Packed(const Fp8Stored& stored) {
    Weights packed(kernels_, std::vector<float>(static_cast<size_t>(stored.n * stored.k), 1.0f),
                   stored.n, stored.k, WeightType::kFp8);
    std::memset(packed.memory.data(), 0, static_cast<size_t>(packed.matrix.bytes()));
    for (int64_t row = 0; row < stored.n; ++row) {
      PackFp8Row(packed.matrix, row, stored.codes.data() + row * stored.k,
                 stored.scales.data() + row * GroupsOf(stored.k),
                 packed.memory.data() + row / kPanelOutputs * packed.matrix.panel_bytes());
      kernels_.unpack_row(packed.matrix, row, &packed.values[static_cast<size_t>(row * stored.k)]);
    }
    return packed;
  }

  // The products of exact values, as the class multiplies activations.
  void ExpectNearDouble(const std::vector<float>& y, const Activations& x, const Fp8Stored& stored,
                        int64_t m) {
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t out = 0; out < stored.n; ++out) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t i = 0; i < stored.k; ++i) {
          const double product =
              static_cast<double>(x.values[static_cast<size_t>(row * stored.k + i)]) *
              ValueOf(stored.CodeAt(out, i)) * static_cast<double>(stored.ScaleAt(out, i));
          sum += product;
          magnitude += std::abs(product);
        }
        const int64_t longest = std::min(stored.k, kQuantGroup) + GroupsOf(stored.k);
        const double bound = magnitude * static_cast<double>(longest + 1) * std::ldexp(1.0, -24);
        ASSERT_NEAR(y[static_cast<size_t>(row * stored.n + out)], sum, bound + 1e-30)
            << row << ", " << out << " of " << stored.k;
      }
    }
  }

  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
  ::testing::ScopedTrace trace_;
};

// Every code at every place of a line, of an output that starts a panel and of others.
TEST_P(Fp8KernelTest, EveryCodeIsItsValue) {
  constexpr int64_t kCodes = 256;
  Fp8Stored stored = {{}, {}, 23, kCodes};
  for (int64_t row = 0; row < stored.n; ++row) {
    for (int64_t i = 0; i < kCodes; ++i) {
      const int64_t code = (i + row) % kCodes;
      stored.codes.push_back((code & 127) == 127 ? std::byte{0} : static_cast<std::byte>(code));
    }
    for (int64_t group = 0; group < 2; ++group) stored.scales.push_back(0.75f);
  }
  const Weights packed = Packed(stored);
  for (int64_t row = 0; row < stored.n; ++row) {
    for (int64_t i = 0; i < kCodes; ++i) {
      const double value = ValueOf(stored.CodeAt(row, i)) * 0.75;
      const float unpacked = packed.values[static_cast<size_t>(row * kCodes + i)];
      ASSERT_EQ(unpacked, value) << stored.CodeAt(row, i);
      ASSERT_EQ(std::signbit(unpacked), stored.CodeAt(row, i) >= 128);
    }
  }
  // A product with one input that is not zero is that input's value, for few rows and for many.
  for (const int64_t m : {1, 40}) {
    for (const int64_t input : {0, 1, 2, 3, 130, 255}) {
      std::vector<float> one(static_cast<size_t>(m * kCodes));
      for (int64_t row = 0; row < m; ++row) one[static_cast<size_t>(row * kCodes + input)] = 2.0f;
      const Activations x(kernels_, one, m, kCodes, WeightType::kFp8);
      const std::vector<float> y = Multiply(kernels_, x, packed, m, nullptr, 2);
      for (int64_t i = 0; i < m * stored.n; ++i) {
        ASSERT_EQ(y[static_cast<size_t>(i)], ValueOf(stored.CodeAt(i % stored.n, input)) * 1.5)
            << input << " of " << i;
      }
    }
  }
}

TEST_P(Fp8KernelTest, NanCodesMakeTheirGroupsProductsNan) {
  for (const int code : {127, 255}) {
    Fp8Stored stored = RandomStored(20, 300, 1);
    stored.codes[static_cast<size_t>(17 * 300 + 150)] = static_cast<std::byte>(code);
    const Weights packed = Packed(stored);
    for (const int64_t m : {1, 20}) {
      const Activations x(kernels_, random_.Normals(m * 300), m, 300, WeightType::kFp8);
      const std::vector<float> y = Multiply(kernels_, x, packed, m, nullptr, 2);
      for (int64_t i = 0; i < m * 20; ++i) {
        EXPECT_EQ(std::isnan(y[static_cast<size_t>(i)]), i % 20 == 17) << i;
      }
    }
    for (int64_t i = 0; i < 300; ++i) {
      EXPECT_EQ(std::isnan(packed.values[static_cast<size_t>(17 * 300 + i)]), i / 128 == 1) << i;
    }
  }
}

TEST_P(Fp8KernelTest, ProductsAreNearThoseInDouble) {
  for (const int64_t k : {1, 5, 128, 130, 259, 416}) {
    for (const int64_t m : {1, 2, 3, 4, 5, 13, 100}) {
      const Fp8Stored stored = RandomStored(37, k, k == 130 ? 50 : 1);
      const Weights weights = Packed(stored);
      const Activations x(kernels_, random_.Normals(m * k), m, k, WeightType::kFp8);
      EXPECT_EQ(x.type, kernels_.numerics == NumericsClass::kF32 ? ActivationType::kF32
                                                                 : ActivationType::kBf16);
      ExpectNearDouble(Multiply(kernels_, x, weights, m, nullptr, 10), x, stored, m);
    }
  }
}

// A row alone on the scalar kernels (of class kF32), or on these (of the others), is what it is
// among others.
TEST_P(Fp8KernelTest, RowsPanelsAndInstructionSetsChangeNoBit) {
  const bool f32 = kernels_.numerics == NumericsClass::kF32;
  const CpuKernels& reference = f32 ? KernelsFor(Isa::kScalar) : kernels_;
  for (const int64_t k : {7, 128, 300, 640}) {
    constexpr int64_t kOutputs = 149;
    const Weights weights = Packed(RandomStored(kOutputs, k, 2));
    const Weights up = Packed(RandomStored(kOutputs, k, 0));
    const std::vector<float> bias = random_.Normals(kOutputs);
    for (const int64_t m : {1, 2, 3, 4, 5, 12, 13, 40, 100}) {
      const std::vector<float> values = random_.Normals(m * k);
      std::vector<float> expected;
      for (int64_t row = 0; row < m; ++row) {
        const auto* const first = values.data() + row * k;
        const Activations x(reference, {first, first + k}, 1, k, WeightType::kFp8);
        const std::vector<float> y = Multiply(reference, x, weights, 1, bias.data(), 1);
        expected.insert(expected.end(), y.begin(), y.end());
      }
      const Activations x(kernels_, values, m, k, WeightType::kFp8);
      for (const int64_t step : {1, 3, 10}) {
        EXPECT_TRUE(SameBits(Multiply(kernels_, x, weights, m, bias.data(), step), expected))
            << m << " rows of " << k << ", " << step << " panels";
      }
      const Activations same_x(reference, values, m, k, WeightType::kFp8);
      const AlignedBuffer hidden = HiddenRows(kernels_, x, weights, up, m, 4);
      const AlignedBuffer same_hidden = HiddenRows(reference, same_x, weights, up, m, 1);
      ASSERT_EQ(hidden.bytes(), same_hidden.bytes());
      EXPECT_EQ(std::memcmp(hidden.data(), same_hidden.data(), hidden.bytes()), 0) << m << " " << k;
    }
  }
}

TEST_P(Fp8KernelTest, OtherNumbersGoToTheNearest) {
  constexpr int64_t kRows = 20, kCols = 200;
  std::vector<float> values = random_.Normals(kRows * kCols, 0.1f);
  values[0] = 448.0f;  // so that the scale of the group is 1
  const std::array<float, 6> ties = {17.0f, 19.0f, -0.0009765625f, 0.0029296875f, 447.0f, 0.0145f};
  const std::array<float, 6> rounded = {16.0f, 20.0f, -0.0f, 0.00390625f, 448.0f, 0.013671875f};
  std::copy(ties.begin(), ties.end(), values.begin() + 1);
  const Weights packed(kernels_, values, kRows, kCols, WeightType::kFp8);
  for (size_t i = 0; i < ties.size(); ++i) EXPECT_EQ(packed.values[i + 1], rounded[i]) << ties[i];
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t first = 0; first < kCols; first += kQuantGroup) {
      const int64_t end = std::min(kCols, first + kQuantGroup);
      float largest = 0;
      for (int64_t i = first; i < end; ++i) {
        largest = std::max(largest, std::abs(values[static_cast<size_t>(row * kCols + i)]));
      }
      const double scale = static_cast<double>(largest / 448.0f);
      for (int64_t i = first; i < end; ++i) {
        const auto at = static_cast<size_t>(row * kCols + i);
        double nearest = std::numeric_limits<double>::infinity();
        for (int code = 0; code < 127; ++code) {
          nearest = std::min(
              nearest, std::abs(ValueOf(code) * scale - std::abs(static_cast<double>(values[at]))));
        }
        EXPECT_NEAR(std::abs(packed.values[at] - values[at]), nearest, 1e-6 * largest) << at;
      }
    }
  }
  const Weights reference(KernelsFor(Isa::kScalar), values, kRows, kCols, WeightType::kFp8);
  EXPECT_EQ(std::memcmp(packed.memory.data(), reference.memory.data(),
                        static_cast<size_t>(packed.matrix.bytes())),
            0);
  values[5] = std::numeric_limits<float>::infinity();
  const Weights wrong(kernels_, values, kRows, kCols, WeightType::kFp8);
  for (size_t i = 0; i < kCols; ++i) EXPECT_EQ(std::isnan(wrong.values[i]), i < kQuantGroup) << i;
}

// Rows of codes are put where the numbers that they are would be.
TEST_P(Fp8KernelTest, PackedRowsAreThoseOfTheNumbers) {
  for (const int64_t k : {3, 128, 300}) {
    Fp8Stored stored = RandomStored(21, k, 5);
    for (int64_t row = 0; row < stored.n; ++row) {
      for (int64_t first = 0; first < k; first += kQuantGroup) {
        // The largest code is there, and a power of two for a scale makes all products exact.
        stored.codes[static_cast<size_t>(row * k + first)] = std::byte{126};
        stored.scales[static_cast<size_t>(row * GroupsOf(k) + first / kQuantGroup)] =
            std::ldexp(1.0f, static_cast<int>(random_.Uniform(-12, 3)));
      }
    }
    const Weights rows = Packed(stored);
    const Weights numbers(kernels_, rows.values, stored.n, k, WeightType::kFp8);
    EXPECT_TRUE(SameBits(numbers.values, rows.values));
    EXPECT_EQ(std::memcmp(rows.memory.data(), numbers.memory.data(),
                          static_cast<size_t>(rows.matrix.bytes())),
              0)
        << k;
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Fp8KernelTest, ::testing::ValuesIn(SupportedIsas()), IsaParamName);

}  // namespace
}  // namespace moesaic
