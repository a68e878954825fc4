// Kernels on rows against the CPU's scalar reference.
#include "kernels/cuda/rows.h"

#include <array>
#include <cmath>
#include <limits>

#include "core/device/pinned_host_pool.h"
#include "tests/gpu/gpu_test_util.h"

namespace moesaic {
namespace {

using testing_util::CudaKernelTest;
using testing_util::ExpectBf16Near;
using testing_util::GpuType;
using testing_util::kGpuTypes;
using testing_util::Weights;

class CudaRowsTest : public CudaKernelTest {};

TEST_F(CudaRowsTest, RmsNormOfRows) {
  for (const int64_t n : {1, 5, 31, 64, 100, 257, 2048, 4101}) {
    for (const int64_t rows : {1, 3}) {
      SCOPED_TRACE(fmt::format("n={} rows={}", n, rows));
      const std::vector<float> x = random_.Normals(rows * n, 3.0f);
      const std::vector<float> weight = random_.Normals(n);
      const int64_t stride = cuda::ActivationStride(n);
      const auto x_gpu = Upload(x);
      const auto weight_gpu = Upload(weight);
      const auto out = Output<float>(rows * n);
      const auto out_bf16 = Output<uint16_t>(rows * stride);
      Run([&](cuda::StreamHandle stream) {
        return cuda::RmsNorm({.x = x_gpu.data(),
                              .rows = rows,
                              .n = n,
                              .token_stride = n,
                              .weight = weight_gpu.data(),
                              .eps = 1e-6f,
                              .out = out.data(),
                              .out_bf16 = out_bf16.data()},
                             stream);
      });
      const std::vector<float> y = out.Read();
      const std::vector<uint16_t> y_bf16 = out_bf16.Read();
      std::vector<float> expected(static_cast<size_t>(n));
      for (int64_t r = 0; r < rows; ++r) {
        reference_.rms_norm(x.data() + r * n, weight.data(), 1e-6f, n, expected.data());
        for (int64_t i = 0; i < stride; ++i) {
          const uint16_t bits = y_bf16[static_cast<size_t>(r * stride + i)];
          if (i >= n) {
            ASSERT_EQ(bits, 0) << i;
            continue;
          }
          const float want = expected[static_cast<size_t>(i)];
          ASSERT_NEAR(y[static_cast<size_t>(r * n + i)], want, std::abs(want) * 1e-5 + 1e-9) << i;
          ExpectBf16Near(bits, want, 1e-9, std::to_string(i));
        }
      }
    }
  }
}

// Queries and keys: heads of tokens within a wider row, in place; what is beside them stays.
TEST_F(CudaRowsTest, RmsNormOfHeadsInPlace) {
  constexpr int64_t kTokens = 3;
  constexpr int64_t kHeads = 5;
  constexpr int64_t kHeadDim = 48;
  constexpr int64_t kStride = 300;
  const std::vector<float> before = random_.Normals(kTokens * kStride);
  const std::vector<float> weight = random_.Normals(kHeadDim);
  const auto x = Upload(before);
  const auto weight_gpu = Upload(weight);
  Run([&](cuda::StreamHandle stream) {
    return cuda::RmsNorm({.x = x.data(),
                          .rows = kTokens * kHeads,
                          .n = kHeadDim,
                          .heads = kHeads,
                          .token_stride = kStride,
                          .weight = weight_gpu.data(),
                          .eps = 1e-5f,
                          .out = x.data()},
                         stream);
  });
  std::vector<float> expected = before;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      float* row = expected.data() + t * kStride + h * kHeadDim;
      reference_.rms_norm(row, weight.data(), 1e-5f, kHeadDim, row);
    }
  }
  const std::vector<float> after = x.Read();
  for (size_t i = 0; i < after.size(); ++i) {
    ASSERT_NEAR(after[i], expected[i], std::abs(expected[i]) * 1e-5 + 1e-9) << i;
    const bool beside = static_cast<int64_t>(i) % kStride >= kHeads * kHeadDim;
    if (beside) {
      ASSERT_EQ(after[i], before[i]) << i;
    }
  }
}

