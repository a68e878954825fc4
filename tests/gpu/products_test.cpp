// Products with packed weights against double precision, and bit for bit against themselves
// whatever the other rows.
#include "kernels/cuda/products.h"

#include <numeric>
#include <span>

#include "tests/gpu/gpu_test_util.h"

namespace moesaic {
namespace {

using testing_util::ActivationRows;
using testing_util::CudaKernelTest;
using testing_util::Dot;
using testing_util::DotOf;
using testing_util::DotTolerance;
using testing_util::GpuArray;
using testing_util::GpuType;
using testing_util::kGpuExpertTypes;
using testing_util::Weights;

constexpr cuda::ProductPath kPaths[] = {cuda::ProductPath::kMatrix, cuda::ProductPath::kVector};

// Tensor cores do not promise the rounding of each addition.
double Tolerance(const Dot& dot, int64_t k) { return 4 * DotTolerance(dot, k + 32); }

class CudaProductTest : public CudaKernelTest {
 protected:
  std::vector<float> Multiply(const std::vector<uint16_t>& x, const Weights& w, int64_t rows,
                              cuda::ProductPath path) {
    const auto x_gpu = Upload(x);
    const auto matrix = Upload(w.matrix);
    const auto y = Output<float>(rows * w.matrix.n);
    Run([&](cuda::StreamHandle stream) {
      return cuda::Product({.x = x_gpu.data(),
                            .rows = rows,
                            .matrix = matrix.data(),
                            .type = GpuType(w.matrix.type),
                            .n = w.matrix.n,
                            .k = w.matrix.k,
                            .y = y.data()},
                           path, stream);
    });
    return y.Read();
  }

  void CheckAgainstDouble(WeightType type, int64_t rows, int64_t n, int64_t k) {
    const Weights w(reference_, random_.Normals(n * k), n, k, type);
    std::vector<float> values = random_.Normals(rows * k);
    const std::vector<uint16_t> x = ActivationRows(values, rows, k);
    for (const cuda::ProductPath path : kPaths) {
      SCOPED_TRACE(fmt::format("{} rows={} n={} k={} path={}", WeightTypeName(type), rows, n, k,
                               path == cuda::ProductPath::kMatrix ? "matrix" : "vector"));
      const std::vector<float> y = Multiply(x, w, rows, path);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < n; ++o) {
          const Dot dot =
              DotOf(&values[static_cast<size_t>(r * k)], &w.values[static_cast<size_t>(o * k)], k);
          ASSERT_NEAR(y[static_cast<size_t>(r * n + o)], dot.sum, Tolerance(dot, k))
              << r << "," << o;
        }
      }
    }
  }

  // That a row of x alone has the bits of `row_of_many`.
  void CheckAlone(const Weights& w, const std::vector<uint16_t>& x, int64_t row,
                  std::span<const float> row_of_many) {
    const int64_t stride = cuda::ActivationStride(w.matrix.k);
    const std::vector<uint16_t> one(x.begin() + row * stride, x.begin() + (row + 1) * stride);
    const std::vector<float> alone = Multiply(one, w, 1, cuda::ProductPath::kMatrix);
    EXPECT_TRUE(testing_util::SameBits(alone, {row_of_many.begin(), row_of_many.end()}))
        << WeightTypeName(w.matrix.type) << " k " << w.matrix.k << " row " << row;
  }
};

TEST_F(CudaProductTest, MatchesDoubleAtOddSizes) {
  for (const WeightType type : kGpuExpertTypes) {
    for (const int64_t k : {1, 2, 15, 31, 32, 33, 63, 64, 65, 97, 130}) {
      CheckAgainstDouble(type, random_.Uniform(1, 5), random_.Uniform(1, 50), k);
    }
    for (const int64_t n : {1, 15, 16, 17, 31, 33, 127, 128, 129, 150}) {
      CheckAgainstDouble(type, 2, n, 40);
    }
    for (const int64_t rows : {1, 15, 16, 17, 31, 33, 64, 65, 100}) {
      CheckAgainstDouble(type, rows, 20, 70);
    }
  }
}

TEST_F(CudaProductTest, MatchesDoubleAtLargerSizes) {
  for (const WeightType type : kGpuExpertTypes) CheckAgainstDouble(type, 3, 200, 2100);
}

// Architecture, rule 1: on the matrix path a row has the same bits alone, in any company and in
// tiles of any height.
TEST_F(CudaProductTest, ARowDoesNotDependOnItsCompany) {
  constexpr int64_t kRows = 70;
  constexpr int64_t kN = 48;
  for (const WeightType type : kGpuExpertTypes) {
    // A part of a chunk of inputs, and more chunks than a block has warps.
    for (const int64_t k : {100, 1100}) {
      const Weights w(reference_, random_.Normals(kN * k), kN, k, type);
      std::vector<float> values = random_.Normals(kRows * k);
      const std::vector<uint16_t> x = ActivationRows(values, kRows, k);
      const std::vector<float> together = Multiply(x, w, kRows, cuda::ProductPath::kMatrix);
      for (const int64_t row : {0, 1, 20, 63, 64, 69}) {
        CheckAlone(w, x, row, std::span(together).subspan(static_cast<size_t>(row * kN), kN));
      }
    }
  }
}

