#include "kernels/cuda/products.h"

#include "kernels/cuda/internal/device.cuh"
#include "kernels/cuda/internal/weights.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;

struct RowRange {
  int group;
  int begin, end;
};

__device__ int GroupBegin(const ProductArgs& args, int group) {
  return args.offsets != nullptr ? args.offsets[group]
                                 : (group == 0 ? 0 : static_cast<int>(args.rows));
}
__device__ const std::byte* MatrixOf(const ProductArgs& args, int group) {
  return args.weights != nullptr ? args.weights[group] : args.matrix;
}
__device__ int64_t RowOf(const int32_t* rows, int row) { return rows != nullptr ? rows[row] : row; }

// What is added to the rows of a group, null: nothing.
__device__ const float* BiasOf(const ProductArgs& args, int group) {
  return args.bias != nullptr ? args.bias + RowOf(args.bias_rows, group) * args.n : nullptr;
}

__device__ void Store(const ProductArgs& args, const float* bias, int row, int64_t output,
                      float value) {
  float* y = args.y + RowOf(args.y_rows, row) * args.n + output;
  if (bias != nullptr) value += bias[output];
  *y = args.accumulate ? *y + value : value;
}

// ---- Tensor cores. A block computes kRows rows of one group and 128 outputs, a warp of it all of
// the rows and 32 outputs (two panels): four tiles of 8 columns, of which tile w has column c for
// output 4 c + w, so that a lane's part of the four tiles is one quarter of a line.

constexpr int kStepInputs = 64;  // of activations in shared memory: two subgroups
// In registers of two: the rows of a tile start in different banks.
constexpr int kStepStride = kStepInputs / 2 + 8;
constexpr int kWarpOutputs = 32;
constexpr int kBlockOutputs = kWarps * kWarpOutputs;

// The tile of rows that block y has, empty when there are fewer.
__device__ RowRange TileOf(const ProductArgs& args, int tile, int rows_per_tile) {
  for (int group = 0; group < args.groups; ++group) {
    const int begin = GroupBegin(args, group);
    const int end = GroupBegin(args, group + 1);
    const int tiles = (end - begin + rows_per_tile - 1) / rows_per_tile;
    if (tile < tiles) {
      const int first = begin + tile * rows_per_tile;
      return {group, first, first + rows_per_tile < end ? first + rows_per_tile : end};
    }
    tile -= tiles;
  }
  return {0, 0, 0};
}

// Operand registers of 16 inputs of 32 outputs: those of tile w are low[w] and high[w]. Lane t of
// four has the inputs 4t to 4t + 3.
struct Operands {
  uint32_t low[4];
  uint32_t high[4];
};

