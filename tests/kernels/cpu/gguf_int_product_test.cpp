// Products with GGUF's blocks and int8 activations: against double precision and against plain
// integers, and the same bits on every instruction set, for every number of rows and range of
// panels.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/gguf_blocks.h"
#include "tests/kernels/cpu/gguf_test_util.h"

namespace moesaic {
namespace {

using namespace testing_util;

CpuKernels Table(QuantIsa isa) { return WithQuantIsa(KernelsFor(Isa::kScalar), isa); }

Activations Rows(std::vector<float> values, int64_t rows, int64_t k) {
  return {KernelsFor(Isa::kScalar), std::move(values), rows, k, WeightType::kGguf};
}

int64_t LeastInputs(const char* type) { return FindGgufType(type)->block_values; }

class GgufIntProductTest : public testing::TestWithParam<QuantIsa> {
 protected:
  const CpuKernels kernels_ = Table(GetParam());
  Random random_;
};

TEST_P(GgufIntProductTest, ProductsAreThoseOfTheValuesInDoublePrecision) {
  constexpr int64_t kOutputs = 37;
  constexpr int64_t kRows = 5;
  for (const char* const type : kGgufBlockTypes) {
    for (const int64_t blocks : {1, 3, 9}) {
      const int64_t k = blocks * LeastInputs(type);
      SCOPED_TRACE(fmt::format("{}, {} inputs", type, k));
      const BlockWeights w(type, kOutputs, k, random_, WeightType::kGguf);
      const Activations x = Rows(random_.Normals(kRows * k), kRows, k);
      const std::vector<float> got = Multiply(kernels_, x, AsWeights(w), kRows, nullptr, 8);
      for (int64_t row = 0; row < kRows; ++row) {
        for (int64_t output = 0; output < kOutputs; ++output) {
          const float* const weights = w.values().data() + output * k;
          double largest = 0.0;
          double activations = 0.0;
          for (int64_t i = 0; i < k; ++i) {
            largest = std::max(largest, std::abs(static_cast<double>(weights[i])));
            activations += std::abs(static_cast<double>(x.values[row * k + i]));
          }
          const double expected = DotOf(x.values.data() + row * k, weights, k).sum;
          ASSERT_NEAR(got[row * kOutputs + output], expected,
                      std::ldexp(largest * activations, -20))
              << "row " << row << ", output " << output;
        }
      }
    }
  }
}

TEST_P(GgufIntProductTest, SameBitsForAllRowsAndPanels) {
  constexpr int64_t kOutputs = 101;
  constexpr int64_t kMostRows = 110;
  for (const char* const type : kGgufBlockTypes) {
    SCOPED_TRACE(type);
    const int64_t k = LeastInputs(type) == 256 ? 512 : 416;
    const BlockWeights blocks(type, kOutputs, k, random_, WeightType::kGguf);
    const Weights w = AsWeights(blocks);
    const Activations x = Rows(random_.Normals(kMostRows * k), kMostRows, k);
    const std::vector<float> bias = random_.Normals(kOutputs);
    const std::vector<float> all =
        Multiply(Table(QuantIsa::kScalar), x, w, kMostRows, bias.data(), 7);
    for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 11, 17, 49, 110}) {
      const std::vector<float> expected(all.begin(), all.begin() + m * kOutputs);
      for (const int64_t step : {1, 3, 7}) {
        EXPECT_TRUE(SameBits(Multiply(kernels_, x, w, m, bias.data(), step), expected))
            << m << " rows, " << step << " panels at once";
      }
    }
  }
}

// Gate and up are of two types, of one kind of scales and of two.
TEST_P(GgufIntProductTest, GateAndUpAreThoseOfTheirSums) {
  constexpr int64_t kOutputs = 136;
  constexpr int64_t kInputs = 512;
  constexpr int64_t kRows = 19;
  const std::pair<const char*, const char*> pairs[] = {{"Q4_K", "Q6_K"}, {"Q8_0", "Q4_K"},
                                                       {"Q4_K", "Q5_K"}, {"Q8_0", "Q8_0"},
                                                       {"Q2_K", "Q3_K"}, {"Q2_K", "Q2_K"}};
  for (const auto& [gate_type, up_type] : pairs) {
    SCOPED_TRACE(fmt::format("{} and {}", gate_type, up_type));
    const BlockWeights gate(gate_type, kOutputs, kInputs, random_, WeightType::kGguf);
    const BlockWeights up(up_type, kOutputs, kInputs, random_, WeightType::kGguf);
    const Activations x = Rows(random_.Normals(kRows * kInputs, 0.01f), kRows, kInputs);
    const AlignedBuffer got = HiddenRows(kernels_, x, AsWeights(gate), AsWeights(up), kRows, 8);
    const AlignedBuffer scalar =
        HiddenRows(Table(QuantIsa::kScalar), x, AsWeights(gate), AsWeights(up), kRows, 16);
    ASSERT_EQ(got.bytes(), scalar.bytes());
    EXPECT_EQ(std::memcmp(got.data(), scalar.data(), got.bytes()), 0);
    const std::vector<float> gates = Multiply(kernels_, x, AsWeights(gate), kRows, nullptr, 16);
    const std::vector<float> ups = Multiply(kernels_, x, AsWeights(up), kRows, nullptr, 16);
    const int64_t stride = ActivationRowBytes(ActivationType::kInt8Sums, kOutputs);
    for (int64_t row = 0; row < kRows; ++row) {
      const QuantRow h(got.data() + row * stride, kOutputs);
      for (int64_t i = 0; i < kOutputs; ++i) {
        const double g = gates[row * kOutputs + i];
        const double expected = g / (1.0 + std::exp(-g)) * ups[row * kOutputs + i];
        const double step = h.scales[i / kQuantGroup].scale;
        ASSERT_NEAR(h.values[i] * step, expected, 0.501 * step) << row << ", " << i;
      }
    }
  }
}