TEST_F(CudaRowsTest, RmsNormOfChosenTokens) {
  constexpr int64_t kTokens = 6;
  constexpr int64_t kN = 70;
  const std::vector<float> x = random_.Normals(kTokens * kN);
  const std::vector<float> weight = random_.Normals(kN);
  const std::vector<int32_t> chosen = {4, 0, 4};
  const auto x_gpu = Upload(x);
  const auto weight_gpu = Upload(weight);
  const auto chosen_gpu = Upload(chosen);
  const int64_t stride = cuda::ActivationStride(kN);
  const auto out = Output<uint16_t>(std::ssize(chosen) * stride);
  Run([&](cuda::StreamHandle stream) {
    return cuda::RmsNorm({.x = x_gpu.data(),
                          .rows = std::ssize(chosen),
                          .n = kN,
                          .token_stride = kN,
                          .x_tokens = chosen_gpu.data(),
                          .weight = weight_gpu.data(),
                          .eps = 1e-6f,
                          .out_bf16 = out.data()},
                         stream);
  });
  const std::vector<uint16_t> y = out.Read();
  std::vector<float> expected(static_cast<size_t>(kN));
  for (size_t r = 0; r < chosen.size(); ++r) {
    reference_.rms_norm(x.data() + chosen[r] * kN, weight.data(), 1e-6f, kN, expected.data());
    for (int64_t i = 0; i < kN; ++i) {
      ExpectBf16Near(y[r * static_cast<size_t>(stride) + static_cast<size_t>(i)],
                     expected[static_cast<size_t>(i)], 1e-9, std::to_string(i));
    }
  }
  EXPECT_FALSE(cuda::RmsNorm({.x_tokens = chosen_gpu.data(), .out = x_gpu.data()}, nullptr).ok());
}

TEST_F(CudaRowsTest, AddGated) {
  constexpr int64_t kRows = 3;
  for (const int64_t n : {1, 255, 300}) {
    const std::vector<float> x = random_.Normals(kRows * n);
    const std::vector<float> gate = random_.Normals(kRows, 4.0f);
    const std::vector<float> before = random_.Normals(kRows * n);
    const auto x_gpu = Upload(x);
    const auto gate_gpu = Upload(gate);
    const auto y = Upload(before);
    Run([&](cuda::StreamHandle stream) {
      return cuda::AddGated(
          {.x = x_gpu.data(), .gate = gate_gpu.data(), .rows = kRows, .n = n, .y = y.data()},
          stream);
    });
    const std::vector<float> after = y.Read();
    for (int64_t i = 0; i < kRows * n; ++i) {
      const auto at = static_cast<size_t>(i);
      const double share =
          1.0 / (1.0 + std::exp(-static_cast<double>(gate[at / static_cast<size_t>(n)])));
      ASSERT_NEAR(after[at], before[at] + share * x[at], 1e-5) << i;
    }
  }
}

TEST_F(CudaRowsTest, Rope) {
  for (const auto& [head_dim, rotary_dim] :
       {std::pair<int64_t, int64_t>{2, 2}, {48, 48}, {48, 20}, {128, 128}, {128, 64}}) {
    SCOPED_TRACE(fmt::format("{} of {}", rotary_dim, head_dim));
    constexpr int64_t kTokens = 4;
    constexpr int64_t kHeads = 3;
    const int64_t half = rotary_dim / 2;
    const int64_t stride = kHeads * head_dim + 7;
    const std::vector<int32_t> positions = {0, 9, 3, 9};
    const std::vector<float> cos = random_.Normals(10 * half);
    const std::vector<float> sin = random_.Normals(10 * half);
    std::vector<float> expected = random_.Normals(kTokens * stride);
    const auto x = Upload(expected);
    const auto positions_gpu = Upload(positions);
    const auto cos_gpu = Upload(cos);
    const auto sin_gpu = Upload(sin);
    Run([&](cuda::StreamHandle stream) {
      return cuda::Rope({.x = x.data(),
                         .tokens = kTokens,
                         .heads = kHeads,
                         .head_dim = head_dim,
                         .rotary_dim = rotary_dim,
                         .token_stride = stride,
                         .positions = positions_gpu.data(),
                         .cos = cos_gpu.data(),
                         .sin = sin_gpu.data()},
                        stream);
    });
    for (int64_t t = 0; t < kTokens; ++t) {
      const int64_t row = positions[static_cast<size_t>(t)] * half;
      for (int64_t h = 0; h < kHeads; ++h) {
        reference_.rope(expected.data() + t * stride + h * head_dim, cos.data() + row,
                        sin.data() + row, half);
      }
    }
    const std::vector<float> y = x.Read();
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-5) << i;
  }
}

