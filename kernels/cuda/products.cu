#include "kernels/cuda/products.h"

#include "kernels/cuda/internal/device.cuh"
#include "kernels/cuda/internal/weights.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarp;
// Sums are those of chunks of so many inputs, each from zero and with its scale, added up in the
// order of the chunks: that is what lets several warps share the inputs of a row, and the order is
// that of all tiles.
constexpr int kChunkInputs = 128;

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

// The product that block z has.
__device__ void ChooseProduct(ProductArgs& args) {
  if (blockIdx.z == 0) return;
  args.weights = args.second_weights;
  args.matrix = args.second_matrix;
  args.bias = args.second_bias;
  args.y = args.second_y;
}

__device__ void Store(const ProductArgs& args, const float* bias, int row, int64_t output,
                      float value) {
  float* y = args.y + RowOf(args.y_rows, row) * args.n + output;
  if (bias != nullptr) value += bias[output];
  *y = args.accumulate ? *y + value : value;
}

// ---- Tensor cores. A warp computes the rows of a tile and 32 outputs (two panels): four tiles of
// 8 columns, of which tile w has column c for output 4 c + w, so that a lane's part of the four
// tiles is one quarter of a line.

constexpr int kWarpOutputs = 32;

// The tile of rows that block y has, empty when there are fewer. By the whole warp: a lane looks at
// consecutive groups, and what they begin with is on its way before the first is looked at.
__device__ RowRange TileOf(const ProductArgs& args, int tile, int rows_per_tile) {
  if (args.offsets == nullptr) {
    const int first = tile * rows_per_tile;
    return {0, first, min(first + rows_per_tile, static_cast<int>(args.rows))};
  }
  constexpr int kGroups = 4;  // of a lane, at a time
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto groups = static_cast<int>(args.groups);
  for (int first_group = 0; first_group < groups; first_group += kWarp * kGroups) {
    const int group = first_group + lane * kGroups;
    int begins[kGroups + 1];
#pragma unroll
    for (int i = 0; i <= kGroups; ++i) begins[i] = args.offsets[min(group + i, groups)];
    int tiles[kGroups];
    int all = 0;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      tiles[i] = (begins[i + 1] - begins[i] + rows_per_tile - 1) / rows_per_tile;
      all += tiles[i];
    }
    const int own = all;
    const int before = WarpSumOfLower(own, all);
    if (tile >= all) {
      tile -= all;
      continue;
    }
    // One lane has it and tells the others its first row, and which of its groups it is.
    int first_row = -1;
    int its_group = -1;
    if (before <= tile && tile < before + own) {
      int within = tile - before;
#pragma unroll
      for (int i = 0; i < kGroups; ++i) {
        if (its_group < 0 && within < tiles[i]) {
          its_group = group + i;
          first_row = begins[i] + within * rows_per_tile;
        }
        within -= tiles[i];
      }
    }
    first_row = WarpMax(first_row);
    its_group = WarpMax(its_group);
    return {its_group, first_row, min(first_row + rows_per_tile, args.offsets[its_group + 1])};
  }
  return {0, 0, 0};
}

// Operand registers of 16 inputs of 32 outputs: those of tile w are low[w] and high[w]. Lane t of
// four has the inputs 4t to 4t + 3.
struct Operands {
  uint32_t low[4];
  uint32_t high[4];
};

// What a lane reads of a panel for them.
template <Weights kType>
struct PanelPart {
  Quarter lines[kType == Weights::kBf16 ? 2 : 1];
  uint32_t exponents;  // of mxfp4
};

