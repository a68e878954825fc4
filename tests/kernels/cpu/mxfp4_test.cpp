// MXFP4 weights: packing against the definition, products against those of f32 weights, bit for
// bit.

#include <array>
#include <cmath>
#include <limits>

#include "core/io/gguf_types.h"
#include "kernels/cpu/gguf_blocks.h"
#include "kernels/cpu/mxfp4_repack.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::ExpectProductsOfF32;
using testing_util::IsaParamName;
using testing_util::Multiply;
using testing_util::Random;
using testing_util::SameBits;
using testing_util::SupportedIsas;
using testing_util::TestSeed;
using testing_util::Weights;

constexpr std::array<float, 8> kMagnitudes = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};

class Mxfp4KernelTest : public ::testing::TestWithParam<Isa> {
 protected:
  Mxfp4KernelTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}

  // Values of the format [n, k], as large as exponents from `least` to `most` make them.
  std::vector<float> OnTheGrid(int64_t n, int64_t k, int least, int most) {
    std::vector<float> values;
    for (int64_t row = 0; row < n; ++row) {
      int exponent = 0;
      for (int64_t i = 0; i < k; ++i) {
        if (i % kMxfp4Group == 0) exponent = static_cast<int>(random_.Uniform(least, most));
        const auto code = static_cast<size_t>(random_.Uniform(0, 7));
        const float sign = random_.Uniform(0, 1) == 0 ? 1.0f : -1.0f;
        values.push_back(sign * std::ldexp(kMagnitudes[code], exponent));
      }
    }
    return values;
  }

  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
  ::testing::ScopedTrace trace_;
};

TEST_P(Mxfp4KernelTest, ValuesOfTheFormatStayWhatTheyAre) {
  for (const int64_t k : {1, 31, 32, 70, 128, 300}) {
    for (const auto& [least, most] : {std::pair{-9, 3}, {-127, -120}, {120, 125}}) {
      const std::vector<float> values = OnTheGrid(21, k, least, most);
      const Weights packed(kernels_, values, 21, k, WeightType::kMxfp4F32);
      EXPECT_TRUE(SameBits(packed.values, values)) << k << " from 2^" << least;
      const Weights reference(KernelsFor(Isa::kScalar), values, 21, k, WeightType::kMxfp4F32);
      const auto bytes = static_cast<size_t>(PackedMatrix::Bytes(WeightType::kMxfp4F32, 21, k));
      EXPECT_EQ(std::memcmp(packed.memory.data(), reference.memory.data(), bytes), 0) << k;
    }
  }
}

TEST_P(Mxfp4KernelTest, OthersGoToTheNearest) {
  constexpr int64_t kRows = 20, kCols = 96;
  std::vector<float> values = random_.Normals(kRows * kCols, 0.1f);
  // Ties, of which the value with an even code is taken, and what is beyond the largest.
  const std::array<float, 8> ties = {4.0f, 0.25f, 0.75f, 1.25f, 1.75f, 2.5f, -3.5f, 5.0f};
  const std::array<float, 8> rounded = {4.0f, 0.0f, 1.0f, 1.0f, 2.0f, 2.0f, -4.0f, 4.0f};
  std::fill_n(values.begin(), kMxfp4Group, 7.9f);
  std::copy(ties.begin(), ties.end(), values.begin());
  const Weights packed(kernels_, values, kRows, kCols, WeightType::kMxfp4F32);
  for (size_t i = 0; i < ties.size(); ++i) EXPECT_EQ(packed.values[i], rounded[i]) << ties[i];
  EXPECT_EQ(packed.values[ties.size()], 6.0f);
  for (size_t first = kMxfp4Group; first < values.size(); first += kMxfp4Group) {
    float largest = 0;
    for (size_t i = first; i < first + kMxfp4Group; ++i) {
      largest = std::max(largest, std::abs(values[i]));
    }
    const int exponent = std::ilogb(largest) - 2;
    for (size_t i = first; i < first + kMxfp4Group; ++i) {
      float nearest = std::numeric_limits<float>::infinity();
      for (const float magnitude : kMagnitudes) {
        const float candidate = std::copysign(std::ldexp(magnitude, exponent), values[i]);
        if (std::abs(candidate - values[i]) < std::abs(nearest - values[i])) nearest = candidate;
      }
      EXPECT_EQ(std::abs(packed.values[i] - values[i]), std::abs(nearest - values[i])) << i;
    }
  }
}