TEST_F(CudaRowsTest, EmbeddingsAreTheUnpackedRows) {
  for (const WeightType type : kGpuTypes) {
    for (const int64_t k : {1, 33, 64, 95, 200}) {
      SCOPED_TRACE(fmt::format("{} k={}", WeightTypeName(type), k));
      constexpr int64_t kRows = 37;
      const Weights w(reference_, random_.Normals(kRows * k), kRows, k, type);
      const std::vector<int32_t> ids = {0, 36, 17, -1, 16, 37, 15};
      const auto matrix = Upload(w.matrix);
      const auto ids_gpu = Upload(ids);
      const auto out = Output<float>(static_cast<int64_t>(ids.size()) * k);
      Run([&](cuda::StreamHandle stream) {
        return cuda::Embedding({.matrix = matrix.data(),
                                .type = GpuType(type),
                                .n = kRows,
                                .k = k,
                                .ids = ids_gpu.data(),
                                .tokens = static_cast<int64_t>(ids.size()),
                                .out = out.data()},
                               stream);
      });
      const std::vector<float> y = out.Read();
      for (size_t t = 0; t < ids.size(); ++t) {
        const bool known = ids[t] >= 0 && ids[t] < kRows;
        for (int64_t i = 0; i < k; ++i) {
          const float want = known ? w.values[static_cast<size_t>(ids[t] * k + i)] : 0.0f;
          ASSERT_EQ(y[t * static_cast<size_t>(k) + static_cast<size_t>(i)], want) << t << "," << i;
        }
      }
    }
  }
}

TEST_F(CudaRowsTest, SwiGlu) {
  for (const int64_t n : {1, 31, 64, 700}) {
    constexpr int64_t kRows = 3;
    const int64_t stride = cuda::ActivationStride(n);
    std::vector<float> gate = random_.Normals(kRows * n, 5.0f);
    gate[0] = -200.0f;  // exp overflows
    const std::vector<float> up = random_.Normals(kRows * n);
    const auto gate_gpu = Upload(gate);
    const auto up_gpu = Upload(up);
    const auto out = Output<uint16_t>(kRows * stride);
    Run([&](cuda::StreamHandle stream) {
      return cuda::SwiGlu(
          {.gate = gate_gpu.data(), .up = up_gpu.data(), .rows = kRows, .n = n, .out = out.data()},
          stream);
    });
    const std::vector<uint16_t> y = out.Read();
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t i = 0; i < stride; ++i) {
        const uint16_t bits = y[static_cast<size_t>(r * stride + i)];
        if (i >= n) {
          ASSERT_EQ(bits, 0);
          continue;
        }
        const auto at = static_cast<size_t>(r * n + i);
        const double g = gate[at];
        ExpectBf16Near(bits, g / (1.0 + std::exp(-g)) * up[at], 1e-30, std::to_string(i));
      }
    }
  }
}

// gpt-oss's: both are clamped, gate from above alone, and a NaN stays one.
TEST_F(CudaRowsTest, ClampedSwiGlu) {
  constexpr int64_t kN = 700;
  constexpr double kAlpha = 1.702;
  constexpr double kLimit = 3.5;
  std::vector<float> gate = random_.Normals(kN, 5.0f);
  std::vector<float> up = random_.Normals(kN, 5.0f);
  gate[0] = -200.0f;  // exp overflows
  gate[1] = std::numeric_limits<float>::quiet_NaN();
  up[2] = std::numeric_limits<float>::quiet_NaN();
  const auto gate_gpu = Upload(gate);
  const auto up_gpu = Upload(up);
  const auto out = Output<uint16_t>(cuda::ActivationStride(kN));
  Run([&](cuda::StreamHandle stream) {
    return cuda::SwiGlu({.gate = gate_gpu.data(),
                         .up = up_gpu.data(),
                         .rows = 1,
                         .n = kN,
                         .clamped = true,
                         .alpha = static_cast<float>(kAlpha),
                         .limit = static_cast<float>(kLimit),
                         .out = out.data()},
                        stream);
  });
  const std::vector<uint16_t> y = out.Read();
  for (size_t i = 0; i < kN; ++i) {
    if (i == 1 || i == 2) {
      ASSERT_TRUE(std::isnan(Bf16ToF32(y[i]))) << i;
      continue;
    }
    const double g = std::min<double>(gate[i], kLimit);
    const double u = std::clamp<double>(up[i], -kLimit, kLimit);
    ExpectBf16Near(y[i], (u + 1.0) * g / (1.0 + std::exp(-kAlpha * g)), 1e-5, std::to_string(i));
  }
}

