// Integer weights and activations: the layout that kernels.h describes, what rounding costs, and
// the same bytes on every instruction set.
#include <algorithm>
#include <cstring>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;
using testing_util::TestSeed;
using testing_util::Weights;

class QuantizeTest : public ::testing::TestWithParam<Isa> {
 protected:
  QuantizeTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
  ::testing::ScopedTrace trace_;
};

struct PackedWeight {
  int level;       // of a weight, around 0
  int multiplier;  // of its subgroup: 1 with int8, 0 where there are no inputs
  float scale;     // of its group
};

// One weight, read as kernels.h says.
PackedWeight ReadWeight(const PackedMatrix& m, int64_t output, int64_t input) {
  const bool int8 = m.type == WeightType::kInt8;
  const int64_t group_lines = int8 ? 4 * 8 : 1 + 4 * 4;
  const int64_t group = input / 128;
  const int64_t subgroup = input % 128 / 32;
  const int64_t within = input % 32;
  const std::byte* pair =
      m.data + output / 16 * m.panel_bytes() + group / 2 * (1 + 2 * group_lines) * 64;
  const std::byte* lines = pair + (1 + group % 2 * group_lines) * 64;
  uint16_t scale;
  std::memcpy(&scale, pair + group % 2 * 32 + output % 16 * 2, 2);
  if (int8) {
    lines += subgroup * 8 * 64;
    const auto byte = std::to_integer<int>(lines[within / 4 * 64 + output % 16 * 4 + input % 4]);
    return {byte - 128, 1, F16ToF32(scale)};
  }
  const auto multiplier = std::to_integer<int>(lines[output % 16 * 4 + subgroup]);
  lines += (1 + subgroup * 4) * 64;
  const auto byte = std::to_integer<int>(lines[within / 8 * 64 + output % 16 * 4 + input % 4]);
  const int half = within % 8 < 4 ? byte & 15 : byte >> 4;
  return {half - 8 + multiplier / 128, multiplier % 128, F16ToF32(scale)};
}

float LargestMagnitude(const float* x, int64_t n) {
  float largest = 0.0f;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(x[i]));
  return largest;
}

// Squared error of the rule of GGML's Q4_0 on one group.
double SquaredErrorOfQ4_0(const float* x, int64_t n) {
  float extreme = 0.0f;
  for (int64_t i = 0; i < n; ++i) {
    if (std::abs(x[i]) > std::abs(extreme)) extreme = x[i];
  }
  const float scale = extreme / -8.0f;
  double error = 0.0;
  for (int64_t i = 0; i < n && extreme != 0.0f; ++i) {
    const float level = std::min(15.0f, std::floor(x[i] / scale + 8.5f)) - 8.0f;
    error += std::pow(static_cast<double>(x[i] - level * scale), 2);
  }
  return error;
}

TEST_P(QuantizeTest, WeightsAreNearAndMissingOnesAreZero) {
  for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    for (const int64_t n : {1, 15, 16, 33}) {
      for (const int64_t k : {1, 4, 31, 32, 33, 64, 70, 100, 128, 129, 321, 385}) {
        SCOPED_TRACE(fmt::format("{} n={} k={}", WeightTypeName(type), n, k));
        const std::vector<float> source = random_.Normals(n * k, 0.02f);
        const Weights w(kernels_, source, n, k, type);
        double error = 0.0;
        double error_q4_0 = 0.0;
        for (int64_t o = 0; o < w.matrix.panels() * 16; ++o) {
          for (int64_t i = 0; i < (k + 31) / 32 * 32; ++i) {
            const PackedWeight got = ReadWeight(w.matrix, o, i);
            if (o >= n || i >= k) {
              ASSERT_EQ(got.level * got.multiplier, 0) << o << "," << i;
              continue;
            }
            ASSERT_GE(got.multiplier, 1);
            ASSERT_LE(got.multiplier, 15);
            // What products take for one byte.
            const int byte = got.level * got.multiplier + 128;
            ASSERT_GE(byte, 1);
            ASSERT_LE(byte, 255);
            const float value = static_cast<float>(byte - 128) * got.scale;
            ASSERT_EQ(value, w.values[o * k + i]) << "unpack_row " << o << "," << i;
            if (type == WeightType::kInt8) {
              // Half a step; the step is rounded to f16, whose least step is 2^-24.
              const int64_t inputs = std::min<int64_t>(128, k - i / 128 * 128);
              ASSERT_NEAR(value, source[o * k + i],
                          LargestMagnitude(&source[o * k + i / 128 * 128], inputs) / 254 * 1.001 +
                              127 * 0x1p-25);
            } else if (i % 32 == 0) {
              error_q4_0 += SquaredErrorOfQ4_0(&source[o * k + i], std::min<int64_t>(32, k - i));
            }
            error += std::pow(static_cast<double>(value - source[o * k + i]), 2);
          }
        }
        // Scales are f16 here and were not there: groups of one weight show it.
        if (type == WeightType::kInt4 && k >= 31) {
          EXPECT_LE(error, (n * k > 1000 ? 0.95 : 1.001) * error_q4_0);
        }
      }
    }
  }
}

