#include "kernels/cuda/rows.h"

#include "kernels/cuda/internal/device.cuh"
#include "kernels/cuda/internal/weights.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;

// The same sum in every thread. `partials` is the block's.
template <int kBlockWarps>
__device__ float BlockSum(float value, float (&partials)[kBlockWarps]) {
  value = WarpSum(value);
  if (threadIdx.x % kWarp == 0) partials[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kBlockWarps; ++i) sum += partials[i];
  return sum;
}

// Numbers of a thread that are on their way at a time.
constexpr int kNormBatch = 8;
// Of rows of so many numbers, such as heads; sums are the same with more threads, which have none.
constexpr int kFewNormThreads = 128;

// A block per row.
template <int kBlockThreads>
__global__ void __launch_bounds__(kBlockThreads) RmsNormKernel(RmsNormArgs args) {
  __shared__ float partials[kBlockThreads / kWarp];
  const int64_t row = blockIdx.x;
  const int64_t place = row / args.heads;
  const int64_t token = args.x_tokens != nullptr ? args.x_tokens[place] : place;
  const int64_t offset = token * args.token_stride + row % args.heads * args.n;
  const float* x = args.x + offset;
  constexpr int64_t kBatch = static_cast<int64_t>(kNormBatch) * kBlockThreads;
  // Behind the row there is zero.
  const auto load = [&args](const float* from, int64_t first, float(&values)[kNormBatch]) {
#pragma unroll
    for (int b = 0; b < kNormBatch; ++b) {
      const int64_t i = first + b * kBlockThreads;
      values[b] = i < args.n ? from[i] : 0.0f;
    }
  };
  float values[kNormBatch];
  float weights[kNormBatch];
  float squares = 0;
  for (int64_t first = threadIdx.x; first < args.n; first += kBatch) {
    load(x, first, values);
#pragma unroll
    for (int b = 0; b < kNormBatch; ++b) squares += values[b] * values[b];
  }
  squares = BlockSum(squares, partials);
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(args.n) + args.eps);
  const int64_t padded = ActivationStride(args.n);
  for (int64_t first = threadIdx.x; first < padded; first += kBatch) {
    load(x, first, values);
    load(args.weight, first, weights);
#pragma unroll
    for (int b = 0; b < kNormBatch; ++b) {
      const int64_t i = first + b * kBlockThreads;
      if (i >= padded) break;
      const float value = values[b] * factor * weights[b];
      if (args.out != nullptr && i < args.n) args.out[offset + i] = value;
      if (args.out_bf16 != nullptr) args.out_bf16[row * padded + i] = RoundBf16(value);
    }
  }
}

// A thread per pair, blocks of a token side by side.
__global__ void __launch_bounds__(kThreads) RopeKernel(RopeArgs args) {
  const int64_t token = blockIdx.x;
  const int64_t half = args.rotary_dim / 2;
  const int64_t i = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i >= args.heads * half) return;
  const int64_t position = args.positions[token];
  const int64_t pair = i % half;
  float* x = args.x + token * args.token_stride + i / half * args.head_dim + pair;
  const float c = args.cos[position * half + pair];
  const float s = args.sin[position * half + pair];
  const float low = x[0];
  const float high = x[half];
  x[0] = low * c - high * s;
  x[half] = high * c + low * s;
}

template <Weights kType>
__global__ void __launch_bounds__(kThreads) EmbeddingKernel(EmbeddingArgs args) {
  const int64_t token = blockIdx.x;
  const int64_t row = args.ids[token];
  const bool known = row >= 0 && row < args.n;
  const std::byte* panel =
      args.matrix + (known ? row / kPanelOutputs : 0) * PanelBytes(kType, args.k);
  const int output = known ? static_cast<int>(row % kPanelOutputs) : 0;
  for (int64_t i = threadIdx.x; i < args.k; i += kThreads) {
    args.out[token * args.k + i] = known ? WeightAt<kType>(panel, output, i) : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads) SwiGluKernel(SwiGluArgs args) {
  const int64_t row = blockIdx.x;
  const int64_t padded = ActivationStride(args.n);
  for (int64_t i = threadIdx.x; i < padded; i += kThreads) {
    float value = 0;
    if (i < args.n) {
      float gate = args.gate[row * args.n + i];
      float up = args.up[row * args.n + i];
      if (args.clamped) {
        gate = gate > args.limit ? args.limit : gate;
        up = up > args.limit ? args.limit : (up < -args.limit ? -args.limit : up);
        value = (up + 1.0f) * (gate / (1.0f + expf(-(args.alpha * gate))));
      } else {
        value = gate / (1.0f + expf(-gate)) * up;
      }
    }
    args.out[row * padded + i] = RoundBf16(value);
  }
}

__global__ void __launch_bounds__(kThreads) AddGatedKernel(AddGatedArgs args) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * args.n;
  const float share = 1.0f / (1.0f + expf(-args.gate[blockIdx.x]));
  for (int64_t i = first + threadIdx.x; i < first + args.n; i += kThreads) {
    args.y[i] = fmaf(share, args.x[i], args.y[i]);
  }
}