// `panel` is the lane's one of two, null when there is none; `step` counts 16 inputs.
template <Weights kType>
__device__ __forceinline__ Operands LoadOperands(const std::byte* panel, int64_t step, int quarter,
                                                 int t, int64_t k) {
  Operands b = {};
  if (panel == nullptr) return b;
  if constexpr (kType == Weights::kBf16) {
    const int64_t line = step * 8 + 2 * t;
    const int64_t lines = (k + 1) / 2;
    if (line < lines) {
      const Quarter low = LoadQuarter(panel + line * kLineBytes, quarter);
#pragma unroll
      for (int w = 0; w < 4; ++w) b.low[w] = low.output[w];
    }
    if (line + 1 < lines) {
      const Quarter high = LoadQuarter(panel + (line + 1) * kLineBytes, quarter);
#pragma unroll
      for (int w = 0; w < 4; ++w) b.high[w] = high.output[w];
    }
  } else if constexpr (kType == Weights::kFp8) {
    const int64_t line = step * 4 + t;
    if (line >= (k + 3) / 4) return b;
    const std::byte* lines = panel + SubgroupOffset<kType>(step / 2);
    const Quarter codes = LoadQuarter(lines + line % 8 * kLineBytes, quarter);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const uint32_t bytes = codes.output[w];  // of inputs 0, 2, 1, 3
      b.low[w] = PackBf16(WidenE4M3(bytes), WidenE4M3(bytes >> 16));
      b.high[w] = PackBf16(WidenE4M3(bytes >> 8), WidenE4M3(bytes >> 24));
    }
  } else if constexpr (kType == Weights::kMxfp4 || kType == Weights::kW4A16) {
    const int64_t subgroup = step / 2;
    const int line = static_cast<int>(step % 2) * 2 + t / 2;
    const Quarter nibbles =
        LoadQuarter(panel + SubgroupOffset<kType>(subgroup) + line * kLineBytes, quarter);
    uint32_t exponents = 0;
    if constexpr (kType == Weights::kMxfp4) exponents = ExponentsOf(panel, subgroup, quarter);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float value[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        value[i] = NibbleAt<kType>(nibbles.output[w] >> (16 * (t % 2)), i);
        if constexpr (kType == Weights::kMxfp4) {
          value[i] *= PowerOfTwo(exponents >> (8 * w) & 0xffu);
        }
      }
      b.low[w] = PackBf16(value[0], value[1]);
      b.high[w] = PackBf16(value[2], value[3]);
    }
  } else {
    const int64_t subgroup = step / 2;
    const std::byte* lines = panel + SubgroupOffset<kType>(subgroup);
    const int half_step = static_cast<int>(step % 2);
    const int line = kType == Weights::kInt8 ? half_step * 4 + t : half_step * 2 + t / 2;
    const Quarter levels = LoadQuarter(lines + line * kLineBytes, quarter);
    Quarter multipliers = {};
    if constexpr (kType == Weights::kInt4) {
      multipliers = LoadQuarter(panel + GroupOffset<kType>(subgroup / kSubgroups), quarter);
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float level[4];
      if constexpr (kType == Weights::kInt8) {
        BytesToFloats(levels.output[w], 128.0f, level);
      } else {
        // Up to 120 in magnitude: bf16 holds them.
        const HalfScale half =
            HalfScaleOf(multipliers.output[w] >> (8 * (subgroup % kSubgroups)) & 0xffu);
        BytesToFloats(levels.output[w] >> (4 * (t % 2)) & 0x0f0f0f0fu, half.zero, level);
#pragma unroll
        for (int i = 0; i < 4; ++i) level[i] *= half.factor;
      }
      b.low[w] = PackBf16(level[0], level[1]);
      b.high[w] = PackBf16(level[2], level[3]);
    }
  }
  return b;
}

template <int kTiles>
struct Sums {
  float c[kTiles][4][4];  // [16 rows each][tile of columns][register]
};

template <Weights kType, int kTiles>
__device__ __forceinline__ void MultiplyStep(const uint32_t (&x)[kTiles * 16][kStepStride],
                                             int local_step, const Operands& b, int g, int t,
                                             Sums<kTiles>& sums) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const uint32_t* upper = &x[m * 16 + g][local_step * 8 + 2 * t];
    const uint32_t* lower = &x[m * 16 + g + 8][local_step * 8 + 2 * t];
    const uint32_t a[4] = {upper[0], lower[0], upper[1], lower[1]};
#pragma unroll
    for (int w = 0; w < 4; ++w) Mma(sums.c[m][w], a, b.low[w], b.high[w]);
  }
}

template <Weights kType, int kTiles>
__global__ void __launch_bounds__(kThreads) MatrixKernel(ProductArgs args) {
  __shared__ uint32_t x[kTiles * 16][kStepStride];
  const RowRange rows = TileOf(args, static_cast<int>(blockIdx.y), kTiles * 16);
  if (rows.begin >= rows.end) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * kBlockOutputs +
                               static_cast<int64_t>(threadIdx.x / kWarp) * kWarpOutputs;
  const int64_t panel_bytes = PanelBytes(kType, args.k);
  // Columns 0 to 3 of the tiles are the first panel's, 4 to 7 the second's.
  const int64_t load_panel = first_output / kPanelOutputs + g / 4;
  const std::byte* matrix = MatrixOf(args, rows.group);
  const std::byte* panel =
      load_panel * kPanelOutputs < args.n ? matrix + load_panel * panel_bytes : nullptr;
  // Of the sums this lane has, columns 2t and 2t + 1.
  const int64_t sum_panel = first_output / kPanelOutputs + t / 2;
  const bool has_sums = sum_panel * kPanelOutputs < args.n;

  Sums<kTiles> sums = {};
  Sums<kTiles> of_group = {};  // before their scale
  const int64_t padded = ActivationStride(args.k);
  for (int64_t begin = 0; begin < padded; begin += kStepInputs) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kTiles * 16 * (kStepInputs / 8);
         i += kThreads) {
      const int row = i / (kStepInputs / 8);
      const int vector = i % (kStepInputs / 8);
      uint4 value = {0, 0, 0, 0};
      if (rows.begin + row < rows.end && begin + vector * 8 < padded) {
        value =
            LoadVector(args.x + RowOf(args.x_rows, rows.begin + row) * padded + begin + vector * 8);
      }
      uint32_t* to = &x[row][vector * 4];
      to[0] = value.x;
      to[1] = value.y;
      to[2] = value.z;
      to[3] = value.w;
    }
    __syncthreads();
