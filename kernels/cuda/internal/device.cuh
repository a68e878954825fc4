// What the CUDA kernels share: conversions, exchanges within a warp and a block, the tensor core
// product, and how a kernel is launched. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "core/device/launch_result.h"

namespace moesaic::cuda {
namespace {

constexpr int kWarp = 32;
constexpr float kMinusInfinity = -__builtin_huge_valf();

__device__ __forceinline__ float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ float WidenBf16(uint32_t bits) {
  return FloatOf((bits & 0xffffu) << 16);
}
__device__ __forceinline__ float WidenHalf(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits & 0xffffu)));
}
__device__ __forceinline__ uint16_t RoundBf16(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
// Two numbers as one register of an operand: `low` has the lower index.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  return static_cast<uint32_t>(RoundBf16(low)) | static_cast<uint32_t>(RoundBf16(high)) << 16;
}

// a b + c of two bf16 numbers, each rounded once. With -0 and with 1 it is the product and the sum.
__device__ __forceinline__ uint32_t FmaBf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
// The bytes of a (0 to 3) and b (4 to 7) that the nibbles of `selector` name.
__device__ __forceinline__ uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

__device__ __forceinline__ float ShuffleXor(float value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
__device__ __forceinline__ int ShuffleXor(int value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
__device__ __forceinline__ float WarpSum(float value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value += ShuffleXor(value, mask);
  return value;
}
__device__ __forceinline__ float WarpMax(float value) {
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = fmaxf(value, ShuffleXor(value, mask));
  return value;
}
__device__ __forceinline__ int WarpMax(int value) {
  for (int mask = 1; mask < kWarp; mask *= 2) value = max(value, ShuffleXor(value, mask));
  return value;
}
// The sum of `value` over the lanes below this one; `all` is the sum over the warp.
__device__ __forceinline__ int WarpSumOfLower(int value, int& all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  int lower = 0;
  all = value;
  for (int mask = 1; mask < kWarp; mask *= 2) {
    const int others = ShuffleXor(all, mask);
    if ((lane & mask) != 0) lower += others;
    all += others;
  }
  return lower;
}
// Each of the four over the lanes with the same remainder by 4.
__device__ __forceinline__ void WarpSumOfQuarters(float (&sum)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    for (int mask = 4; mask < kWarp; mask *= 2) sum[i] += ShuffleXor(sum[i], mask);
  }
}

__device__ __forceinline__ uint4 LoadVector(const void* address) {
  return *static_cast<const uint4*>(address);
}

// What nobody writes while the kernel runs.
__device__ __forceinline__ uint4 LoadConstant(const void* address) {
  return __ldg(static_cast<const uint4*>(address));
}
__device__ __forceinline__ uint2 LoadPair(const void* address) {
  return __ldg(static_cast<const uint2*>(address));
}

// The lanes of a warp together again: an instruction of the whole warp, such as Mma, comes next.
__device__ __forceinline__ void Converge() { __syncwarp(); }

// Memory of the host that others write meanwhile: neither kept in a register nor in a cache.
__device__ __forceinline__ const std::byte* LoadShared(const std::byte* const* at) {
  return *const_cast<const std::byte* const volatile*>(at);
}
__device__ __forceinline__ void StoreShared(uint32_t* at, uint32_t value) {
  *const_cast<volatile uint32_t*>(at) = value;
}
// Between what this thread has stored and what it loads next, for all of the system (sequentially
// consistent: PTX ISA, fence.sc.sys).
__device__ __forceinline__ void FenceShared() { __threadfence_system(); }

// c += a b of 16 rows, 8 columns and 16 summands. With g = lane / 4 and t = lane % 4:
//   a[0]: row g, summands 2t, 2t+1     a[1]: row g+8, the same     a[2], a[3]: summands 2t+8, 2t+9
//   b0: summands 2t, 2t+1 of column g  b1: summands 2t+8, 2t+9
//   c[0], c[1]: row g, columns 2t, 2t+1                            c[2], c[3]: row g+8
// (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type".)
__device__ __forceinline__ void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <typename... Parameters, typename... Arguments>
LaunchResult Launch(const char* name, void (*kernel)(Parameters...), dim3 grid, int threads,
                    cudaStream_t stream, Arguments... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return {};  // nothing to do
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  const cudaError_t code =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (code == cudaSuccess) return {};
  return {static_cast<int>(code), name, cudaGetErrorString(code)};
}

// Loads kernels onto the current GPU.
template <typename... Kernels>
LaunchResult Load(const char* name, Kernels... kernels) {
  cudaFuncAttributes attributes = {};
  cudaError_t code = cudaSuccess;
  // To ask for what a kernel takes loads it (CUDA programming guide, "Lazy Loading").
  ((code = code == cudaSuccess
               ? cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernels))
               : code),
   ...);
  if (code == cudaSuccess) return {};
  return {static_cast<int>(code), name, cudaGetErrorString(code)};
}

// What a launcher answers to arguments that its kernels do not take.
inline LaunchResult Refuse(const char* name, const char* why) {
  return {static_cast<int>(cudaErrorInvalidValue), name, why};
}

inline unsigned CeilDiv(int64_t a, int64_t b) { return static_cast<unsigned>((a + b - 1) / b); }

}  // namespace
}  // namespace moesaic::cuda
