#include "kernels/cuda/unpack.h"

#include "kernels/cuda/internal/device.cuh"
#include "kernels/cuda/internal/weights.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTilePairs = 32;  // pairs of inputs: 128 bytes of a row
constexpr int kOutputs = static_cast<int>(kPanelOutputs);

// Inputs 2 pair and 2 pair + 1 of an output; zero behind k.
template <Weights kType>
__device__ __forceinline__ uint32_t PairAt(const std::byte* panel, int output, int64_t pair,
                                           int64_t k) {
  const int64_t input = pair * 2;
  if (input >= k) return 0;
  if constexpr (kType == Weights::kBf16) {
    const uint32_t both =
        *reinterpret_cast<const uint32_t*>(panel + pair * kLineBytes + output * 4);
    return input + 1 < k ? both : both & 0xffffu;
  } else {
    const float second = input + 1 < k ? WeightAt<kType>(panel, output, input + 1) : 0.0f;
    return PackBf16(WeightAt<kType>(panel, output, input), second);
  }
}

// A block turns a tile of one panel: lines are read as they lie, rows are written 128 bytes at a
// time.
template <Weights kType>
__global__ void __launch_bounds__(kThreads) UnpackKernel(UnpackArgs args) {
  __shared__ uint32_t tile[kOutputs][kTilePairs + 1];
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * kOutputs;
  const int64_t first_pair = static_cast<int64_t>(blockIdx.y) * kTilePairs;
  const std::byte* panel =
      args.matrix + (args.first + first_row) / kPanelOutputs * PanelBytes(kType, args.k);
  for (int i = static_cast<int>(threadIdx.x); i < kOutputs * kTilePairs; i += kThreads) {
    const int output = i % kOutputs;
    const int pair = i / kOutputs;
    tile[output][pair] = PairAt<kType>(panel, output, first_pair + pair, args.k);
  }
  __syncthreads();
  const int64_t pairs = ActivationStride(args.k) / 2;
  auto* const rows = reinterpret_cast<uint32_t*>(args.rows);
  for (int i = static_cast<int>(threadIdx.x); i < kOutputs * kTilePairs; i += kThreads) {
    const int pair = i % kTilePairs;
    const int output = i / kTilePairs;
    if (first_row + output >= args.outputs || first_pair + pair >= pairs) continue;
    rows[(first_row + output) * pairs + first_pair + pair] = tile[output][pair];
  }
}

template <Weights kType>
LaunchResult LaunchUnpack(const UnpackArgs& args, StreamHandle stream) {
  const dim3 grid(CeilDiv(args.outputs, kPanelOutputs),
                  CeilDiv(ActivationStride(args.k), 2 * kTilePairs));
  return Launch("unpack_rows", UnpackKernel<kType>, grid, kThreads, stream, args);
}

}  // namespace

LaunchResult LoadUnpackKernels() {
  return Load("unpack", UnpackKernel<Weights::kBf16>, UnpackKernel<Weights::kInt8>,
              UnpackKernel<Weights::kInt4>);
}

LaunchResult UnpackRows(const UnpackArgs& args, StreamHandle stream) {
  if (args.first % kPanelOutputs != 0 || args.first < 0 || args.outputs < 0) {
    return Refuse("unpack_rows", "outputs that do not begin a panel");
  }
  switch (args.type) {
    case Weights::kBf16:
      return LaunchUnpack<Weights::kBf16>(args, stream);
    case Weights::kInt8:
      return LaunchUnpack<Weights::kInt8>(args, stream);
    case Weights::kInt4:
      return LaunchUnpack<Weights::kInt4>(args, stream);
    default:
      break;
  }
  return Refuse("unpack_rows", "a type of weights without such kernels");
}

}  // namespace moesaic::cuda