// Whether (a, i) comes before (b, j): larger, or as large and earlier. An index of -1 is nobody's.
__device__ bool Before(float a, int i, float b, int j) {
  if (i < 0) return false;
  return j < 0 || a > b || (a == b && i < j);
}

constexpr int kArgMaxThreads = 1024;
constexpr int kArgMaxWarps = kArgMaxThreads / kWarp;
constexpr int kArgMaxBatch = 16;  // of a thread, on their way at a time

__global__ void __launch_bounds__(kArgMaxThreads) ArgMaxKernel(ArgMaxArgs args) {
  __shared__ float values[kArgMaxWarps];
  __shared__ int indices[kArgMaxWarps];
  __shared__ int finite[kArgMaxWarps];  // 1: all that the warp has seen
  const float* x = args.x + static_cast<int64_t>(blockIdx.x) * args.n;
  float value = 0;
  int index = -1;
  float zero = 0;  // NaN once a value is not finite
  for (int64_t first = threadIdx.x; first < args.n; first += kArgMaxBatch * kArgMaxThreads) {
    float batch[kArgMaxBatch];
#pragma unroll
    for (int b = 0; b < kArgMaxBatch; ++b) {
      const int64_t i = first + b * kArgMaxThreads;
      batch[b] = i < args.n ? x[i] : kMinusInfinity;
    }
#pragma unroll
    for (int b = 0; b < kArgMaxBatch; ++b) {
      const int64_t i = first + b * kArgMaxThreads;
      if (i >= args.n) break;
      zero += batch[b] - batch[b];
      if (batch[b] != batch[b] || !Before(batch[b], static_cast<int>(i), value, index)) continue;
      value = batch[b];
      index = static_cast<int>(i);
    }
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const float other = ShuffleXor(value, mask);
    const int other_index = ShuffleXor(index, mask);
    if (Before(other, other_index, value, index)) {
      value = other;
      index = other_index;
    }
  }
  zero = WarpSum(zero);
  if (threadIdx.x % kWarp == 0) {
    values[threadIdx.x / kWarp] = value;
    indices[threadIdx.x / kWarp] = index;
    finite[threadIdx.x / kWarp] = zero == 0.0f ? 1 : 0;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int all_finite = finite[0];
  for (int i = 1; i < kArgMaxWarps; ++i) {
    all_finite = min(all_finite, finite[i]);
    if (!Before(values[i], indices[i], value, index)) continue;
    value = values[i];
    index = indices[i];
  }
  args.out[blockIdx.x] = args.finite_only && all_finite == 0 ? -1 : (index < 0 ? 0 : index);
}

// A block per row.
template <typename T>
__global__ void __launch_bounds__(kThreads) JoinColumnsKernel(JoinColumnsArgs args) {
  constexpr bool kBf16 = sizeof(T) == sizeof(uint16_t);
  const int64_t row = blockIdx.x;
  const T* piece = static_cast<const T*>(args.pieces);
  T* out = static_cast<T*>(args.out) + row * args.out_stride;
  for (int i = 0; i < args.num_pieces; ++i) {
    const int64_t first = args.bounds[i];
    const int64_t columns = args.bounds[i + 1] - first;
    const int64_t stride = kBf16 ? ActivationStride(columns) : columns;
    for (int64_t column = threadIdx.x; column < columns; column += kThreads) {
      const T value = piece[row * stride + column];
      if constexpr (!kBf16) {
        out[first + column] = args.accumulate ? out[first + column] + value : value;
      } else {
        out[first + column] = value;
      }
    }
    piece += args.rows * stride;
  }
  if constexpr (kBf16) {
    const int64_t width = args.bounds[args.num_pieces];
    for (int64_t i = width + threadIdx.x; i < ActivationStride(width); i += kThreads) out[i] = 0;
  }
}

dim3 Grid(int64_t rows) { return dim3(static_cast<unsigned>(rows)); }

constexpr int kFetchThreads = 512;

__global__ void __launch_bounds__(kFetchThreads)
    FetchKernel(uint32_t* to, const uint32_t* from, int words) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int by_vectors = words / 4 * 4;
  for (int i = thread * 4; i < by_vectors; i += kFetchThreads * 4) {
    *reinterpret_cast<uint4*>(to + i) = LoadVector(from + i);
  }
  for (int i = by_vectors + thread; i < words; i += kFetchThreads) to[i] = from[i];
}

}  // namespace