#pragma unroll
    for (int step = 0; step < kStepInputs / 16; ++step) {
      if (begin + step / 2 * kSubgroupInputs >= padded) break;
      const Operands b = LoadOperands<kType>(panel, begin / 16 + step, g % 4, t, args.k);
      if constexpr (kScaleInputs<kType> == 0) {
        MultiplyStep<kType, kTiles>(x, step, b, g, t, sums);
      } else {
        MultiplyStep<kType, kTiles>(x, step, b, g, t, of_group);
        const int64_t behind = begin + (step + 1) * 16;
        if (behind % kScaleInputs<kType> != 0 && behind != padded) continue;
        float scales[8] = {};  // of outputs 8t to 8t + 7
        if (has_sums) {
          LoadScales<kType>(matrix + sum_panel * panel_bytes, behind - 1, t % 2, scales);
        }
#pragma unroll
        for (int w = 0; w < 4; ++w) {
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            float(&to)[4] = sums.c[m][w];
            const float(&from)[4] = of_group.c[m][w];
            to[0] = fmaf(from[0], scales[w], to[0]);
            to[1] = fmaf(from[1], scales[4 + w], to[1]);
            to[2] = fmaf(from[2], scales[w], to[2]);
            to[3] = fmaf(from[3], scales[4 + w], to[3]);
          }
        }
        of_group = {};
      }
    }
  }

  const float* const bias = BiasOf(args, rows.group);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = rows.begin + m * 16 + g + i / 2 * 8;
        const int64_t output = first_output + 8 * t + i % 2 * 4 + w;
        if (row < rows.end && output < args.n) Store(args, bias, row, output, sums.c[m][w][i]);
      }
    }
  }
}

// ---- A row at a time. A block computes one panel of one row, its warps taking lines in turn.

// The last group that begins at or before the row: those before it that begin there are empty. -1
// when the row is behind all groups.
__device__ int GroupOf(const ProductArgs& args, int row) {
  const int groups = static_cast<int>(args.groups);
  if (row >= GroupBegin(args, groups)) return -1;
  int first = 0;
  int behind = groups;
  while (behind - first > 1) {
    const int middle = (first + behind) / 2;
    if (GroupBegin(args, middle) <= row) {
      first = middle;
    } else {
      behind = middle;
    }
  }
  return first;
}

// The numbers of an output in one line, in the order of inputs, before exponent or scale; of int4
// weights with their multiplier apart.
template <Weights kType, int kInputs>
__device__ __forceinline__ void ValuesOf(uint32_t bits, uint32_t multiplier,
                                         float (&value)[kInputs], float& factor) {
  if constexpr (kType == Weights::kInt8) {
    BytesToFloats(bits, 128.0f, value);
  } else if constexpr (kType == Weights::kInt4) {
    const HalfScale half = HalfScaleOf(multiplier);
    factor = half.factor;
#pragma unroll
    for (int i = 0; i < kInputs; ++i) {
      value[i] = static_cast<float>(bits >> (i % 4 * 8 + i / 4 * 4) & 15u) - half.zero;
    }
  } else if constexpr (kType == Weights::kFp8) {
    // Bytes are of inputs 0, 2, 1, 3.
#pragma unroll
    for (int i = 0; i < kInputs; ++i) value[i] = WidenE4M3(bits >> (i % 2 * 16 + i / 2 * 8));
  } else {
#pragma unroll
    for (int i = 0; i < kInputs; ++i) value[i] = NibbleAt<kType>(bits, i);
  }
}

