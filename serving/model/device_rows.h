// Activation rows on their way to a device that computes: f32 on the host, bf16 there. What the
// operators of a device (device_operator.h, device_dense.h) share.
//
// Functions of their arguments.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "core/base/thread_pool.h"
#include "core/device/device_buffer.h"
#include "core/device/pinned_host_pool.h"
#include "core/device/stream.h"

namespace moesaic {

// f32 [rows, n], stride floats apart.
struct HostRows {
  const float* x = nullptr;
  int64_t stride = 0;
  int64_t rows = 0;
};

// Bytes of [rows, cuda::ActivationStride(n)] bf16.
uint64_t SentRowBytes(int64_t rows, int64_t n);

// Rounds rows of n values to bf16 rows of ActivationStride(n), their padding zeroed.
void RoundRows(ThreadPool& pool, const HostRows& rows, int64_t n, uint16_t* out);

// Rounds the rows of n values to bf16 into `staging` and queues their copy to the beginning of
// `device`; both have SentRowBytes. `staging` must stay until the copy has run.
void SendRows(ThreadPool& pool, Stream& stream, const HostRows& rows, int64_t n,
              const HostBuffer& staging, const DeviceBuffer& device);

// What buffers of these sizes take of a device, and of a pool of pinned memory.
uint64_t SumOnDevice(std::initializer_list<uint64_t> sizes);
uint64_t SumPinned(std::initializer_list<uint64_t> sizes);

// From a pool that was made for it (CHECK).
HostBuffer TakePinned(PinnedHostPool& pool, uint64_t bytes);

}  // namespace moesaic