TEST_P(Mxfp4KernelTest, AGroupThatIsNoNumberIsNan) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    std::vector<float> values = random_.Normals(3 * 64);
    values[64 + 40] = bad;
    const Weights packed(kernels_, values, 3, 64, WeightType::kMxfp4F32);
    for (int64_t i = 0; i < 3 * 64; ++i) {
      EXPECT_EQ(std::isnan(packed.values[static_cast<size_t>(i)]), i / 32 == 3) << i;
    }
    const Activations x(kernels_, random_.Normals(64), 1, 64, WeightType::kMxfp4F32);
    const std::vector<float> y = Multiply(kernels_, x, packed, 1, nullptr, 1);
    EXPECT_TRUE(std::isfinite(y[0]));
    EXPECT_FALSE(std::isfinite(y[1]));
    EXPECT_TRUE(std::isfinite(y[2]));
  }
}

TEST_P(Mxfp4KernelTest, ProductsAreThoseOfTheSameWeightsInF32) {
  ExpectProductsOfF32(kernels_, WeightType::kMxfp4F32, random_,
                      [&](int64_t n, int64_t k) { return OnTheGrid(n, k, -9, 1); });
}

// What a checkpoint has of the rows of a panel: bytes [row][k / 2], exponents [row][k / 32].
struct StoredRows {
  std::vector<std::byte> blocks, exponents;
  std::vector<float> values;  // that they are
};
StoredRows RandomRows(Random& random, int64_t rows, int64_t k) {
  StoredRows stored;
  for (int64_t group = 0; group < rows * k / kMxfp4Group; ++group) {
    const auto exponent = static_cast<int>(random.Uniform(100, 130));
    stored.exponents.push_back(static_cast<std::byte>(exponent));
    for (int64_t i = 0; i < kMxfp4Group / 2; ++i) {
      // The first is 6, so that the exponent is that of the largest.
      const auto low = i == 0 ? 7 : static_cast<int>(random.Uniform(0, 15));
      const auto high = static_cast<int>(random.Uniform(0, 15));
      stored.blocks.push_back(static_cast<std::byte>(low | high << 4));
      for (const int code : {low, high}) {
        const float value = std::ldexp(kMagnitudes[static_cast<size_t>(code & 7)], exponent - 127);
        stored.values.push_back(code < 8 ? value : -value);
      }
    }
  }
  return stored;
}

TEST_P(Mxfp4KernelTest, RepackedPanelsAreThoseOfTheNumbers) {
  for (const int64_t rows : {16, 5}) {
    for (const int64_t k : {32, 96, 128, 320}) {
      const StoredRows stored = RandomRows(random_, rows, k);
      const Weights packed(kernels_, stored.values, rows, k, WeightType::kMxfp4F32);
      const auto bytes = static_cast<size_t>(packed.matrix.panel_bytes());
      AlignedBuffer panel(bytes);
      std::memset(panel.data(), 0xff, bytes);
      ASSERT_TRUE(RepackMxfp4Panel(stored.blocks.data(), k / 2, stored.exponents.data(),
                                   k / kMxfp4Group, rows, k, panel.data()));
      EXPECT_EQ(std::memcmp(panel.data(), packed.memory.data(), bytes), 0) << rows << " " << k;
    }
  }
}

TEST_P(Mxfp4KernelTest, RepackingLeavesToPackingWhatItWouldDoOtherwise) {
  AlignedBuffer panel(static_cast<size_t>(PackedMatrix::Bytes(WeightType::kMxfp4F32, 16, 64)));
  const auto repacked = [&](const StoredRows& stored) {
    return RepackMxfp4Panel(stored.blocks.data(), 32, stored.exponents.data(), 2, 16, 64,
                            panel.data());
  };
  const StoredRows stored = RandomRows(random_, 16, 64);
  EXPECT_TRUE(repacked(stored));
  StoredRows small = stored;  // the last group has nothing above 3
  for (size_t i = small.blocks.size() - 16; i < small.blocks.size(); ++i) {
    small.blocks[i] = std::byte{0xd5};
  }
  EXPECT_FALSE(repacked(small));
  StoredRows large = stored;
  large.exponents[7] = std::byte{253};
  EXPECT_FALSE(repacked(large));
}

