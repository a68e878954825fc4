// The row-invariance probe, and oneDNN's product against double precision.
#include "kernels/onednn/onednn_matmul.h"

#include <algorithm>
#include <cstdio>

#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::DotOf;
using testing_util::DotTolerance;
using testing_util::Random;
using testing_util::Weights;

// Sums in ascending order, or from both ends when the product has several rows: about what a
// library does that has one path for vectors and another for matrices.
void Multiply(const std::vector<float>& w, int64_t n, int64_t k, bool other_order, int64_t m,
              const float* x, float* y) {
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t o = 0; o < n; ++o) {
      float sum = 0.0f;
      for (int64_t i = 0; i < k; ++i) {
        const int64_t j = other_order ? k - 1 - i : i;
        sum += x[r * k + j] * w[o * k + j];
      }
      y[r * n + o] = sum;
    }
  }
}

TEST(RowInvariantTest, TellsGoodFromBad) {
  constexpr int64_t kN = 20, kK = 200;
  Random random;
  const std::vector<float> w = random.Normals(kN * kK);
  EXPECT_TRUE(RowInvariant(
      kN, kK, [&](int64_t m, const float* x, float* y) { Multiply(w, kN, kK, false, m, x, y); }));
  EXPECT_FALSE(RowInvariant(
      kN, kK, [&](int64_t m, const float* x, float* y) { Multiply(w, kN, kK, m > 1, m, x, y); }));
  // Only the last row of tall products differs: the tail of a tile.
  EXPECT_FALSE(RowInvariant(kN, kK, [&](int64_t m, const float* x, float* y) {
    Multiply(w, kN, kK, false, m, x, y);
    if (m == 512) Multiply(w, kN, kK, true, 1, x, y + 511 * kN);
  }));
}

TEST(RowInvariantTest, OurKernelsAre) {
  constexpr int64_t kN = 100, kK = 300;
  Random random;
  for (const Isa isa : testing_util::SupportedIsas()) {
    const CpuKernels& kernels = KernelsFor(isa);
    const Weights w(kernels, random.Normals(kN * kK), kN, kK, WeightType::kBf16);
    EXPECT_TRUE(RowInvariant(kN, kK, [&](int64_t m, const float* x, float* y) {
      const Activations rows(kernels, {x, x + m * kK}, m, kK);
      MatmulArgs args;
      args.x = rows.memory.data();
      args.x_stride_bytes = rows.stride_bytes;
      args.m = m;
      args.w = w.matrix;
      args.panel_end = w.matrix.panels();
      args.y = y;
      args.y_stride = kN;
      kernels.matmul(args);
    })) << IsaName(isa);
  }
}

// The types of which oneDNN has products on this CPU: float32 everywhere, bf16 on some.
std::vector<WeightType> SupportedTypes() {
  if (OneDnnSupports(WeightType::kBf16)) return {WeightType::kF32, WeightType::kBf16};
  std::printf("SKIPPED: bf16, of which this oneDNN has no products on this CPU\n");
  return {WeightType::kF32};
}

TEST(OneDnnMatmulTest, MatchesDouble) {
  SetOneDnnThreads(1);
  constexpr int64_t kN = 70, kK = 130;
  Random random;
  for (const WeightType type : SupportedTypes()) {
    const bool bf16 = type == WeightType::kBf16;
    std::vector<float> w = random.Normals(kN * kK);
    std::vector<float> x = random.Normals(9 * kK);
    std::vector<uint16_t> w_bf16(w.size()), x_bf16(x.size());
    std::transform(w.begin(), w.end(), w_bf16.begin(), F32ToBf16);
    std::transform(x.begin(), x.end(), x_bf16.begin(), F32ToBf16);
    if (bf16) {
      std::transform(w.begin(), w.end(), w.begin(), testing_util::RoundToBf16);
      std::transform(x.begin(), x.end(), x.begin(), testing_util::RoundToBf16);
    }
    OneDnnMatmul matmul(type, kN, kK, bf16 ? static_cast<const void*>(w_bf16.data()) : w.data());
    for (const int64_t m : {1, 2, 9}) {
      std::vector<float> y(m * kN);
      matmul.Run(m, bf16 ? static_cast<const void*>(x_bf16.data()) : x.data(), y.data());
      for (int64_t r = 0; r < m; ++r) {
        for (int64_t o = 0; o < kN; ++o) {
          const auto dot = DotOf(&x[r * kK], &w[o * kK], kK);
          ASSERT_NEAR(y[r * kN + o], dot.sum, DotTolerance(dot, kK)) << m << " " << r << " " << o;
        }
      }
    }
  }
}

// Whatever the answer is on this machine, it is an answer: the same twice.
TEST(OneDnnMatmulTest, ProbeIsRepeatable) {
  SetOneDnnThreads(1);
  for (const WeightType type : SupportedTypes()) {
    const bool first = OneDnnRowInvariant(type, 512, 256);
    RecordProperty(type == WeightType::kF32 ? "f32" : "bf16", first ? "invariant" : "varies");
    EXPECT_EQ(OneDnnRowInvariant(type, 512, 256), first);
  }
}

}  // namespace
}  // namespace moesaic