// sum[o] += the products of one line with the lane's four outputs.
template <Weights kType>
__device__ __forceinline__ void AddLine(const std::byte* panel, const uint16_t* x, int64_t line,
                                        int quarter, float (&sum)[4]) {
  if constexpr (kType == Weights::kBf16) {
    const Quarter w = LoadQuarter(panel + line * kLineBytes, quarter);
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(x + line * 2);
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      sum[o] = fmaf(WidenBf16(pair), WidenBf16(w.output[o]), sum[o]);
      sum[o] = fmaf(WidenBf16(pair >> 16), WidenBf16(w.output[o] >> 16), sum[o]);
    }
  } else {
    const int64_t subgroup = line / kSubgroupLines<kType>;
    const int64_t within = line % kSubgroupLines<kType>;
    constexpr int kInputs = kSubgroupLines<kType> == 8 ? 4 : 8;  // of a line
    const int64_t input = subgroup * kSubgroupInputs + within * kInputs;
    const Quarter w =
        LoadQuarter(panel + SubgroupOffset<kType>(subgroup) + within * kLineBytes, quarter);
    const uint32_t* pairs = reinterpret_cast<const uint32_t*>(x + input);
    // Exponents of mxfp4, multipliers of int4.
    uint32_t exponents = 0;
    if constexpr (kType == Weights::kMxfp4) exponents = ExponentsOf(panel, subgroup, quarter);
    Quarter multipliers = {};
    if constexpr (kType == Weights::kInt4) {
      multipliers = LoadQuarter(panel + GroupOffset<kType>(subgroup / kSubgroups), quarter);
    }
#pragma unroll
    for (int o = 0; o < 4; ++o) {
      float value[kInputs];
      float factor = 1.0f;
      ValuesOf<kType>(w.output[o], multipliers.output[o] >> (8 * (subgroup % kSubgroups)) & 0xffu,
                      value, factor);
      float of_line = 0;
#pragma unroll
      for (int i = 0; i < kInputs; ++i) {
        of_line = fmaf(WidenBf16(pairs[i / 2] >> (16 * (i % 2))), value[i], of_line);
      }
      if constexpr (kType == Weights::kMxfp4) {
        factor = PowerOfTwo(exponents >> (8 * o) & 0xffu);
        sum[o] = fmaf(of_line, factor, sum[o]);
      } else {
        if constexpr (kType == Weights::kInt4) of_line *= factor;
        sum[o] = fmaf(of_line, ScaleAt<kType>(panel, input, quarter * 4 + o), sum[o]);
      }
    }
  }
}

template <Weights kType>
__global__ void __launch_bounds__(kThreads) VectorKernel(ProductArgs args) {
  __shared__ float partials[kWarps][kPanelOutputs];
  const auto row = static_cast<int>(blockIdx.y);
  const int group = GroupOf(args, row);
  if (group < 0) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int quarter = lane % 4;
  const int64_t panel_index = blockIdx.x;
  const std::byte* panel = MatrixOf(args, group) + panel_index * PanelBytes(kType, args.k);
  const uint16_t* x = args.x + RowOf(args.x_rows, row) * ActivationStride(args.k);
  // Of integers those of weights alone.
  const int64_t subgroups = (args.k + kSubgroupInputs - 1) / kSubgroupInputs;
  const int64_t lines = kType == Weights::kBf16  ? (args.k + 1) / 2
                        : kType == Weights::kFp8 ? (args.k + 3) / 4
                                                 : subgroups * kSubgroupLines<kType>;

  float sum[4] = {};
  constexpr int kLinesPerWarp = kWarp / 4;
#pragma unroll 4
  for (int64_t line = warp * kLinesPerWarp + lane / 4; line < lines;
       line += kWarps * kLinesPerWarp) {
    AddLine<kType>(panel, x, line, quarter, sum);
  }
#pragma unroll
  for (int o = 0; o < 4; ++o) {
    for (int mask = 4; mask < kWarp; mask *= 2) sum[o] += ShuffleXor(sum[o], mask);
    if (lane < 4) partials[warp][quarter * 4 + o] = sum[o];
  }
  __syncthreads();
  if (threadIdx.x >= kPanelOutputs) return;
  const int64_t output = panel_index * kPanelOutputs + threadIdx.x;
  if (output >= args.n) return;
  float value = 0;
  for (int i = 0; i < kWarps; ++i) value += partials[i][threadIdx.x];
  Store(args, BiasOf(args, group), row, output, value);
}