// The formulas of three types in plain integers, in the order that is documented.
TEST_P(GgufIntProductTest, ProductsAreExactSumsInOneOrder) {
  constexpr int64_t kInputs = 768;
  constexpr int64_t kOutputs = 20;
  const auto half = [](const std::byte* at) {
    uint16_t bits;
    std::memcpy(&bits, at, sizeof(bits));
    return F16ToF32(bits);
  };
  struct Group {
    float scale;
    float addend;
  };
  for (const char* const type : {"Q8_0", "Q4_K", "Q6_K"}) {
    SCOPED_TRACE(type);
    BlockWeights w(type, kOutputs, kInputs, random_, WeightType::kGguf);
    const Activations x = Rows(random_.Normals(kInputs), 1, kInputs);
    const QuantRow activations(x.memory.data(), kInputs);
    const std::vector<float> got = Multiply(kernels_, x, AsWeights(w), 1, nullptr, 2);
    for (int64_t output = 0; output < kOutputs; ++output) {
      const int64_t width = type[1] == '6' ? 16 : 32;
      float sum = 0.0f;
      for (int64_t begin = 0; begin < kInputs; begin += kQuantGroup) {
        float of_group = 0.0f;
        for (int64_t i = begin; i < begin + kQuantGroup; i += width) {
          const std::byte* const block =
              w.row(output) + i / w.type().block_values * w.type().block_bytes;
          const auto byte = [&](int64_t at) { return static_cast<int>(block[at]); };
          const int64_t in_block = i % w.type().block_values;
          Group group = {};
          const auto level = [&](int64_t l) {
            if (type[1] == '8') return static_cast<int>(static_cast<int8_t>(byte(2 + l)));
            const int64_t at = in_block + l;
            if (type[1] == '4') return byte(16 + at / 64 * 32 + at % 32) >> at % 64 / 32 * 4 & 15;
            const int64_t r = at % 128;
            const int low = byte(at / 128 * 64 + r % 64) >> r / 64 * 4 & 15;
            const int high = byte(128 + at / 128 * 32 + r % 32) >> r / 32 * 2 & 3;
            return (low | high << 4) - 32;
          };
          if (type[1] == '8') group.scale = half(block);
          if (type[1] == '6') {
            const int scale = static_cast<int8_t>(byte(192 + in_block / 16));
            group.scale = half(block + 208) * static_cast<float>(scale);
          }
          if (type[1] == '4') {
            const int64_t j = in_block / 32;
            const int scale = j < 4 ? byte(4 + j) & 63 : (byte(8 + j) & 15) | byte(j) >> 6 << 4;
            const int minimum = j < 4 ? byte(8 + j) & 63 : byte(8 + j) >> 4 | byte(4 + j) >> 6 << 4;
            group.scale = half(block) * static_cast<float>(scale);
            group.addend = -(half(block + 2) * static_cast<float>(minimum));
          }
          int32_t dot = 0;
          int32_t plain = 0;
          for (int64_t l = 0; l < width; ++l) {
            dot += level(l) * activations.values[i + l];
            plain += activations.values[i + l];
          }
          of_group = std::fma(static_cast<float>(dot), group.scale, of_group);
          if (type[1] == '4') {
            of_group = std::fma(static_cast<float>(plain), group.addend, of_group);
          }
        }
        sum = std::fma(of_group, activations.scales[begin / kQuantGroup].scale, sum);
      }
      ASSERT_EQ(Bits(got[static_cast<size_t>(output)]), Bits(sum)) << output;
    }
  }
}

