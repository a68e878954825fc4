// Packing of weight panels, against the layout that kernels.h describes, written out element by
// element.
#include <algorithm>
#include <cstring>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;
using testing_util::TestSeed;

class PackingTest : public ::testing::TestWithParam<Isa> {
 protected:
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
};

float SourceValue(const std::vector<std::byte>& src, DType dtype, int64_t i) {
  if (dtype == DType::kF32) {
    float v;
    std::memcpy(&v, src.data() + 1 + i * 4, 4);
    return v;
  }
  uint16_t v;
  std::memcpy(&v, src.data() + 1 + i * 2, 2);
  return dtype == DType::kBF16 ? Bf16ToF32(v) : F16ToF32(v);
}

TEST_P(PackingTest, WritesTheDocumentedLayout) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
      for (const int64_t n : {1, 5, 15, 16, 17, 40}) {
        for (const int64_t k : {1, 2, 3, 15, 16, 17, 31, 32, 33, 47, 64, 70, 129}) {
          SCOPED_TRACE(fmt::format("{} -> {} n={} k={} seed={}", DTypeName(dtype),
                                   type == WeightType::kBf16 ? "bf16" : "f32", n, k, TestSeed()));
          const int64_t stride = k + 3;
          // Exactly as long as the matrix, so that a sanitizer sees a read past it; at an odd
          // address, where a checkpoint may well put a tensor.
          const int64_t elements = (n - 1) * stride + k;
          std::vector<std::byte> src(1 + elements * DTypeBits(dtype) / 8);
          for (int64_t i = 0; i < elements; ++i) {
            const float v = random_.Normal();
            if (dtype == DType::kF32) {
              std::memcpy(src.data() + 1 + i * 4, &v, 4);
            } else {
              // Any finite pattern will do; the exponent of f16 is kept below its maximum.
              uint16_t half = F32ToBf16(v);
              if (dtype == DType::kF16) half &= 0xbbff;
              std::memcpy(src.data() + 1 + i * 2, &half, 2);
            }
          }
          const PackedMatrix matrix = {nullptr, type, n, k};
          const int64_t bytes = PackedMatrix::Bytes(type, n, k);
          std::vector<std::byte> packed(bytes + 64, std::byte{0x77});
          for (int64_t p = matrix.panels() - 1; p >= 0; --p) {
            kernels_.pack_panels(src.data() + 1, dtype, stride, n, k, type, p, p + 1,
                                 packed.data());
          }
          const int64_t padded_k = type == WeightType::kBf16 ? (k + 1) / 2 * 2 : k;
          for (int64_t o = 0; o < matrix.panels() * 16; ++o) {
            const std::byte* panel = packed.data() + o / 16 * matrix.panel_bytes();
            for (int64_t i = 0; i < padded_k; ++i) {
              const float v = o < n && i < k ? SourceValue(src, dtype, o * stride + i) : 0.0f;
              if (type == WeightType::kF32) {
                float got;
                std::memcpy(&got, panel + (i * 16 + o % 16) * 4, 4);
                ASSERT_EQ(testing_util::Bits(got), testing_util::Bits(v)) << o << "," << i;
              } else {
                uint16_t got;
                std::memcpy(&got, panel + ((i / 2 * 16 + o % 16) * 2 + i % 2) * 2, 2);
                ASSERT_EQ(got, F32ToBf16(v)) << o << "," << i;
              }
            }
          }
          for (int64_t i = bytes; i < bytes + 64; ++i) ASSERT_EQ(packed[i], std::byte{0x77});
        }
      }
    }
  }
}

TEST_P(PackingTest, KeepsSpecialValues) {
  const std::vector<float> src = {NAN,    INFINITY,    -INFINITY,   -0.0f, 1e-40f, 3.4e38f,
                                  1.004f, 1.00390625f, 1.01171875f, -NAN,  0.0f,   65504.0f,
                                  1.0f,   2.0f,        3.0f,        4.0f};
  const auto n = static_cast<int64_t>(src.size());
  std::vector<std::byte> packed(64);
  kernels_.pack_panels(src.data(), DType::kF32, 1, n, 1, WeightType::kBf16, 0, 1, packed.data());
  for (int64_t o = 0; o < n; ++o) {
    uint16_t got;
    std::memcpy(&got, packed.data() + o * 4, 2);
    EXPECT_EQ(got, F32ToBf16(src[o])) << src[o];
  }
}

TEST_P(PackingTest, UnpackRowReturnsTheRow) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    for (const int64_t k : {1, 2, 33, 64}) {
      constexpr int64_t kN = 37;
      const testing_util::Weights w(kernels_, random_.Normals(kN * k), kN, k, type);
      for (int64_t row = 0; row < kN; ++row) {
        std::vector<float> out(k + 1, 5.5f);
        kernels_.unpack_row(w.matrix, row, out.data());
        for (int64_t i = 0; i < k; ++i) ASSERT_EQ(out[i], w.values[row * k + i]);
        ASSERT_EQ(out[k], 5.5f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PackingTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

}  // namespace
}  // namespace moesaic