// Of `step`, which counts 16 inputs. kWhole: all of them are inputs of the matrix.
template <Weights kType, bool kWhole>
__device__ __forceinline__ PanelPart<kType> LoadPart(const std::byte* panel, int64_t step,
                                                     int quarter, int t, int64_t k) {
  PanelPart<kType> part = {};
  const int64_t subgroup = step / 2;
  const int half_step = static_cast<int>(step % 2);
  if constexpr (kType == Weights::kBf16) {
    const int64_t line = step * 8 + 2 * t;
    const int64_t lines = (k + 1) / 2;
    if (kWhole || line < lines) part.lines[0] = LoadQuarter(panel + line * kLineBytes, quarter);
    if (kWhole || line + 1 < lines) {
      part.lines[1] = LoadQuarter(panel + (line + 1) * kLineBytes, quarter);
    }
  } else if constexpr (kType == Weights::kFp8) {
    const int line = half_step * 4 + t;
    if (kWhole || subgroup * 8 + line < (k + 3) / 4) {
      part.lines[0] =
          LoadQuarter(panel + SubgroupOffset<kType>(subgroup) + line * kLineBytes, quarter);
    }
  } else {
    const int line = kType == Weights::kInt8 ? half_step * 4 + t : half_step * 2 + t / 2;
    part.lines[0] =
        LoadQuarter(panel + SubgroupOffset<kType>(subgroup) + line * kLineBytes, quarter);
    if constexpr (kType == Weights::kMxfp4) part.exponents = ExponentsOf(panel, subgroup, quarter);
  }
  return part;
}

// The four numbers of a lane's inputs of one output, as registers of an operand; exact. `subgroup`
// counts within a group, whose multipliers `multiplier` has, of int4. Numbers are put together from
// bits: 0x4300 | n is 128 + n as bf16.
template <Weights kType>
__device__ __forceinline__ void Decode(uint32_t bits, uint32_t multiplier, int subgroup,
                                       uint32_t exponent, int t, uint32_t& low, uint32_t& high) {
  constexpr uint32_t kOnes = 0x3f803f80u;
  constexpr uint32_t kMinusZeros = 0x80008000u;
  if constexpr (kType == Weights::kInt8) {
    // A level and 128 in a byte: its lower bits and 128, less 256, or less 128 where the upper bit
    // is set.
    const uint32_t lower = bits & 0x7f7f7f7fu;
    const uint32_t upper = ~bits & 0x80808080u;
    low = FmaBf16(Permute(lower, 0x43u, 0x4140u), kOnes, Permute(upper, 0xc3u, 0x4140u));
    high = FmaBf16(Permute(lower, 0x43u, 0x4342u), kOnes, Permute(upper, 0xc3u, 0x4342u));
  } else if constexpr (kType == Weights::kInt4) {
    // Up to 120 in magnitude: bf16 holds them.
    const uint32_t byte = multiplier >> (8 * subgroup) & 0xffu;
    const uint32_t minus_zero = 0xc3080000u - ((byte >> 7) << 16);  // -136, or -135, as bf16
    const uint32_t zeros = minus_zero | minus_zero >> 16;
    const uint32_t factors = FmaBf16(Permute(byte & 127u, 0x43u, 0x4040u), kOnes, 0xc300c300u);
    const uint32_t nibbles = bits >> (4 * (t % 2)) & 0x0f0f0f0fu;
    low = FmaBf16(Permute(nibbles, 0x43u, 0x4140u), kOnes, zeros);
    high = FmaBf16(Permute(nibbles, 0x43u, 0x4342u), kOnes, zeros);
    low = FmaBf16(low, factors, kMinusZeros);
    high = FmaBf16(high, factors, kMinusZeros);
  } else if constexpr (kType == Weights::kFp8) {  // bytes of inputs 0, 2, 1, 3
    constexpr uint32_t kFactors = 0x7b807b80u;    // 2^120 (WidenE4M3)
    const auto widen = [](uint32_t pair) {
      const uint32_t spread = (pair & 0x00800080u) << 8 | (pair & 0x007f007fu) << 4;
      return FmaBf16(spread, kFactors, kMinusZeros);
    };
    low = widen(bits);
    high = widen(bits >> 8);
  } else {
    const uint32_t four = bits >> (16 * (t % 2));
    const auto spread = [](uint32_t two) { return (two | two << 12) & 0x000f000fu; };
    low = spread(four & 0xffu);
    high = spread(four >> 8 & 0xffu);
    if constexpr (kType == Weights::kMxfp4) {
      constexpr uint32_t kFactors = 0x7e807e80u;  // 2^126 (WidenE2M1)
      const uint32_t power = PowerOfTwoBits(exponent);
      const uint32_t powers = power | power << 16;
      const auto widen = [&](uint32_t pair) {
        const uint32_t number = (pair & 0x00080008u) << 12 | (pair & 0x00070007u) << 6;
        return FmaBf16(FmaBf16(number, kFactors, kMinusZeros), powers, kMinusZeros);
      };
      low = widen(low);
      high = widen(high);
    } else {
      constexpr uint32_t kZeros = 0xc308c308u;  // -136: a nibble is a level without its sign's bit
      low = FmaBf16(low ^ 0x43084308u, kOnes, kZeros);
      high = FmaBf16(high ^ 0x43084308u, kOnes, kZeros);
    }
  }
}