// The same of groups with so many rows and outputs that tiles are tall.
TEST_F(CudaProductTest, ARowOfALargeGroupHasItsBits) {
  constexpr int64_t kGroups = 6;
  constexpr int64_t kRows = kGroups * 64;
  constexpr int64_t kN = 1100;
  constexpr int64_t kK = 290;
  for (const WeightType type : kGpuExpertTypes) {
    const Weights w(reference_, random_.Normals(kN * kK), kN, kK, type);
    std::vector<float> values = random_.Normals(kRows * kK);
    const std::vector<uint16_t> x = ActivationRows(values, kRows, kK);
    // The first two groups have 100 and 28 rows.
    std::vector<int32_t> offsets = {0, 100};
    for (int64_t g = 2; g <= kGroups; ++g) offsets.push_back(static_cast<int32_t>(g * 64));
    const auto matrix = Upload(w.matrix);
    const auto x_gpu = Upload(x);
    const auto offsets_gpu = Upload(offsets);
    const auto pointers =
        Upload(std::vector<const std::byte*>(static_cast<size_t>(kGroups), matrix.data()));
    const auto y = Output<float>(kRows * kN);
    Run([&](cuda::StreamHandle stream) {
      return cuda::Product({.x = x_gpu.data(),
                            .rows = kRows,
                            .groups = kGroups,
                            .offsets = offsets_gpu.data(),
                            .weights = pointers.data(),
                            .type = GpuType(type),
                            .n = kN,
                            .k = kK,
                            .y = y.data()},
                           cuda::ProductPath::kMatrix, stream);
    });
    const std::vector<float> together = y.Read();
    for (const int64_t row : {0, 63, 64, 99, 100, 127, 128, 383}) {
      CheckAlone(w, x, row, std::span(together).subspan(static_cast<size_t>(row * kN), kN));
    }
  }
}

// Experts with many rows, one row and none; gathered inputs, scattered outputs, with a bias or
// added to what is there.
TEST_F(CudaProductTest, GroupsOfRows) {
  const std::vector<std::vector<int32_t>> counts = {
      {0, 3, 0, 0, 1, 17, 2, 0}, {40, 0, 70, 1}, {0, 0, 0}, {1, 1, 1, 1, 1, 1, 1, 1}, {130}};
  for (const WeightType type : kGpuExpertTypes) {
    for (const std::vector<int32_t>& count : counts) {
      constexpr int64_t kN = 40;
      constexpr int64_t kK = 72;
      const auto groups = static_cast<int64_t>(count.size());
      std::vector<int32_t> offsets = {0};
      for (const int32_t c : count) offsets.push_back(offsets.back() + c);
      const int64_t used = offsets.back();
      const int64_t rows = used + 5;  // of which the last ones belong to no group
      const int64_t tokens = 9;
      std::vector<float> values = random_.Normals(tokens * kK);
      const std::vector<uint16_t> x = ActivationRows(values, tokens, kK);
      std::vector<int32_t> x_rows(static_cast<size_t>(rows), 0);
      std::vector<int32_t> y_rows(static_cast<size_t>(rows));
      for (int32_t& row : x_rows) row = static_cast<int32_t>(random_.Uniform(0, tokens - 1));
      std::iota(y_rows.rbegin(), y_rows.rend(), 0);
      std::vector<Weights> experts;
      std::vector<GpuArray<std::byte>> memory;
      std::vector<const std::byte*> pointers;
      for (int64_t g = 0; g < groups; ++g) {
        experts.emplace_back(reference_, random_.Normals(kN * kK), kN, kK, type);
        memory.push_back(Upload(experts.back().matrix));
        const bool empty = count[static_cast<size_t>(g)] == 0;
        pointers.push_back(empty ? nullptr : memory.back().data());
      }
      const std::vector<float> before = random_.Normals(rows * kN);
      const std::vector<float> bias = random_.Normals((groups + 1) * kN);
      std::vector<int32_t> bias_rows(static_cast<size_t>(groups));
      for (int32_t& row : bias_rows) row = static_cast<int32_t>(random_.Uniform(0, groups));
      const auto x_gpu = Upload(x);
      const auto x_rows_gpu = Upload(x_rows);
      const auto y_rows_gpu = Upload(y_rows);
      const auto offsets_gpu = Upload(offsets);
      const auto pointers_gpu = Upload(pointers);
      const auto bias_gpu = Upload(bias);
      const auto bias_rows_gpu = Upload(bias_rows);
      for (const cuda::ProductPath path : kPaths) {
        for (const bool accumulate : {false, true}) {
          const auto y = Upload(before);
          Run([&](cuda::StreamHandle stream) {
            return cuda::Product({.x = x_gpu.data(),
                                  .x_rows = x_rows_gpu.data(),
                                  .rows = rows,
                                  .groups = groups,
                                  .offsets = offsets_gpu.data(),
                                  .weights = pointers_gpu.data(),
                                  .type = GpuType(type),
                                  .n = kN,
                                  .k = kK,
                                  .bias = accumulate ? nullptr : bias_gpu.data(),
                                  .bias_rows = bias_rows_gpu.data(),
                                  .y = y.data(),
                                  .y_rows = y_rows_gpu.data(),
                                  .accumulate = accumulate},
                                 path, stream);
          });
          const std::vector<float> after = y.Read();
          for (int64_t r = 0; r < rows; ++r) {
            const auto group =
                std::upper_bound(offsets.begin(), offsets.end(), r) - offsets.begin() - 1;
            for (int64_t o = 0; o < kN; ++o) {
              const auto at = static_cast<size_t>(y_rows[static_cast<size_t>(r)] * kN + o);
              if (r >= used) {
                ASSERT_EQ(after[at], before[at]) << r << "," << o;
                continue;
              }
              const Dot dot = DotOf(
                  &values[static_cast<size_t>(x_rows[static_cast<size_t>(r)] * kK)],
                  &experts[static_cast<size_t>(group)].values[static_cast<size_t>(o * kK)], kK);
              const auto biased =
                  static_cast<size_t>(bias_rows[static_cast<size_t>(group)] * kN + o);
              const double base = accumulate ? before[at] : bias[biased];
              ASSERT_NEAR(after[at], base + dot.sum, Tolerance(dot, kK) + std::abs(base) * 0x1p-22)
                  << r << "," << o;
            }
          }
        }
      }
    }
  }
}

