// W4A16 weights: packing against the definition and against checkpoints' bits, products against
// those of f32 weights, bit for bit.
#include "kernels/cpu/w4a16_pack.h"

#include <array>
#include <cmath>
#include <limits>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::ExpectProductsOfF32;
using testing_util::IsaParamName;
using testing_util::Multiply;
using testing_util::Random;
using testing_util::SupportedIsas;
using testing_util::TestSeed;
using testing_util::Weights;

class W4A16KernelTest : public ::testing::TestWithParam<Isa> {
 protected:
  W4A16KernelTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}

  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
  ::testing::ScopedTrace trace_;
};

TEST_P(W4A16KernelTest, ValuesGoToTheNearestOfTheLargestMagnitudesGroup) {
  for (const int64_t k : {1, 31, 32, 70, 96, 300}) {
    const std::vector<float> values = random_.Normals(21 * k, 0.1f);
    const Weights packed(kernels_, values, 21, k, WeightType::kW4A16);
    const Weights reference(KernelsFor(Isa::kScalar), values, 21, k, WeightType::kW4A16);
    const auto bytes = static_cast<size_t>(PackedMatrix::Bytes(WeightType::kW4A16, 21, k));
    EXPECT_EQ(std::memcmp(packed.memory.data(), reference.memory.data(), bytes), 0) << k;
    for (int64_t first = 0; first < 21 * k; ++first) {
      if (first % k % kW4A16Group != 0) continue;
      const int64_t end = std::min(first - first % k + k, first + kW4A16Group);
      float largest = 0;
      for (int64_t i = first; i < end; ++i) {
        largest = std::max(largest, std::abs(values[static_cast<size_t>(i)]));
      }
      const float scale = Bf16ToF32(F32ToBf16(largest / 7.5f));
      for (int64_t i = first; i < end; ++i) {
        const auto at = static_cast<size_t>(i);
        const float number = std::clamp(std::nearbyint(values[at] / scale), -8.0f, 7.0f);
        EXPECT_EQ(packed.values[at], number * scale) << k << " " << i;
      }
    }
  }
}

TEST_P(W4A16KernelTest, GroupsOfNoNumberAndOfZeros) {
  std::vector<float> values = random_.Normals(3 * 64);
  std::vector<std::byte> before;
  // With values whose scale is zero.
  for (const auto& [bad, tiny] : {std::pair(std::numeric_limits<float>::quiet_NaN(), 1e-45f),
                                  {-std::numeric_limits<float>::infinity(), -0.0f}}) {
    values[64 + 40] = bad;
    std::fill_n(values.begin() + 128, 32, tiny);
    const Weights packed(kernels_, values, 3, 64, WeightType::kW4A16);
    const std::byte* const first = packed.memory.data();
    const std::vector<std::byte> bytes(first,
                                       first + PackedMatrix::Bytes(WeightType::kW4A16, 3, 64));
    EXPECT_TRUE(before.empty() || bytes == before);
    before = bytes;
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(std::isnan(packed.values[i]), i / 32 == 3) << i;
      if (i / 32 == 4) {
        EXPECT_EQ(packed.values[i], 0.0f) << i;
      }
    }
    const Activations x(kernels_, random_.Normals(64), 1, 64, WeightType::kW4A16);
    const std::vector<float> y = Multiply(kernels_, x, packed, 1, nullptr, 1);
    EXPECT_TRUE(std::isfinite(y[0]));
    EXPECT_FALSE(std::isfinite(y[1]));
    EXPECT_TRUE(std::isfinite(y[2]));
  }
}

TEST_P(W4A16KernelTest, ProductsAreThoseOfTheSameWeightsInF32) {
  ExpectProductsOfF32(kernels_, WeightType::kW4A16, random_,
                      [&](int64_t n, int64_t k) { return random_.Normals(n * k); });
}

// Every number of a checkpoint, with scales of groups of 32 inputs and more, is the same after
// packing.
TEST_P(W4A16KernelTest, RowsOfCheckpointsKeepTheirNumbers) {
  constexpr int64_t kRows = 21;
  for (const auto& [k, group] : {std::pair<int64_t, int64_t>{96, 32}, {128, 64}, {192, 192}}) {
    std::vector<std::byte> codes(static_cast<size_t>(kRows * k / 2));
    std::vector<uint16_t> scales(static_cast<size_t>(kRows * k / group));
    for (std::byte& two : codes) two = static_cast<std::byte>(random_.Uniform(0, 255));
    for (uint16_t& scale : scales) scale = F32ToBf16(random_.Normals(1).front());
    PackedMatrix matrix = {nullptr, WeightType::kW4A16, kRows, k};
    AlignedBuffer memory(static_cast<size_t>(matrix.bytes()));
    matrix.data = memory.data();
    for (int64_t row = 0; row < kRows; ++row) {
      PackW4A16Row(matrix, row, codes.data() + row * k / 2, scales.data() + row * k / group, group,
                   memory.data() + row / kPanelOutputs * matrix.panel_bytes());
    }
    std::vector<float> values(static_cast<size_t>(k));
    for (int64_t row = 0; row < kRows; ++row) {
      kernels_.unpack_row(matrix, row, values.data());
      for (int64_t i = 0; i < k; ++i) {
        const auto two = static_cast<int>(codes[static_cast<size_t>((row * k + i) / 2)]);
        const int number = (i % 2 == 0 ? two & 15 : two >> 4) - 8;
        const float scale = Bf16ToF32(scales[static_cast<size_t>((row * k + i) / group)]);
        EXPECT_EQ(values[static_cast<size_t>(i)], static_cast<float>(number) * scale)
            << row << " " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, W4A16KernelTest, ::testing::ValuesIn(SupportedIsas()), IsaParamName);

}  // namespace
}  // namespace moesaic
