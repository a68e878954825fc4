#include "serving/model/device_rows.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/check.h"
#include "core/base/tensor.h"
#include "core/base/units.h"
#include "core/device/device.h"
#include "kernels/cuda/kernels.h"

namespace moesaic {
namespace {

constexpr int64_t kRowsOfTask = 8;

uint64_t SumOfRounded(std::initializer_list<uint64_t> sizes, uint64_t multiple) {
  uint64_t sum = 0;
  for (const uint64_t bytes : sizes) sum += RoundUp(bytes, multiple);
  return sum;
}

}  // namespace

uint64_t SentRowBytes(int64_t rows, int64_t n) {
  return static_cast<uint64_t>(rows * cuda::ActivationStride(n)) * sizeof(uint16_t);
}

void RoundRows(ThreadPool& pool, const HostRows& rows, int64_t n, uint16_t* out) {
  const int64_t stride = cuda::ActivationStride(n);
  pool.ParallelFor((rows.rows + kRowsOfTask - 1) / kRowsOfTask, [&](int64_t task, int) {
    const int64_t end = std::min(rows.rows, (task + 1) * kRowsOfTask);
    for (int64_t row = task * kRowsOfTask; row < end; ++row) {
      const float* const from = rows.x + row * rows.stride;
      uint16_t* const to = out + row * stride;
      for (int64_t i = 0; i < n; ++i) to[i] = F32ToBf16(from[i]);
      std::fill(to + n, to + stride, uint16_t{0});
    }
  });
}

void SendRows(ThreadPool& pool, Stream& stream, const HostRows& rows, int64_t n,
              const HostBuffer& staging, const DeviceBuffer& device) {
  RoundRows(pool, rows, n, reinterpret_cast<uint16_t*>(staging.data()));
  const uint64_t bytes = SentRowBytes(rows.rows, n);
  stream.CopyToDevice(device.Subspan(0, bytes), staging.span().first(bytes));
}

uint64_t SumOnDevice(std::initializer_list<uint64_t> sizes) {
  return SumOfRounded(sizes, Device::kAlignment);
}

uint64_t SumPinned(std::initializer_list<uint64_t> sizes) {
  return SumOfRounded(sizes, PinnedHostPool::kAlignment);
}

HostBuffer TakePinned(PinnedHostPool& pool, uint64_t bytes) {
  std::optional<HostBuffer> buffer = pool.Allocate(bytes);
  CHECK(buffer.has_value());
  return std::move(*buffer);
}

}  // namespace moesaic