// Weights that some training has put on a grid of 4 bits stay as they are.
TEST_P(QuantizeTest, GridsAreKept) {
  constexpr int64_t kN = 32, kK = 416;
  for (const int lowest : {-8, -7}) {
    std::vector<float> source(kN * kK);
    for (int64_t i = 0; i < kN * kK; ++i) {
      const int64_t level = i % 32 == 5 ? lowest : random_.Uniform(lowest, 7);
      source[i] = static_cast<float>(level) * 0.0078125f * (i / kK % 2 == 0 ? 1.0f : -1.0f);
    }
    const Weights w(kernels_, source, kN, kK, WeightType::kInt4);
    EXPECT_EQ(w.values, source) << lowest;
  }
}

TEST_P(QuantizeTest, BadAndTinyWeightsShowInTheirGroupOnly) {
  constexpr int64_t kK = 384;
  for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      std::vector<float> source = random_.Normals(2 * kK);
      const Weights good(kernels_, source, 2, kK, type);
      source[kK + 140] = bad;
      const Weights w(kernels_, source, 2, kK, type);
      for (int64_t i = 0; i < 2 * kK; ++i) {
        if (i / 128 == 4) {
          EXPECT_TRUE(std::isnan(w.values[i])) << i;
        } else {
          EXPECT_EQ(w.values[i], good.values[i]) << i;
        }
      }
    }
    for (const float tiny : {0.0f, 1e-45f, 1e-39f, 1e-20f, 2e-7f}) {
      const Weights w(kernels_, std::vector<float>(kK, tiny), 1, kK, type);
      // The scale is a multiple of 2^-24.
      for (const float v : w.values) EXPECT_NEAR(v, tiny, 4e-6f);
    }
  }
}

TEST_P(QuantizeTest, SourcesOfEveryType) {
  constexpr int64_t kN = 20, kK = 77, kStride = 80;
  std::vector<uint16_t> half(kN * kStride), bfloat(kN * kStride);
  for (int64_t i = 0; i < kN * kStride; ++i) {
    bfloat[i] = F32ToBf16(random_.Normal());
    half[i] = bfloat[i] & 0xbbff;
  }
  for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const std::vector<uint16_t>& src = dtype == DType::kF16 ? half : bfloat;
      std::vector<float> floats(kN * kK);
      for (int64_t i = 0; i < kN * kK; ++i) {
        const uint16_t v = src[i / kK * kStride + i % kK];
        floats[i] = dtype == DType::kF16 ? F16ToF32(v) : Bf16ToF32(v);
      }
      const Weights w(kernels_, floats, kN, kK, type);
      const auto bytes = static_cast<size_t>(PackedMatrix::Bytes(type, kN, kK));
      AlignedBuffer packed(bytes + 64);
      std::memset(packed.data(), 0x77, bytes + 64);
      // The last panel first: packing one leaves the others alone.
      for (const int64_t panel : {1, 0}) {
        kernels_.pack_panels(src.data(), dtype, kStride, kN, kK, type, panel, panel + 1,
                             packed.data());
      }
      EXPECT_EQ(std::memcmp(packed.data(), w.memory.data(), bytes), 0) << DTypeName(dtype);
      for (size_t i = bytes; i < bytes + 64; ++i) ASSERT_EQ(packed.data()[i], std::byte{0x77});
    }
  }
}