template <Weights kType>
LaunchResult LaunchProduct(const ProductArgs& args, ProductPath path, StreamHandle stream) {
  if (path == ProductPath::kVector) {
    const dim3 grid(CeilDiv(args.n, kPanelOutputs), static_cast<unsigned>(args.rows));
    return Launch("vector_product", VectorKernel<kType>, grid, kThreads, stream, args);
  }
  // Every group may have a tile that is not full.
  const auto tiles = [&args](int64_t rows_per_tile) {
    const int64_t most = args.rows < args.groups ? args.rows : args.groups;
    return CeilDiv(args.rows, rows_per_tile) + static_cast<unsigned>(most > 1 ? most - 1 : 0);
  };
  const unsigned columns = CeilDiv(args.n, kBlockOutputs);
  // Tiles of another height have the same bits: only who computes a row changes.
  if (args.rows > 16 * args.groups) {
    return Launch("matrix_product", MatrixKernel<kType, 4>, dim3(columns, tiles(64)), kThreads,
                  stream, args);
  }
  return Launch("matrix_product", MatrixKernel<kType, 1>, dim3(columns, tiles(16)), kThreads,
                stream, args);
}

}  // namespace

LaunchResult LoadProductKernels() {
  return Load("product", VectorKernel<Weights::kBf16>, VectorKernel<Weights::kInt8>,
              VectorKernel<Weights::kInt4>, VectorKernel<Weights::kMxfp4>,
              VectorKernel<Weights::kFp8>, VectorKernel<Weights::kW4A16>,
              MatrixKernel<Weights::kBf16, 1>, MatrixKernel<Weights::kBf16, 4>,
              MatrixKernel<Weights::kInt8, 1>, MatrixKernel<Weights::kInt8, 4>,
              MatrixKernel<Weights::kInt4, 1>, MatrixKernel<Weights::kInt4, 4>,
              MatrixKernel<Weights::kMxfp4, 1>, MatrixKernel<Weights::kMxfp4, 4>,
              MatrixKernel<Weights::kFp8, 1>, MatrixKernel<Weights::kFp8, 4>,
              MatrixKernel<Weights::kW4A16, 1>, MatrixKernel<Weights::kW4A16, 4>);
}

LaunchResult Product(const ProductArgs& args, ProductPath path, StreamHandle stream) {
  // Rows and groups are the second dimension of the grid.
  if (args.rows < 0 || args.rows > 65535 || args.groups < 1 || args.groups > 4096 ||
      (args.offsets == nullptr && args.groups != 1)) {
    return Refuse("product", "number of rows or groups out of range");
  }
  if (args.n == 0 || args.k == 0) return Refuse("product", "an empty matrix");
  switch (args.type) {
    case Weights::kBf16:
      return LaunchProduct<Weights::kBf16>(args, path, stream);
    case Weights::kInt8:
      return LaunchProduct<Weights::kInt8>(args, path, stream);
    case Weights::kInt4:
      return LaunchProduct<Weights::kInt4>(args, path, stream);
    case Weights::kMxfp4:
      return LaunchProduct<Weights::kMxfp4>(args, path, stream);
    case Weights::kFp8:
      return LaunchProduct<Weights::kFp8>(args, path, stream);
    case Weights::kW4A16:
      return LaunchProduct<Weights::kW4A16>(args, path, stream);
  }
  return Refuse("product", "unknown type of weights");
}

}  // namespace moesaic::cuda