// With and without a rest behind whole vectors; what is beside stays.
TEST_F(CudaRowsTest, FetchCopiesFromTheHost) {
  Device& device = machine_->device();
  PinnedHostPool pool(uint64_t{1} << 16, device.numa_node(), device.host_pinner());
  const HostBuffer there = pool.Allocate(uint64_t{1} << 15).value();
  if (!device.KernelsReach(there.span())) GTEST_SKIP() << "SKIPPED: no memory is shared";
  for (size_t i = 0; i < there.bytes(); ++i) {
    there.data()[i] = static_cast<std::byte>(random_.Uniform(0, 255));
  }
  for (const auto& [to, from, bytes] :
       {std::array<size_t, 3>{0, 0, 16384}, {16, 32, 4100}, {0, 16, 4}, {0, 0, 0}}) {
    const std::vector<std::byte> before(20000, std::byte{7});
    const auto memory = Upload(before);
    Run([&, to = to, from = from, bytes = bytes](cuda::StreamHandle stream) {
      return cuda::Fetch(memory.data() + to, there.data() + from, bytes, stream);
    });
    std::vector<std::byte> expected = before;
    std::copy_n(there.data() + from, bytes, expected.begin() + static_cast<std::ptrdiff_t>(to));
    EXPECT_EQ(memory.Read(), expected) << to << " " << from << " " << bytes;
  }
  EXPECT_FALSE(cuda::Fetch(nullptr, nullptr, uint64_t{1} << 40, nullptr).ok());
  EXPECT_FALSE(cuda::Fetch(nullptr, nullptr, 2, nullptr).ok());
  EXPECT_FALSE(cuda::Fetch(nullptr, there.data() + 4, 4, nullptr).ok());
}

TEST_F(CudaRowsTest, ArgMaxTakesTheFirstOfTheLargest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const auto largest = [&](std::vector<float> x, bool finite_only = false) {
    const auto x_gpu = Upload(x);
    const auto out = Output<int32_t>(1);
    Run([&](cuda::StreamHandle stream) {
      return cuda::ArgMax({.x = x_gpu.data(),
                           .rows = 1,
                           .n = static_cast<int64_t>(x.size()),
                           .finite_only = finite_only,
                           .out = out.data()},
                          stream);
    });
    return out.Read()[0];
  };
  EXPECT_EQ(largest({-3.0f}), 0);
  EXPECT_EQ(largest({kNan, kNan}), 0);
  EXPECT_EQ(largest({kNan, -kInfinity, -kInfinity}), 1);
  EXPECT_EQ(largest(std::vector<float>(1000, 7.0f)), 0);
  for (const int64_t n : {2, 31, 33, 255, 257, 1025, 20000}) {
    std::vector<float> x = random_.Normals(n);
    const int64_t first = random_.Uniform(0, n - 1);
    const int64_t second = random_.Uniform(0, n - 1);
    x[static_cast<size_t>(first)] = x[static_cast<size_t>(second)] = 100.0f;
    EXPECT_EQ(largest(x), std::min(first, second));
    EXPECT_EQ(largest(x, true), std::min(first, second));
    for (const float bad : {kNan, kInfinity, -kInfinity}) {
      x[static_cast<size_t>(random_.Uniform(0, n - 1))] = bad;
      EXPECT_EQ(largest(x, true), -1);
    }
  }
}

