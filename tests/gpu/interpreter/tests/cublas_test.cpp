// Products by cuBLAS (kernels/cuda/cublas_cuda.cpp), with the libcublas.so.13 of
// tests/gpu/interpreter/cublas: whatever call fails, the error names it, and no memory of the GPU
// is taken or touched but what it was given.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/device/cuda_device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/interpreter/control.h"

namespace moesaic {
namespace {

constexpr int64_t kRows = 64;
constexpr int64_t kN = 32;
constexpr int64_t kK = 32;

class CublasTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = cuda::WhyNoCublas();
    if (why.find("built without") != std::string::npos) GTEST_SKIP() << "SKIPPED: " << why;
    ASSERT_EQ(why, "");
    UseGpu();
  }
  void UseGpu() {
    device_ = CreateCudaDevice({.ordinal = 1,
                                .capacity_bytes = uint64_t{64} << 20,
                                .load_kernels = cuda::LoadKernels,
                                .fetch = cuda::FetchFromHost});
    stream_ = device_->CreateStream();
    workspace_ = AllocateOrThrow(*device_, cuda::GemmWorkspaceBytes(kN, kK), "a test");
    x_ = AllocateOrThrow(*device_, kRows * kK * sizeof(uint16_t), "a test");
    matrix_ = AllocateOrThrow(
        *device_, kN / cuda::kPanelOutputs * cuda::PanelBytes(cuda::Weights::kBf16, kK), "a test");
    y_ = AllocateOrThrow(*device_, kRows * kN * sizeof(float), "a test");
    zeros_.assign(y_.bytes(), std::byte{0});
    stream_->CopyToDevice(x_.span(), std::span(zeros_).first(x_.bytes()));
    stream_->CopyToDevice(matrix_.span(), std::span(zeros_).first(matrix_.bytes()));
    ThrowIfFailed(stream_->Synchronize());
  }
  void TearDown() override {
    ptx::FailRuntimeCall(UINT64_MAX, 0);
    stream_.reset();
    for (DeviceBuffer* const buffer : {&workspace_, &x_, &matrix_, &y_}) buffer->Reset();
    device_.reset();
    for (const int gpu : {0, 1}) ptx::RestoreGpu(gpu);
    EXPECT_EQ(ptx::TakeDefects(), std::vector<std::string>());
    cudaSetDevice(0);
    cudaGetLastError();
  }

  std::optional<Error> Multiply(cuda::Gemm& gemm, int64_t rows) {
    const cuda::ProductArgs args = {.x = reinterpret_cast<const uint16_t*>(x_.data()),
                                    .rows = rows,
                                    .matrix = matrix_.data(),
                                    .n = kN,
                                    .k = kK,
                                    .y = reinterpret_cast<float*>(y_.data())};
    stream_->Launch([&gemm, &args](cuda::StreamHandle on) { return gemm.Product(args, on); });
    return stream_->Synchronize();
  }

  std::unique_ptr<Device> device_;
  DeviceBuffer workspace_, x_, matrix_, y_;
  std::vector<std::byte> zeros_;
  std::unique_ptr<Stream> stream_;
};

// Each call of making one and multiplying fails once; those of the library are named, with what it
// answered.
TEST_F(CublasTest, WhateverCallFailsIsNamed) {
  std::vector<std::string> failed;
  for (uint64_t number = 0;; ++number) {
    ptx::FailRuntimeCall(number, static_cast<int>(cudaErrorInvalidValue));
    std::string said;
    try {
      const auto gemm = cuda::MakeCublas(*stream_, workspace_.span());
      if (const std::optional<Error> error = Multiply(*gemm, kRows)) said = error->what();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
      said = error.what();
    }
    const std::string call = ptx::FailedRuntimeCall();
    ptx::FailRuntimeCall(UINT64_MAX, 0);
    stream_->ClearError();
    if (call.empty()) {
      EXPECT_EQ(said, "");
      break;
    }
    if (call.rfind("cublas", 0) != 0) continue;
    failed.push_back(call);
    EXPECT_NE(said.find(call), std::string::npos) << call << ": " << said;
    EXPECT_NE(said.find("CUBLAS_STATUS_"), std::string::npos) << call << ": " << said;
  }
  EXPECT_EQ(failed, (std::vector<std::string>{"cublasCreate", "cublasSetStream",
                                              "cublasSetWorkspace", "cublasGemmEx"}));
}

TEST_F(CublasTest, NoMemoryOfTheGpuIsTaken) {
  const uint64_t used = device_->used_bytes();
  size_t free_before = 0;
  size_t free_after = 0;
  size_t total = 0;
  cudaMemGetInfo(&free_before, &total);
  const auto gemm = cuda::MakeCublas(*stream_, workspace_.span());
  EXPECT_EQ(Multiply(*gemm, kRows), std::nullopt);
  cudaMemGetInfo(&free_after, &total);
  EXPECT_EQ(free_after, free_before);
  EXPECT_EQ(device_->used_bytes(), used);
}

// The bounds are those of each buffer: a row more than there is of y.
TEST_F(CublasTest, ProductsBesideABufferAreFound) {
  const auto gemm = cuda::MakeCublas(*stream_, workspace_.span());
  const std::optional<Error> error = Multiply(*gemm, kRows + 1);
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(std::string(error->what()).find("CUBLAS_STATUS_EXECUTION_FAILED"), std::string::npos)
      << error->what();
  const std::vector<std::string> defects = ptx::TakeDefects();
  ASSERT_EQ(defects.size(), 1u);
  EXPECT_NE(defects[0].find("of cublasGemmEx"), std::string::npos) << defects[0];
  stream_->ClearError();
}

// A GPU that is lost in any of the calls ends as any lost one does.
TEST_F(CublasTest, ALostGpuIsTold) {
  bool by_library = false;
  for (uint64_t number = 0;; ++number) {
    auto gemm = cuda::MakeCublas(*stream_, workspace_.span());
    ptx::FailRuntimeCall(number, static_cast<int>(cudaErrorIllegalAddress));
    const std::optional<Error> error = Multiply(*gemm, kRows);
    const std::string call = ptx::FailedRuntimeCall();
    ptx::FailRuntimeCall(UINT64_MAX, 0);
    if (call == "cublasGemmEx") {
      by_library = true;
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->kind(), ErrorKind::kUnavailable) << error->what();
    }
    gemm.reset();
    stream_.reset();
    for (DeviceBuffer* const buffer : {&workspace_, &x_, &matrix_, &y_}) buffer->Reset();
    device_.reset();
    ptx::RestoreGpu(1);
    if (call.empty()) break;
    UseGpu();
  }
  EXPECT_TRUE(by_library);
}

}  // namespace
}  // namespace moesaic