// The largest whole numbers of both signs, where 16 bits would not hold a pair of products.
TEST_P(GgufIntProductTest, LargestNumbersAreSummedExactly) {
  constexpr int64_t kInputs = 512;
  for (const char* const type : kGgufBlockTypes) {
    for (const int byte : {0x00, 0x7f, 0x80, 0xff}) {
      SCOPED_TRACE(fmt::format("{}, bytes {:02x}", type, byte));
      BlockWeights blocks(type, 16, kInputs, random_, WeightType::kGguf);
      std::memset(blocks.row(0), byte, static_cast<size_t>(16 * blocks.row_bytes()));
      const Halves halves = HalvesOf(type);
      for (int64_t at = 0; at < 16 * blocks.row_bytes(); at += blocks.type().block_bytes) {
        std::byte* const block = blocks.row(0) + at;
        for (const int f16 : {halves.first, halves.second}) {
          if (f16 < 0) continue;
          block[f16] = std::byte{0xff};  // 65504
          block[f16 + 1] = std::byte{0x7b};
        }
      }
      blocks.Pack();
      std::vector<float> x_values(2 * kInputs, 1.0f);
      for (int64_t i = kInputs; i < 2 * kInputs; i += 2) x_values[static_cast<size_t>(i)] = -1.0f;
      const Activations x = Rows(x_values, 2, kInputs);
      const Weights w = AsWeights(blocks);
      const std::vector<float> got = Multiply(kernels_, x, w, 2, nullptr, 1);
      EXPECT_TRUE(SameBits(got, Multiply(Table(QuantIsa::kScalar), x, w, 2, nullptr, 1)));
      EXPECT_TRUE(
          SameBits(Multiply(kernels_, x, w, 1, nullptr, 1), {got.begin(), got.begin() + 16}));
      const Dot first = DotOf(x.values.data(), blocks.values().data(), kInputs);
      if (std::isinf(first.sum)) {  // of MXFP4
        EXPECT_EQ(static_cast<double>(got[0]), first.sum);
      } else {
        EXPECT_NEAR(got[0], first.sum, std::ldexp(first.magnitude, -18));
      }
    }
  }
}

TEST_P(GgufIntProductTest, RowsThatAreNoNumbersAreNan) {
  constexpr int64_t kInputs = 512;
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* const type : {"Q8_0", "Q4_K", "Q6_K", "MXFP4"}) {
    SCOPED_TRACE(type);
    const BlockWeights blocks(type, 16, kInputs, random_, WeightType::kGguf);
    std::vector<float> x_values = random_.Normals(4 * kInputs);
    x_values[kInputs + 300] = inf;
    x_values[2 * kInputs + 7] = std::numeric_limits<float>::quiet_NaN();
    std::fill(x_values.begin() + 3 * kInputs, x_values.end(), 0.0f);
    const Activations x = Rows(x_values, 4, kInputs);
    const std::vector<float> y = Multiply(kernels_, x, AsWeights(blocks), 4, nullptr, 1);
    for (int64_t i = 0; i < 16; ++i) {
      EXPECT_TRUE(std::isfinite(y[i]));
      EXPECT_TRUE(std::isnan(y[16 + i]));
      EXPECT_TRUE(std::isnan(y[32 + i]));
      EXPECT_EQ(y[48 + i], 0.0f);
    }
  }
}

TEST(GgufActivationsTest, RowsHaveTheSumsOfTheirValuesOnEveryIsa) {
  Random random;
  for (const int64_t k : {32, 96, 128, 160, 2048}) {
    const std::vector<float> x = random.Normals(k);
    for (const Isa isa : SupportedIsas()) {
      SCOPED_TRACE(fmt::format("{} inputs, {}", k, IsaName(isa)));
      const int64_t bytes = ActivationRowBytes(ActivationType::kInt8Sums, k);
      AlignedBuffer row(static_cast<size_t>(bytes));
      AlignedBuffer plain(static_cast<size_t>(bytes));
      KernelsFor(isa).prepare_activations(x.data(), k, 1, k, ActivationType::kInt8Sums, row.data(),
                                          bytes);
      KernelsFor(Isa::kScalar)
          .prepare_activations(x.data(), k, 1, k, ActivationType::kInt8, plain.data(), bytes);
      EXPECT_EQ(std::memcmp(row.data(), plain.data(), static_cast<size_t>(QuantRowBytes(k))), 0);
      const QuantRow values(row.data(), k);
      for (const int64_t group : {16, 32}) {
        const auto* const sums =
            reinterpret_cast<const int32_t*>(row.data() + GroupSumsOffset(k, group));
        for (int64_t g = 0; g < ActivationScalesOffset(k) / group; ++g) {
          int32_t sum = 0;
          for (int64_t i = 0; i < group; ++i) sum += values.values[g * group + i];
          EXPECT_EQ(sums[g], -128 * sum);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, GgufIntProductTest, testing::ValuesIn(SupportedQuantIsas()),
                         [](const auto& test) { return std::string(QuantIsaName(test.param)); });

}  // namespace
}  // namespace moesaic