LaunchResult LoadRowKernels() {
  return Load("rows", RmsNormKernel<kThreads>, RmsNormKernel<kFewNormThreads>, RopeKernel,
              EmbeddingKernel<Weights::kBf16>, EmbeddingKernel<Weights::kInt8>,
              EmbeddingKernel<Weights::kInt4>, SwiGluKernel, AddGatedKernel, ArgMaxKernel,
              JoinColumnsKernel<float>, JoinColumnsKernel<uint16_t>, FetchKernel);
}

LaunchResult Fetch(void* to, const void* from, uint64_t bytes, StreamHandle stream) {
  const uintptr_t ends = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (bytes > kMostFetchedBytes || bytes % 4 != 0 || ends % 16 != 0) {
    return Refuse("fetch", "too much, or not aligned");
  }
  return Launch("fetch", FetchKernel, dim3(bytes > 0 ? 1 : 0), kFetchThreads, stream,
                static_cast<uint32_t*>(to), static_cast<const uint32_t*>(from),
                static_cast<int>(bytes / 4));
}

LaunchResult RmsNorm(const RmsNormArgs& args, StreamHandle stream) {
  if (args.x_tokens != nullptr && args.out != nullptr) {
    return Refuse("rms_norm", "chosen tokens are not normed in place");
  }
  return args.n <= kFewNormThreads
             ? Launch("rms_norm", RmsNormKernel<kFewNormThreads>, Grid(args.rows), kFewNormThreads,
                      stream, args)
             : Launch("rms_norm", RmsNormKernel<kThreads>, Grid(args.rows), kThreads, stream, args);
}

LaunchResult Rope(const RopeArgs& args, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(args.tokens),
                  CeilDiv(args.heads * (args.rotary_dim / 2), kThreads));
  return Launch("rope", RopeKernel, grid, kThreads, stream, args);
}

LaunchResult Embedding(const EmbeddingArgs& args, StreamHandle stream) {
  const dim3 grid = Grid(args.tokens);
  switch (args.type) {
    case Weights::kBf16:
      return Launch("embedding", EmbeddingKernel<Weights::kBf16>, grid, kThreads, stream, args);
    case Weights::kInt8:
      return Launch("embedding", EmbeddingKernel<Weights::kInt8>, grid, kThreads, stream, args);
    case Weights::kInt4:
      return Launch("embedding", EmbeddingKernel<Weights::kInt4>, grid, kThreads, stream, args);
    default:
      break;
  }
  return Refuse("embedding", "a type of weights without such kernels");
}

LaunchResult SwiGlu(const SwiGluArgs& args, StreamHandle stream) {
  return Launch("swiglu", SwiGluKernel, Grid(args.rows), kThreads, stream, args);
}

LaunchResult AddGated(const AddGatedArgs& args, StreamHandle stream) {
  return Launch("add_gated", AddGatedKernel, Grid(args.rows), kThreads, stream, args);
}

LaunchResult ArgMax(const ArgMaxArgs& args, StreamHandle stream) {
  return Launch("argmax", ArgMaxKernel, Grid(args.rows), kArgMaxThreads, stream, args);
}

LaunchResult JoinColumns(const JoinColumnsArgs& args, StreamHandle stream) {
  if (args.num_pieces < 1 || args.num_pieces > JoinColumnsArgs::kMostPieces) {
    return Refuse("join_columns", "number of pieces out of range");
  }
  if (args.bf16 && args.accumulate) return Refuse("join_columns", "bf16 rows are not added to");
  if (args.bf16) {
    return Launch("join_columns", JoinColumnsKernel<uint16_t>, Grid(args.rows), kThreads, stream,
                  args);
  }
  return Launch("join_columns", JoinColumnsKernel<float>, Grid(args.rows), kThreads, stream, args);
}

}  // namespace moesaic::cuda