TEST_F(CudaRowsTest, ArgMaxOfEveryRow) {
  constexpr int64_t kRows = 9;
  constexpr int64_t kN = 1003;
  const std::vector<float> x = random_.Normals(kRows * kN);
  const auto x_gpu = Upload(x);
  const auto out = Output<int32_t>(kRows);
  Run([&](cuda::StreamHandle stream) {
    return cuda::ArgMax({.x = x_gpu.data(), .rows = kRows, .n = kN, .out = out.data()}, stream);
  });
  const std::vector<int32_t> best = out.Read();
  for (int64_t r = 0; r < kRows; ++r) {
    const auto row = x.begin() + r * kN;
    EXPECT_EQ(best[static_cast<size_t>(r)], std::max_element(row, row + kN) - row);
  }
}

// Pieces of which some are empty, f32 into wider rows and bf16 with its padding.
TEST_F(CudaRowsTest, JoinColumns) {
  constexpr int64_t kRows = 3;
  for (const std::vector<int32_t>& bounds :
       {std::vector<int32_t>{0, 5}, {0, 0, 32, 70}, {0, 40, 40, 300, 301}}) {
    const int64_t width = bounds.back();
    const std::vector<float> whole = random_.Normals(kRows * width);
    std::vector<float> pieces;
    std::vector<uint16_t> pieces_bf16;
    for (size_t i = 0; i + 1 < bounds.size(); ++i) {
      const int64_t stride = cuda::ActivationStride(bounds[i + 1] - bounds[i]);
      for (int64_t r = 0; r < kRows; ++r) {
        for (int64_t c = 0; c < stride; ++c) {
          const bool in_row = bounds[i] + c < bounds[i + 1];
          const float value =
              in_row ? whole[static_cast<size_t>(r * width + bounds[i] + c)] : -7.0f;
          if (in_row) pieces.push_back(value);
          pieces_bf16.push_back(F32ToBf16(value));
        }
      }
    }
    const auto args = [&](const void* from, void* to, int64_t out_stride) {
      cuda::JoinColumnsArgs join;
      join.pieces = from;
      join.num_pieces = static_cast<int32_t>(bounds.size()) - 1;
      std::copy(bounds.begin(), bounds.end(), join.bounds);
      join.rows = kRows;
      join.out_stride = out_stride;
      join.out = to;
      return join;
    };
    const int64_t out_stride = width + 3;
    const std::vector<float> before = random_.Normals(kRows * out_stride);
    const auto from = Upload(pieces);
    const auto out = Upload(before);
    const auto added = Upload(before);
    const auto from_bf16 = Upload(pieces_bf16);
    const int64_t padded = cuda::ActivationStride(width);
    const auto out_bf16 = Output<uint16_t>(kRows * padded);
    Run([&](cuda::StreamHandle stream) {
      return cuda::JoinColumns(args(from.data(), out.data(), out_stride), stream);
    });
    Run([&](cuda::StreamHandle stream) {
      cuda::JoinColumnsArgs join = args(from.data(), added.data(), out_stride);
      join.accumulate = true;
      return cuda::JoinColumns(join, stream);
    });
    Run([&](cuda::StreamHandle stream) {
      cuda::JoinColumnsArgs join = args(from_bf16.data(), out_bf16.data(), padded);
      join.bf16 = true;
      return cuda::JoinColumns(join, stream);
    });
    const std::vector<float> y = out.Read();
    const std::vector<float> y_added = added.Read();
    const std::vector<uint16_t> y_bf16 = out_bf16.Read();
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < out_stride; ++c) {
        const auto at = static_cast<size_t>(r * out_stride + c);
        const float value = c < width ? whole[static_cast<size_t>(r * width + c)] : before[at];
        ASSERT_EQ(y[at], value) << r << ", " << c;
        ASSERT_EQ(y_added[at], c < width ? before[at] + value : value) << r << ", " << c;
      }
      for (int64_t c = 0; c < padded; ++c) {
        ASSERT_EQ(y_bf16[static_cast<size_t>(r * padded + c)],
                  c < width ? F32ToBf16(whole[static_cast<size_t>(r * width + c)]) : 0)
            << r << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