// `multipliers` are those of the group, of int4.
template <Weights kType>
__device__ __forceinline__ Operands OperandsOf(const PanelPart<kType>& part,
                                               const Quarter& multipliers, int subgroup, int t) {
  Operands b;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (kType == Weights::kBf16) {
      b.low[w] = part.lines[0].output[w];
      b.high[w] = part.lines[1].output[w];
    } else {
      Decode<kType>(part.lines[0].output[w], multipliers.output[w], subgroup,
                    part.exponents >> (8 * w) & 0xffu, t, b.low[w], b.high[w]);
    }
  }
  return b;
}

template <int kTiles>
struct Sums {
  float c[kTiles][4][4];  // [16 rows each][tile of columns][register]
};

// sum += x of one step: `a` has the registers of rows g and g + 8 of a tile.
template <int kTiles>
__device__ __forceinline__ void MultiplyStep(const uint32_t (&a)[kTiles][4], const Operands& b,
                                             Sums<kTiles>& sums) {
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int w = 0; w < 4; ++w) Mma(sums.c[m][w], a[m], b.low[w], b.high[w]);
  }
}

// The panels of a lane. Those behind the last are the last: nobody stores what comes of them.
struct LanePanels {
  const std::byte* load;  // of which it loads operands
  const std::byte* sums;  // and of which it has sums: outputs 8t to 8t + 7
  int quarter, t;
};
template <Weights kType>
__device__ __forceinline__ LanePanels PanelsOf(const ProductArgs& args, int group,
                                               int64_t first_output) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int g = lane / 4;
  const int t = lane % 4;
  const int64_t bytes = PanelBytes(kType, args.k);
  const std::byte* matrix = MatrixOf(args, group);
  const int64_t last = (args.n - 1) / kPanelOutputs;
  // Columns 0 to 3 of the tiles are the first panel's, 4 to 7 the second's. Of the sums this lane
  // has columns 2t and 2t + 1.
  const int64_t load = min(first_output / kPanelOutputs + g / 4, last);
  const int64_t sums = min(first_output / kPanelOutputs + t / 2, last);
  return {matrix + load * bytes, matrix + sums * bytes, g % 4, t};
}

// What inputs that share a scale come to: to = scale from, or to += scale from. `behind` is the
// input behind them.
template <Weights kType, int kTiles>
__device__ __forceinline__ void Scale(const LanePanels& panels, int64_t behind, bool add,
                                      const Sums<kTiles>& from, Sums<kTiles>& to) {
  float scales[8];  // of outputs 8t to 8t + 7
  LoadScales<kType>(panels.sums, behind - 1, panels.t % 2, scales);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float scale = scales[i % 2 * 4 + w];
        to.c[m][w][i] = add ? fmaf(from.c[m][w][i], scale, to.c[m][w][i]) : from.c[m][w][i] * scale;
      }
    }
  }
}

// sums += the products of a step; a group that ends with it gets its scale.
template <Weights kType, int kTiles>
__device__ __forceinline__ void AddStep(const LanePanels& panels, int64_t begin, int step,
                                        const uint32_t (&a)[kTiles][4], const Operands& b,
                                        Sums<kTiles>& of_group, Sums<kTiles>& sums) {
  constexpr int kScale = kScaleInputs<kType>;
  if constexpr (kScale != 0 && kScale < kChunkInputs) {
    MultiplyStep(a, b, of_group);
    if ((step + 1) * 16 % kScale != 0) return;
    Scale<kType>(panels, begin + (step + 1) * 16, true, of_group, sums);
    of_group = {};
  } else {
    MultiplyStep(a, b, sums);
  }
}