TEST_P(QuantizeTest, Activations) {
  for (const int64_t k : {1, 16, 17, 31, 32, 50, 127, 128, 129, 333, 2048}) {
    constexpr int64_t kRows = 2;
    const std::vector<float> x = random_.Normals(kRows * (k + 1), 3.0f);
    const int64_t groups = (k + 127) / 128;
    const int64_t stride = ActivationRowBytes(ActivationType::kInt8, k);
    ASSERT_GE(stride, groups * (128 + 8));
    AlignedBuffer out(static_cast<size_t>(kRows * stride));
    kernels_.prepare_activations(x.data(), k + 1, kRows, k, ActivationType::kInt8, out.data(),
                                 stride);
    for (int64_t r = 0; r < kRows; ++r) {
      const testing_util::QuantRow row(out.data() + r * stride, k);
      for (int64_t g = 0; g < groups; ++g) {
        const float* from = &x[r * (k + 1) + g * 128];
        const int64_t inputs = std::min<int64_t>(128, k - g * 128);
        ASSERT_EQ(row.scales[g].scale, LargestMagnitude(from, inputs) / 127.0f);
        int sum = 0;
        for (int64_t i = 0; i < 128; ++i) {
          const int8_t value = row.values[g * 128 + i];
          sum += value;
          ASSERT_NEAR(static_cast<float>(value) * row.scales[g].scale, i < inputs ? from[i] : 0.0f,
                      0.50001f * row.scales[g].scale)
              << k << " " << g << " " << i;
        }
        ASSERT_EQ(row.scales[g].correction, -128 * sum);
      }
    }
  }
}

TEST_P(QuantizeTest, BadAndTinyActivations) {
  for (const float value : {NAN, -NAN, INFINITY, -INFINITY, 0.0f, 1e-45f, 1e-37f}) {
    std::vector<float> x(256, 1.0f);
    for (int64_t i = 128; i < 256; ++i) x[i] = i == 190 || std::abs(value) < 1.0f ? value : 1.0f;
    AlignedBuffer out(static_cast<size_t>(ActivationRowBytes(ActivationType::kInt8, 256)));
    kernels_.prepare_activations(x.data(), 256, 1, 256, ActivationType::kInt8, out.data(), 256);
    const testing_util::QuantRow row(out.data(), 256);
    EXPECT_EQ(row.values[18], 127);
    EXPECT_EQ(row.scales[0].correction, -128 * 127 * 128);
    EXPECT_EQ(row.scales[1].correction, 0);
    if (std::abs(value) < 1.0f) {
      EXPECT_EQ(row.scales[1].scale, 0.0f);
    } else {
      EXPECT_TRUE(std::isnan(row.scales[1].scale));
    }
    for (int64_t i = 128; i < 256; ++i) EXPECT_EQ(row.values[i], 0);
  }
}

TEST_P(QuantizeTest, SameBytesAsTheReference) {
  const CpuKernels& reference = KernelsFor(Isa::kScalar);
  for (int round = 0; round < 20; ++round) {
    const int64_t n = random_.Uniform(1, 40), k = random_.Uniform(1, 300);
    std::vector<float> source = random_.Normals(n * k, round % 2 == 0 ? 0.02f : 1e-6f);
    // Values on the edge between two levels.
    for (float& v : source) {
      if (random_.Uniform(0, 3) == 0) v = static_cast<float>(random_.Uniform(-16, 16)) * 0.5f;
    }
    for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
      const Weights expected(reference, source, n, k, type);
      const Weights got(kernels_, source, n, k, type);
      EXPECT_EQ(std::memcmp(got.memory.data(), expected.memory.data(),
                            static_cast<size_t>(PackedMatrix::Bytes(type, n, k))),
                0)
          << WeightTypeName(type) << " n=" << n << " k=" << k;
    }
    const testing_util::Activations x(reference, source, n, k, WeightType::kInt8);
    const testing_util::Activations y(kernels_, source, n, k, WeightType::kInt8);
    for (int64_t r = 0; r < n; ++r) {
      EXPECT_EQ(
          std::memcmp(x.memory.data() + r * x.stride_bytes, y.memory.data() + r * y.stride_bytes,
                      static_cast<size_t>(testing_util::QuantRowBytes(k))),
          0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, QuantizeTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

}  // namespace
}  // namespace moesaic
