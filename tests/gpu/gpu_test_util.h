// Arrays on the device for the kernel tests: filled from the host, read back, with guards behind
// them that a kernel must not touch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/function_ref.h"
#include "core/base/tensor.h"
#include "kernels/cuda/packed_weights.h"
#include "tests/gpu/kernel_machine.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic::testing_util {

template <typename T>
class GpuArray {
 public:
  GpuArray(Device& device, Stream& stream, const std::vector<T>& values)
      : stream_(stream), elements_(values.size()) {
    std::optional<DeviceBuffer> buffer = device.Allocate(DataBytes() + kGuardBytes);
    CHECK(buffer.has_value());
    buffer_ = std::move(*buffer);
    std::vector<std::byte> bytes(buffer_.bytes(), kGuard);
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), DataBytes());
    stream_.CopyToDevice(buffer_.span(), bytes);
    ThrowIfFailed(stream_.Synchronize());
  }

  T* data() const { return reinterpret_cast<T*>(buffer_.data()); }

  // Waits for what is queued.
  std::vector<T> Read() const {
    std::vector<std::byte> bytes(buffer_.bytes());
    stream_.CopyToHost(bytes, buffer_.span());
    ThrowIfFailed(stream_.Synchronize());
    const auto guard = bytes.begin() + static_cast<std::ptrdiff_t>(DataBytes());
    EXPECT_TRUE(std::all_of(guard, bytes.end(), [](std::byte b) { return b == kGuard; }))
        << "a kernel wrote behind its output";
    std::vector<T> values(elements_);
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), DataBytes());
    return values;
  }

 private:
  static constexpr uint64_t kGuardBytes = 256;
  static constexpr std::byte kGuard{0xA5};
  uint64_t DataBytes() const { return elements_ * sizeof(T); }

  Stream& stream_;
  size_t elements_;
  DeviceBuffer buffer_;
};

class CudaKernelTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why_not;
    machine_ = MakeKernelMachine(uint64_t{256} << 20, why_not);
    if (machine_ == nullptr) GTEST_SKIP() << "SKIPPED: " << why_not;
    stream_ = machine_->device().CreateStream();
  }
  void TearDown() override { stream_.reset(); }

  template <typename T>
  GpuArray<T> Upload(const std::vector<T>& values) {
    return GpuArray<T>(machine_->device(), *stream_, values);
  }
  // Of values that nobody should see again.
  template <typename T>
  GpuArray<T> Output(int64_t elements) {
    std::vector<T> values(static_cast<size_t>(elements));
    if (!values.empty()) std::memset(values.data(), 0xFF, values.size() * sizeof(T));
    return Upload(values);
  }
  template <typename T>
  GpuArray<T> Zeros(int64_t elements) {
    return Upload(std::vector<T>(static_cast<size_t>(elements)));
  }
  GpuArray<std::byte> Upload(const PackedMatrix& matrix) {
    return Upload(std::vector<std::byte>(
        matrix.data, matrix.data + PackedMatrix::Bytes(matrix.type, matrix.n, matrix.k)));
  }

  // Queues one kernel and waits for it.
  void Run(FunctionRef<LaunchResult(cuda::StreamHandle)> launch) {
    stream_->Launch(launch);
    const std::optional<Error> error = stream_->Synchronize();
    ASSERT_FALSE(error.has_value()) << error->what();
  }

  const CpuKernels& reference_ = KernelsFor(Isa::kScalar);
  Random random_;
  std::unique_ptr<KernelMachine> machine_;
  std::unique_ptr<Stream> stream_;
};

inline cuda::Weights GpuType(WeightType type) {
  switch (type) {
    case WeightType::kInt8:
      return cuda::Weights::kInt8;
    case WeightType::kInt4:
      return cuda::Weights::kInt4;
    case WeightType::kMxfp4F32:
      return cuda::Weights::kMxfp4;
    case WeightType::kFp8:
      return cuda::Weights::kFp8;
    case WeightType::kW4A16:
      return cuda::Weights::kW4A16;
    default:
      CHECK(type == WeightType::kBf16);
      return cuda::Weights::kBf16;
  }
}

constexpr WeightType kGpuTypes[] = {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4};
// With those that experts alone have.
constexpr WeightType kGpuExpertTypes[] = {WeightType::kBf16, WeightType::kInt8,
                                          WeightType::kInt4, WeightType::kMxfp4F32,
                                          WeightType::kFp8,  WeightType::kW4A16};

// Rounds `values` [rows, k] to bf16 in place and returns them as activation rows.
inline std::vector<uint16_t> ActivationRows(std::vector<float>& values, int64_t rows, int64_t k) {
  const int64_t stride = cuda::ActivationStride(k);
  std::vector<uint16_t> result(static_cast<size_t>(rows * stride));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; ++i) {
      float& value = values[static_cast<size_t>(r * k + i)];
      value = RoundToBf16(value);
      result[static_cast<size_t>(r * stride + i)] = F32ToBf16(value);
    }
  }
  return result;
}

// A bf16 that was rounded from `exact`, itself right to `slack`.
inline void ExpectBf16Near(uint16_t actual, double exact, double slack, const std::string& where) {
  EXPECT_NEAR(Bf16ToF32(actual), exact, std::abs(exact) * 0x1p-8 + slack) << where;
}

}  // namespace moesaic::testing_util