// The sums of one chunk of 16 rows, with their scales. x: the lane's inputs of rows g and g + 8.
template <Weights kType>
__device__ __forceinline__ Sums<1> ChunkSums(const ProductArgs& args, const LanePanels& panels,
                                             int64_t chunk, const uint16_t* const (&x)[2]) {
  constexpr int kSteps = kChunkInputs / 16;
  const int64_t begin = chunk * kChunkInputs;
  const int64_t behind = min(begin + kChunkInputs, ActivationStride(args.k));
  Sums<1> sums = {};
  Sums<1> of_group = {};  // of w4a16, before their scale
  Quarter multipliers = {};
  if constexpr (kType == Weights::kInt4) {
    multipliers = LoadQuarter(panels.load + GroupOffset<kType>(chunk), panels.quarter);
  }
  const auto add = [&](int step, const PanelPart<kType>& part) {
    uint32_t a[1][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint2 pair = LoadPair(x[half] + begin + step * 16);
      a[0][half] = pair.x;
      a[0][2 + half] = pair.y;
    }
    AddStep<kType>(panels, begin, step, a, OperandsOf<kType>(part, multipliers, step / 2, panels.t),
                   of_group, sums);
  };
  if (begin + kChunkInputs <= args.k) {
    // As much as registers hold is on its way before the first product waits for it.
    PanelPart<kType> parts[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      parts[step] =
          LoadPart<kType, true>(panels.load, begin / 16 + step, panels.quarter, panels.t, args.k);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) add(step, parts[step]);
  } else {
#pragma unroll 1
    for (int step = 0; begin + step * 16 < behind; ++step) {
      add(step,
          LoadPart<kType, false>(panels.load, begin / 16 + step, panels.quarter, panels.t, args.k));
    }
  }
  if constexpr (kScaleInputs<kType> == kChunkInputs) {
    Scale<kType>(panels, behind, false, sums, sums);
  }
  return sums;
}

// ---- Few rows: a block computes 16 rows of one group and 32 outputs, a warp of it the chunks of
// inputs that are its turn. All chunks of a round are added up behind it.

constexpr int kFewRows = 16;
// Two blocks of kFewWarps share a multiprocessor. Where there are fewer blocks than
// multiprocessors, and many inputs, a block of kMoreWarps has one for itself.
constexpr int kFewWarps = 8;
constexpr int kMoreWarps = 2 * kFewWarps;
constexpr int kFewStride = kWarpOutputs + 4;  // rows of a chunk's sums start in different banks

template <Weights kType, int kBlockWarps>
__global__ void __launch_bounds__(kBlockWarps* kWarp, kMoreWarps / kBlockWarps)
    FewRowsKernel(ProductArgs args) {
  __shared__ float of_chunks[kBlockWarps][kFewRows][kFewStride];
  ChooseProduct(args);
  const RowRange rows = TileOf(args, static_cast<int>(blockIdx.y), kFewRows);
  if (rows.begin >= rows.end) return;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * kWarpOutputs;
  const LanePanels panels = PanelsOf<kType>(args, rows.group, first_output);
  const int t = panels.t;
  const int64_t padded = ActivationStride(args.k);
  // Rows g and g + 8; behind the last there is the last, of which nothing is kept.
  const uint16_t* x[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = min(rows.begin + g + half * 8, rows.end - 1);
    x[half] = args.x + RowOf(args.x_rows, row) * padded + 4 * t;
  }
  const int64_t chunks = (args.k + kChunkInputs - 1) / kChunkInputs;

  // The first threads have two outputs of a row each; with more warps others have none.
  const int row = static_cast<int>(threadIdx.x) / (kWarpOutputs / 2);
  const int output = static_cast<int>(threadIdx.x) % (kWarpOutputs / 2) * 2;
  float totals[2] = {};
  for (int64_t first = 0; first < chunks; first += kBlockWarps) {
    const int64_t chunk = first + warp;
    if (chunk < chunks) {
      const Sums<1> sums = ChunkSums<kType>(args, panels, chunk, x);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float* to = &of_chunks[warp][g + half * 8][8 * t];
#pragma unroll
        for (int i = 0; i < 8; ++i) to[i] = sums.c[0][i % 4][half * 2 + i / 4];
      }
    }
    __syncthreads();
    if (row < kFewRows && rows.begin + row < rows.end) {
      for (int from = 0; from < kBlockWarps && first + from < chunks; ++from) {
        totals[0] += of_chunks[from][row][output];
        totals[1] += of_chunks[from][row][output + 1];
      }
    }
    __syncthreads();
  }

  if (row >= kFewRows || rows.begin + row >= rows.end) return;
  const float* const bias = BiasOf(args, rows.group);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (first_output + output + i >= args.n) continue;
    Store(args, bias, rows.begin + row, first_output + output + i, totals[i]);
  }
}