// Gate and up of experts: both products of a launch are those that it takes two for.
TEST_F(CudaProductTest, TwoProductsOfALaunch) {
  constexpr int64_t kN = 80;
  constexpr int64_t kK = 200;
  for (const WeightType type : kGpuExpertTypes) {
    for (const int64_t rows : {3, 40}) {
      std::vector<float> values = random_.Normals(rows * kK);
      const auto x = Upload(ActivationRows(values, rows, kK));
      const Weights w[2] = {Weights(reference_, random_.Normals(kN * kK), kN, kK, type),
                            Weights(reference_, random_.Normals(kN * kK), kN, kK, type)};
      const auto first = Upload(w[0].matrix);
      const auto second = Upload(w[1].matrix);
      const auto pointers = Upload(std::vector<const std::byte*>{first.data(), second.data()});
      const auto offsets = Upload(std::vector<int32_t>{0, static_cast<int32_t>(rows)});
      const auto bias = Upload(random_.Normals(2 * kN));
      const auto run = [&](cuda::ProductPath path, const cuda::ProductArgs& args) {
        Run([&](cuda::StreamHandle stream) { return cuda::Product(args, path, stream); });
      };
      for (const cuda::ProductPath path : kPaths) {
        for (const bool grouped : {false, true}) {
          const auto y = Output<float>(2 * rows * kN);
          const auto apart = Output<float>(2 * rows * kN);
          cuda::ProductArgs args = {.x = x.data(),
                                    .rows = rows,
                                    .offsets = grouped ? offsets.data() : nullptr,
                                    .type = GpuType(type),
                                    .n = kN,
                                    .k = kK};
          for (int i = 0; i < 2; ++i) {
            args.weights = grouped ? pointers.data() + i : nullptr;
            args.matrix = grouped ? nullptr : (i == 0 ? first : second).data();
            args.bias = bias.data() + i * kN;
            args.y = apart.data() + i * rows * kN;
            run(path, args);
          }
          args.weights = grouped ? pointers.data() : nullptr;
          args.matrix = grouped ? nullptr : first.data();
          args.bias = bias.data();
          args.y = y.data();
          args.second_weights = grouped ? pointers.data() + 1 : nullptr;
          args.second_matrix = grouped ? nullptr : second.data();
          args.second_bias = bias.data() + kN;
          args.second_y = y.data() + rows * kN;
          run(path, args);
          EXPECT_TRUE(testing_util::SameBits(y.Read(), apart.Read())) << WeightTypeName(type);
        }
      }
    }
  }
}

TEST_F(CudaProductTest, NumbersOutOfRangeAreRefused) {
  const auto refused = [](const cuda::ProductArgs& args) {
    return !cuda::Product(args, cuda::ProductPath::kMatrix, nullptr).ok();
  };
  EXPECT_TRUE(refused({.rows = 1, .groups = 2, .n = 16, .k = 16}));
  EXPECT_TRUE(refused({.rows = 70000, .n = 16, .k = 16}));
  EXPECT_TRUE(refused({.rows = 1, .n = 0, .k = 16}));
  float y = 0;
  EXPECT_TRUE(refused({.rows = 1, .n = 16, .k = 16, .accumulate = true, .second_y = &y}));
}

}  // namespace
}  // namespace moesaic
