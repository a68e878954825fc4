// Takes the place of kernels/cuda/internal/device.cuh where kernels are compiled for the host: the
// same functions, and the few words of CUDA C++ that the kernels use. Mma follows the fragments
// that the PTX ISA gives for mma.m16n8k16.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "core/base/check.h"
#include "core/base/tensor.h"
#include "core/device/launch_result.h"
#include "tests/gpu/host/warp_fibers.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::moesaic::host_gpu::g_thread)
#define blockIdx (::moesaic::host_gpu::g_block)

struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct dim3 {
  explicit dim3(unsigned x_count, unsigned y_count = 1, unsigned z_count = 1)
      : x(x_count), y(y_count), z(z_count) {}
  unsigned x, y, z;
};

namespace moesaic::cuda {
namespace {

using std::max;
using std::min;

constexpr int kWarp = 32;
constexpr float kMinusInfinity = -__builtin_huge_valf();

inline void __syncthreads() { host_gpu::WaitForBlock(); }

inline float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
inline float WidenBf16(uint32_t bits) { return Bf16ToF32(static_cast<uint16_t>(bits)); }
inline float WidenHalf(uint32_t bits) { return F16ToF32(static_cast<uint16_t>(bits)); }
inline uint16_t RoundBf16(float value) { return F32ToBf16(value); }
inline uint32_t PackBf16(float low, float high) {
  return static_cast<uint32_t>(RoundBf16(low)) | static_cast<uint32_t>(RoundBf16(high)) << 16;
}

// In f64 neither the product nor the sum is rounded, as far as the kernels go.
inline uint32_t FmaBf16(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [](uint32_t x, uint32_t y, uint32_t z) {
    const double sum =
        static_cast<double>(WidenBf16(x)) * static_cast<double>(WidenBf16(y)) + WidenBf16(z);
    return static_cast<uint32_t>(RoundBf16(static_cast<float>(sum)));
  };
  return one(a, b, c) | one(a >> 16, b >> 16, c >> 16) << 16;
}
inline uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = a | uint64_t{b} << 32;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7u)) & 0xffu) << (8 * i);
  }
  return result;
}

template <typename T>
T ShuffleXor(T value, int mask) {
  const host_gpu::Registers* warp = host_gpu::Exchange({__builtin_bit_cast(uint32_t, value)});
  return __builtin_bit_cast(T, warp[host_gpu::Lane() ^ mask][0]);
}
// What is combined over a warp is combined from one exchange, in the order of the shuffles that a
// GPU makes of it.
template <typename T>
std::array<T, kWarp> ValuesOfWarp(T value) {
  const host_gpu::Registers* warp = host_gpu::Exchange({__builtin_bit_cast(uint32_t, value)});
  std::array<T, kWarp> values;
  for (size_t i = 0; i < kWarp; ++i) values[i] = __builtin_bit_cast(T, warp[i][0]);
  return values;
}
inline float WarpSum(float value) {
  std::array<float, kWarp> values = ValuesOfWarp(value);
  for (size_t mask = kWarp / 2; mask > 0; mask /= 2) {
    for (size_t i = 0; i < mask; ++i) values[i] += values[i + mask];
  }
  return values[0];
}
inline float WarpMax(float value) {
  for (const float other : ValuesOfWarp(value)) value = fmaxf(value, other);
  return value;
}
inline int WarpMax(int value) {
  for (const int other : ValuesOfWarp(value)) value = max(value, other);
  return value;
}
inline int WarpSumOfLower(int value, int& all) {
  const std::array<int, kWarp> values = ValuesOfWarp(value);
  const int lower = std::accumulate(values.begin(), values.begin() + host_gpu::Lane(), 0);
  all = std::accumulate(values.begin(), values.end(), 0);
  return lower;
}
inline void WarpSumOfQuarters(float (&sum)[4]) {
  host_gpu::Registers mine = {};
  for (size_t i = 0; i < 4; ++i) mine[i] = __builtin_bit_cast(uint32_t, sum[i]);
  const host_gpu::Registers* warp = host_gpu::Exchange(mine);
  const auto quarter = static_cast<size_t>(host_gpu::Lane() % 4);
  for (size_t i = 0; i < 4; ++i) {
    const auto of_lane = [&](size_t group) {
      return __builtin_bit_cast(float, warp[4 * group + quarter][i]);
    };
    const float low = (of_lane(0) + of_lane(1)) + (of_lane(2) + of_lane(3));
    const float high = (of_lane(4) + of_lane(5)) + (of_lane(6) + of_lane(7));
    sum[i] = low + high;
  }
}

inline uint4 LoadVector(const void* address) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(address) % 16, 0u);
  return *static_cast<const uint4*>(address);
}

inline uint4 LoadConstant(const void* address) { return LoadVector(address); }
inline uint2 LoadPair(const void* address) {
  CHECK_EQ(reinterpret_cast<uintptr_t>(address) % 8, 0u);
  return *static_cast<const uint2*>(address);
}

inline void Converge() { host_gpu::WaitForWarp(); }

inline const std::byte* LoadShared(const std::byte* const* at) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}
inline void StoreShared(uint32_t* at, uint32_t value) {
  __atomic_store_n(at, value, __ATOMIC_RELEASE);
}
inline void FenceShared() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

inline float Bf16Half(uint32_t pair, int odd) { return WidenBf16(odd != 0 ? pair >> 16 : pair); }

inline void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const host_gpu::Registers* warp = host_gpu::Exchange({a[0], a[1], a[2], a[3], b0, b1});
  const int g = host_gpu::Lane() / 4;
  const int t = host_gpu::Lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = g + i / 2 * 8;
    const int column = 2 * t + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int holder = k % 8 / 2;  // of four lanes
      const auto a_register = static_cast<size_t>(row / 8 + k / 8 * 2);
      const auto b_register = static_cast<size_t>(4 + k / 8);
      const uint32_t a_pair = warp[row % 8 * 4 + holder][a_register];
      const uint32_t b_pair = warp[column * 4 + holder][b_register];
      // Products of two bf16 numbers are exact.
      c[i] += Bf16Half(a_pair, k % 2) * Bf16Half(b_pair, k % 2);
    }
  }
}

// Runs the kernel before it returns.
template <typename... Parameters, typename... Arguments>
LaunchResult Launch(const char*, void (*kernel)(Parameters...), dim3 grid, int threads,
                    cudaStream_t, const Arguments&... arguments) {
  host_gpu::RunGrid({grid.x, grid.y, grid.z}, threads, [&] { kernel(arguments...); });
  return {};
}

// Nothing has to be loaded.
template <typename... Kernels>
LaunchResult Load(const char*, Kernels...) {
  return {};
}

inline LaunchResult Refuse(const char* name, const char* why) { return {1, name, why}; }

inline unsigned CeilDiv(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

}  // namespace
}  // namespace moesaic::cuda