// ---- Many rows: a block computes kTiles times 16 rows of one group and 128 outputs, a warp of it
// all of the rows and 32 outputs. While half a chunk is multiplied the next is on its way, rows
// through registers into the other of two places in shared memory.

constexpr int kBlockOutputs = kWarps * kWarpOutputs;
constexpr int kHalfInputs = kChunkInputs / 2;
constexpr int kHalfSteps = kHalfInputs / 16;
// In registers of two: the rows of a tile start in different banks.
constexpr int kHalfStride = kHalfInputs / 2 + 8;
// Sums that are scaled within a chunk take a third set of registers.
template <Weights kType>
constexpr int kManyTiles = kScaleInputs<kType> != 0 && kScaleInputs<kType> < kChunkInputs ? 2 : 4;

// Half a chunk on its way.
template <Weights kType, int kVectors>
struct HalfChunk {
  uint4 rows[kVectors];  // a thread's part of them
  PanelPart<kType> parts[kHalfSteps];
};

template <Weights kType>
__global__ void __launch_bounds__(kThreads) ManyRowsKernel(ProductArgs args) {
  constexpr int kTiles = kManyTiles<kType>;
  constexpr int kRowVectors = kHalfInputs / 8;
  constexpr int kVectors = kTiles * 16 * kRowVectors / kThreads;
  __shared__ uint32_t x[2][kTiles * 16][kHalfStride];
  ChooseProduct(args);
  const RowRange rows = TileOf(args, static_cast<int>(blockIdx.y), kTiles * 16);
  if (rows.begin >= rows.end) return;
  const auto thread = static_cast<int>(threadIdx.x);
  const int g = thread % kWarp / 4;
  const int64_t first_output = static_cast<int64_t>(blockIdx.x) * kBlockOutputs +
                               static_cast<int64_t>(thread / kWarp) * kWarpOutputs;
  const LanePanels panels = PanelsOf<kType>(args, rows.group, first_output);
  const int t = panels.t;
  const int64_t padded = ActivationStride(args.k);

  // Vectors of the rows' inputs are the threads' in turn. Behind the last row there is the last, of
  // which nothing is kept.
  const int vector = thread % kRowVectors;
  uint32_t from[kVectors];  // of x, in elements
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int row =
        min(rows.begin + thread / kRowVectors + i * (kThreads / kRowVectors), rows.end - 1);
    from[i] = static_cast<uint32_t>(RowOf(args.x_rows, row) * padded + vector * 8);
  }
  const auto load = [&](int64_t begin, HalfChunk<kType, kVectors>& half) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      half.rows[i] = {0, 0, 0, 0};
      if (begin + vector * 8 < padded) half.rows[i] = LoadConstant(args.x + from[i] + begin);
    }
