#include "kernels/cuda/rows.h"

#include "kernels/cuda/internal/device.cuh"
#include "kernels/cuda/internal/weights.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

// The same sum in every thread. `partials` is the block's.
__device__ float BlockSum(float value, float (&partials)[kWarps]) {
  value = WarpSum(value);
  if (threadIdx.x % kWarp == 0) partials[threadIdx.x / kWarp] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kWarps; ++i) sum += partials[i];
  return sum;
}

// A block per row.
__global__ void __launch_bounds__(kThreads) RmsNormKernel(RmsNormArgs args) {
  __shared__ float partials[kWarps];
  const int64_t row = blockIdx.x;
  const int64_t place = row / args.heads;
  const int64_t token = args.x_tokens != nullptr ? args.x_tokens[place] : place;
  const int64_t offset = token * args.token_stride + row % args.heads * args.n;
  const float* x = args.x + offset;
  float squares = 0;
  for (int64_t i = threadIdx.x; i < args.n; i += kThreads) squares += x[i] * x[i];
  squares = BlockSum(squares, partials);
  const float factor = 1.0f / sqrtf(squares / static_cast<float>(args.n) + args.eps);
  const int64_t padded = ActivationStride(args.n);
  for (int64_t i = threadIdx.x; i < padded; i += kThreads) {
    const float value = i < args.n ? x[i] * factor * args.weight[i] : 0.0f;
    if (args.out != nullptr && i < args.n) args.out[offset + i] = value;
    if (args.out_bf16 != nullptr) args.out_bf16[row * padded + i] = RoundBf16(value);
  }
}

// A block per token.
__global__ void __launch_bounds__(kThreads) RopeKernel(RopeArgs args) {
  const int64_t token = blockIdx.x;
  const int64_t half = args.head_dim / 2;
  const int64_t position = args.positions[token];
  for (int64_t i = threadIdx.x; i < args.heads * half; i += kThreads) {
    const int64_t pair = i % half;
    float* x = args.x + token * args.token_stride + i / half * args.head_dim + pair;
    const float c = args.cos[position * half + pair];
    const float s = args.sin[position * half + pair];
    const float low = x[0];
    const float high = x[half];
    x[0] = low * c - high * s;
    x[half] = high * c + low * s;
  }
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

__global__ void __launch_bounds__(kThreads) ArgMaxKernel(ArgMaxArgs args) {
  __shared__ float values[kWarps];
  __shared__ int indices[kWarps];
  __shared__ bool finite[kWarps];
  const float* x = args.x + static_cast<int64_t>(blockIdx.x) * args.n;
  float value = 0;
  int index = -1;
  float zero = 0;  // NaN once a value is not finite
  for (int64_t i = threadIdx.x; i < args.n; i += kThreads) {
    zero += x[i] - x[i];
    if (x[i] != x[i] || !Before(x[i], static_cast<int>(i), value, index)) continue;
    value = x[i];
    index = static_cast<int>(i);
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
    finite[threadIdx.x / kWarp] = zero == 0.0f;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  bool all_finite = finite[0];
  for (int i = 1; i < kWarps; ++i) {
    all_finite = all_finite && finite[i];
    if (!Before(values[i], indices[i], value, index)) continue;
    value = values[i];
    index = indices[i];
  }
  args.out[blockIdx.x] = args.finite_only && !all_finite ? -1 : (index < 0 ? 0 : index);
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
  return Load("rows", RmsNormKernel, RopeKernel, EmbeddingKernel<Weights::kBf16>,
              EmbeddingKernel<Weights::kInt8>, EmbeddingKernel<Weights::kInt4>, SwiGluKernel,
              AddGatedKernel, ArgMaxKernel, JoinColumnsKernel<float>, JoinColumnsKernel<uint16_t>,
              FetchKernel);
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
  return Launch("rms_norm", RmsNormKernel, Grid(args.rows), kThreads, stream, args);
}

LaunchResult Rope(const RopeArgs& args, StreamHandle stream) {
  return Launch("rope", RopeKernel, Grid(args.tokens), kThreads, stream, args);
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
  return Launch("argmax", ArgMaxKernel, Grid(args.rows), kThreads, stream, args);
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
