// Products by cuBLAS beside our own, on a GPU with libcublas, or in the interpreter with the tests'
// own (interpreter/cublas).
#include "kernels/cuda/gemm.h"

#include <cstdlib>

#include "core/base/error.h"
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
using testing_util::kGpuTypes;
using testing_util::Weights;

class CudaGemmTest : public CudaKernelTest {
 protected:
  void SetUp() override {
    CudaKernelTest::SetUp();
    if (machine_ == nullptr) return;
    const std::string why = cuda::WhyNoCublas();
    if (!why.empty()) GTEST_SKIP() << "SKIPPED: " << why;
    UseWorkspace(cuda::GemmWorkspaceBytes(200, 400));
  }
  void TearDown() override {
    gemm_.reset();
    CudaKernelTest::TearDown();
  }

  void UseWorkspace(uint64_t bytes) {
    gemm_.reset();
    workspace_ = AllocateOrThrow(machine_->device(), bytes, "a test");
    gemm_ = cuda::MakeCublas(*stream_, workspace_.span());
  }

  struct Problem {
    Problem(CudaGemmTest& test, WeightType type, int64_t m, int64_t n, int64_t k)
        : rows(m),
          w(test.reference_, test.random_.Normals(n * k), n, k, type),
          values(test.random_.Normals(m * k)),
          x(test.Upload(ActivationRows(values, m, k))),
          matrix(test.Upload(w.matrix)) {}
    cuda::ProductArgs Args(const GpuArray<float>& y, bool accumulate) const {
      return {.x = x.data(),
              .rows = rows,
              .matrix = matrix.data(),
              .type = GpuType(w.matrix.type),
              .n = w.matrix.n,
              .k = w.matrix.k,
              .y = y.data(),
              .accumulate = accumulate};
    }

    int64_t rows;
    Weights w;
    std::vector<float> values;  // [rows, k], rounded to bf16
    GpuArray<uint16_t> x;
    GpuArray<std::byte> matrix;
  };

  // y, which is unwritten where nothing is added to it.
  GpuArray<float> Target(const Problem& p, const std::vector<float>& before) {
    return before.empty() ? Output<float>(p.rows * p.w.matrix.n) : Upload(before);
  }

  std::vector<float> ByCublas(const Problem& p, const std::vector<float>& before = {}) {
    const auto y = Target(p, before);
    Run([&](cuda::StreamHandle stream) {
      return gemm_->Product(p.Args(y, !before.empty()), stream);
    });
    return y.Read();
  }
  std::vector<float> ByOurs(const Problem& p, const std::vector<float>& before = {}) {
    const auto y = Target(p, before);
    Run([&](cuda::StreamHandle stream) {
      return cuda::Product(p.Args(y, !before.empty()), cuda::ProductPath::kMatrix, stream);
    });
    return y.Read();
  }

  // Both are within the class's tolerance of the true sum, so they are within twice that of each
  // other; integer weights are rounded to bf16 besides.
  static void ExpectNear(const Problem& p, const std::vector<float>& y,
                         const std::vector<float>& ours) {
    const int64_t n = p.w.matrix.n;
    const int64_t k = p.w.matrix.k;
    ASSERT_EQ(y.size(), ours.size());
    for (int64_t r = 0; r < p.rows; ++r) {
      for (int64_t o = 0; o < n; ++o) {
        const Dot dot = DotOf(&p.values[static_cast<size_t>(r * k)],
                              &p.w.values[static_cast<size_t>(o * k)], k);
        double tolerance = 8 * DotTolerance(dot, k + 32);
        if (p.w.matrix.type != WeightType::kBf16) tolerance += dot.magnitude * 0x1p-8;
        const auto at = static_cast<size_t>(r * n + o);
        ASSERT_NEAR(y[at], ours[at], tolerance) << r << "," << o;
      }
    }
  }

  DeviceBuffer workspace_;
  std::unique_ptr<cuda::Gemm> gemm_;
};