#pragma unroll
    for (int step = 0; step < kHalfSteps; ++step) {
      half.parts[step] = {};
      if (begin + step * 16 >= padded) continue;
      half.parts[step] =
          LoadPart<kType, false>(panels.load, begin / 16 + step, panels.quarter, t, args.k);
    }
  };
  const auto store = [&](const HalfChunk<kType, kVectors>& half,
                         uint32_t(&to)[kTiles * 16][kHalfStride]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      uint32_t* at = &to[thread / kRowVectors + i * (kThreads / kRowVectors)][vector * 4];
      at[0] = half.rows[i].x;
      at[1] = half.rows[i].y;
      at[2] = half.rows[i].z;
      at[3] = half.rows[i].w;
    }
  };

  Sums<kTiles> sums = {};
  HalfChunk<kType, kVectors> halves[2];
  Quarter multipliers = {};
  load(0, halves[0]);
  store(halves[0], x[0]);
  for (int64_t begin = 0; begin < padded; begin += kChunkInputs) {
    const int64_t behind = min(begin + kChunkInputs, padded);
    if constexpr (kType == Weights::kInt4) {
      multipliers =
          LoadQuarter(panels.load + GroupOffset<kType>(begin / kChunkInputs), panels.quarter);
    }
    Sums<kTiles> of_chunk = {};
    Sums<kTiles> of_group = {};  // of w4a16, before their scale
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // All have stored this half, and read the other.
      __syncthreads();
      const int64_t next = begin + (half + 1) * kHalfInputs;
      if (next < padded) load(next, halves[1 - half]);
#pragma unroll
      for (int step = 0; step < kHalfSteps; ++step) {
        const int of_all = half * kHalfSteps + step;  // steps of the chunk
        if (begin + of_all * 16 >= behind) continue;
        uint32_t a[kTiles][4];
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          const uint32_t* upper = &x[half][m * 16 + g][step * 8 + 2 * t];
          const uint32_t* lower = &x[half][m * 16 + g + 8][step * 8 + 2 * t];
          a[m][0] = upper[0];
          a[m][1] = lower[0];
          a[m][2] = upper[1];
          a[m][3] = lower[1];
        }
        AddStep<kType>(panels, begin, of_all, a,
                       OperandsOf<kType>(halves[half].parts[step], multipliers, of_all / 2, t),
                       of_group, of_chunk);
      }
      if (next < padded) store(halves[1 - half], x[1 - half]);
    }
    if constexpr (kScaleInputs<kType> == kChunkInputs) {
      Scale<kType>(panels, behind, false, of_chunk, of_chunk);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int w = 0; w < 4; ++w) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums.c[m][w][i] += of_chunk.c[m][w][i];
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
  ChooseProduct(args);
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
  WarpSumOfQuarters(sum);
  if (lane < 4) {
#pragma unroll
    for (int o = 0; o < 4; ++o) partials[warp][quarter * 4 + o] = sum[o];
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
  const unsigned products = args.second_y != nullptr ? 2 : 1;
  if (path == ProductPath::kVector) {
    const dim3 grid(CeilDiv(args.n, kPanelOutputs), static_cast<unsigned>(args.rows), products);
    return Launch("vector_product", VectorKernel<kType>, grid, kThreads, stream, args);
  }
  // Every group may have a tile that is not full.
  const auto tiles = [&args](int64_t rows_per_tile) {
    const int64_t most = args.rows < args.groups ? args.rows : args.groups;
    return CeilDiv(args.rows, rows_per_tile) + static_cast<unsigned>(most > 1 ? most - 1 : 0);
  };
  // Tiles of another height have the same bits: only who computes a row changes. Large ones read
  // weights less often, but there have to be enough of them for a GPU.
  constexpr unsigned kLeastBlocks = 96;
  const dim3 many(CeilDiv(args.n, kBlockOutputs), tiles(kManyTiles<kType> * 16), products);
  if (args.rows > kFewRows * args.groups && many.x * many.y * products >= kLeastBlocks) {
    return Launch("many_rows_product", ManyRowsKernel<kType>, many, kThreads, stream, args);
  }
  const dim3 few(CeilDiv(args.n, kWarpOutputs), tiles(kFewRows), products);
  if (few.x * few.y * products < kLeastBlocks && args.k > kFewWarps * kChunkInputs) {
    return Launch("few_rows_product", FewRowsKernel<kType, kMoreWarps>, few, kMoreWarps * kWarp,
                  stream, args);
  }
  return Launch("few_rows_product", FewRowsKernel<kType, kFewWarps>, few, kFewWarps * kWarp, stream,
                args);
}

template <Weights... kTypes>
LaunchResult LoadProductsOf() {
  return Load("product", VectorKernel<kTypes>..., FewRowsKernel<kTypes, kFewWarps>...,
              FewRowsKernel<kTypes, kMoreWarps>..., ManyRowsKernel<kTypes>...);
}

}  // namespace

LaunchResult LoadProductKernels() {
  return LoadProductsOf<Weights::kBf16, Weights::kInt8, Weights::kInt4, Weights::kMxfp4,
                        Weights::kFp8, Weights::kW4A16>();
}

LaunchResult Product(const ProductArgs& args, ProductPath path, StreamHandle stream) {
  // Rows and groups are the second dimension of the grid.
  if (args.rows < 0 || args.rows > 65535 || args.groups < 1 || args.groups > 4096 ||
      (args.offsets == nullptr && args.groups != 1)) {
    return Refuse("product", "number of rows or groups out of range");
  }
  if (args.n == 0 || args.k == 0) return Refuse("product", "an empty matrix");
  if (args.second_y != nullptr && args.accumulate) {
    return Refuse("product", "two products, added to what is there");
  }
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