// As ggml's blocks, the panels of which int8 activations are multiplied with.
TEST_P(Mxfp4KernelTest, BlocksHaveTheBitsInTheOrderOfGguf) {
  constexpr int64_t kRows = 21;
  for (const int64_t k : {32, 96, 320}) {
    const StoredRows stored = RandomRows(random_, kRows, k);
    PackedMatrix matrix = {nullptr, WeightType::kGguf, kRows, k, kMxfp4Form};
    EXPECT_EQ(GgufFormOf(*FindGgufType("MXFP4")), kMxfp4Form);
    const auto bytes = static_cast<size_t>(matrix.bytes());
    AlignedBuffer packed(bytes), expected(bytes);
    packed.Zero();
    expected.Zero();
    std::vector<std::byte> blocks(static_cast<size_t>(k / kMxfp4Group) * kMxfp4Form.bytes);
    for (int64_t row = 0; row < kRows; ++row) {
      const std::byte* const codes = stored.blocks.data() + row * k / 2;
      const std::byte* const exponents = stored.exponents.data() + row * k / kMxfp4Group;
      for (int64_t i = 0; i < k; ++i) {
        std::byte* const block = blocks.data() + i / kMxfp4Group * kMxfp4Form.bytes;
        block[0] = exponents[i / kMxfp4Group];
        const std::byte code = codes[i / 2] >> (i % 2 == 0 ? 0 : 4) & std::byte{15};
        std::byte& halves = block[1 + i % 16];
        halves = i % kMxfp4Group < 16 ? code : halves | code << 4;
      }
      const int64_t panel = row / kPanelOutputs * matrix.panel_bytes();
      PackGgufRow(matrix, row, blocks.data(), expected.data() + panel);
      ASSERT_TRUE(PackMxfp4Row(matrix, row, codes, exponents, packed.data() + panel));
    }
    EXPECT_EQ(std::memcmp(packed.data(), expected.data(), bytes), 0) << k;
    matrix.data = packed.data();
    std::vector<float> values(static_cast<size_t>(k));
    for (int64_t row = 0; row < kRows; ++row) {
      kernels_.unpack_row(matrix, row, values.data());
      for (int64_t i = 0; i < k; ++i) {
        ASSERT_EQ(values[static_cast<size_t>(i)], stored.values[static_cast<size_t>(row * k + i)])
            << row << " " << i;
      }
    }
    std::vector<std::byte> exponents(static_cast<size_t>(k / kMxfp4Group), std::byte{120});
    exponents.back() = std::byte{255};
    EXPECT_FALSE(PackMxfp4Row(matrix, 0, stored.blocks.data(), exponents.data(), packed.data()));
  }
}

TEST_P(Mxfp4KernelTest, RowsOfPanelsAreThoseOfTheCheckpoint) {
  for (const int64_t k : {32, 96, 128, 320}) {
    const StoredRows stored = RandomRows(random_, 16, k);
    const Weights packed(kernels_, stored.values, 16, k, WeightType::kMxfp4F32);
    std::vector<std::byte> codes(static_cast<size_t>(k / 2));
    std::vector<std::byte> exponents(static_cast<size_t>(k / kMxfp4Group));
    for (int64_t row = 0; row < 16; ++row) {
      TakeMxfp4Row(packed.matrix.data, row, k, codes.data(), exponents.data());
      EXPECT_EQ(std::memcmp(codes.data(), stored.blocks.data() + row * k / 2, codes.size()), 0);
      EXPECT_EQ(std::memcmp(exponents.data(), stored.exponents.data() + row * k / kMxfp4Group,
                            exponents.size()),
                0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, Mxfp4KernelTest, ::testing::ValuesIn(SupportedIsas()), IsaParamName);

}  // namespace
}  // namespace moesaic