// The emulated GPUs have a library: a test that finds none there would test nothing.
TEST_F(CudaGemmTest, TheLibraryIsThereInTheInterpreter) {
  if (std::getenv("MOESAIC_PTX") == nullptr) GTEST_SKIP() << "SKIPPED: not interpreted";
  EXPECT_EQ(cuda::WhyNoCublas(), "");
}

TEST_F(CudaGemmTest, HasOurProductsWithinTheTolerance) {
  for (const int64_t rows : {1, 63, 64, 65, 512}) {
    for (const WeightType type : kGpuTypes) {
      const int64_t n = rows == 512 ? 20 : random_.Uniform(1, 50);
      const int64_t k = rows == 512 ? 40 : random_.Uniform(1, 300);
      SCOPED_TRACE(fmt::format("{} rows={} n={} k={}", WeightTypeName(type), rows, n, k));
      const Problem p(*this, type, rows, n, k);
      ExpectNear(p, ByCublas(p), ByOurs(p));
      const std::vector<float> before = random_.Normals(rows * n);
      ExpectNear(p, ByCublas(p, before), ByOurs(p, before));
    }
  }
}

// A matrix that is larger than the room for rows is done in pieces of whole panels.
TEST_F(CudaGemmTest, LargeMatricesAreDoneInPieces) {
  for (const WeightType type : kGpuTypes) {
    const Problem p(*this, type, 64, 150, 97);
    UseWorkspace(cuda::GemmWorkspaceBytes(150, 97));
    const std::vector<float> whole = ByCublas(p);
    for (const int64_t outputs : {16, 32, 144}) {
      UseWorkspace(cuda::GemmWorkspaceBytes(outputs, 97));
      ExpectNear(p, ByCublas(p), whole);
    }
  }
}

TEST_F(CudaGemmTest, IsRecordedAndReplayed) {
  const Problem p(*this, WeightType::kBf16, 64, 40, 70);
  const std::vector<float> once = ByCublas(p);
  const auto y = Zeros<float>(p.rows * p.w.matrix.n);
  const cuda::ProductArgs args = p.Args(y, true);
  stream_->BeginCapture();
  stream_->Launch([gemm = gemm_.get(), &args](cuda::StreamHandle stream) {
    return gemm->Product(args, stream);
  });
  const std::unique_ptr<Graph> graph = stream_->EndCapture();
  ASSERT_NE(graph, nullptr);
  stream_->Replay(*graph);
  stream_->Replay(*graph);
  std::vector<float> twice = once;
  for (float& value : twice) value *= 2;
  ExpectNear(p, y.Read(), twice);
}

TEST_F(CudaGemmTest, WhatItDoesNotMultiplyIsRefused) {
  const auto y = Output<float>(16);
  const auto refused = [&](const cuda::ProductArgs& args) {
    stream_->Launch([gemm = gemm_.get(), &args](cuda::StreamHandle stream) {
      return gemm->Product(args, stream);
    });
    const std::optional<Error> error = stream_->Synchronize();
    stream_->ClearError();
    return error ? std::string(error->what()) : "";
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos ? std::string() : "not said: " + text;
  };
  EXPECT_EQ(has(refused({.rows = 64, .groups = 2, .n = 16, .k = 16}), "one behind the other"), "");
  EXPECT_EQ(has(refused({.rows = 70'000, .n = 16, .k = 16}), "number of rows"), "");
  EXPECT_EQ(has(refused({.rows = 64, .n = 0, .k = 16}), "empty matrix"), "");
  UseWorkspace(cuda::GemmWorkspaceBytes(16, 16));
  EXPECT_EQ(has(refused({.rows = 64, .n = 16, .k = 4096}), "workspace too small"), "");
  const auto other = machine_->device().CreateStream();
  other->Launch([gemm = gemm_.get()](cuda::StreamHandle stream) {
    return gemm->Product({.rows = 64, .n = 16, .k = 16}, stream);
  });
  const std::optional<Error> error = other->Synchronize();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(has(error->what(), "another stream"), "");
}

}  // namespace
}  // namespace moesaic
