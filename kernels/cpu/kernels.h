// CpuKernels: the table of compute kernels of one instruction set, chosen once at start.
//
// Everything works on caller-owned memory, allocates nothing and is safe to call from any thread.
//
// Numerics classes (architecture, rule 1). Within a class every function gives the same bits for a
// row whatever the other rows, the number of rows, the panel range and the thread: one summation
// order over K per output. Scalar, AVX2 and AVX-512 are one class (kF32: f32 activations, fused
// multiply-adds in ascending k), so they agree bit for bit with each other too. AVX512-BF16 is the
// class kBf16: activations are rounded to bf16 before a matrix product. So they are in kAmxBf16,
// which sums in another order, that of the tile registers. Products with integer weights are the
// same bits in all classes and on every instruction set: the sums of a group are exact.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/weight_types.h"

namespace moesaic {

struct CausalConvArgs;
struct DeltaRuleArgs;
struct GatherKeysArgs;
struct IndexScoreArgs;
enum class RowGate;

enum class Isa { kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx };
enum class NumericsClass { kF32, kBf16, kAmxBf16 };
// Of the products with integer weights, which all of them compute to the same bits. A table has the
// fastest of those that use no registers wider than its own.
enum class QuantIsa { kScalar, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAmx };

const char* IsaName(Isa isa);  // "scalar", "avx2", "avx512", "avx512_bf16", "amx"
// "scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx"
const char* QuantIsaName(QuantIsa isa);
const char* NumericsClassName(NumericsClass numerics);  // "f32", "bf16", "amx_bf16"
// What products with weights of this type multiply them with: WeightTraits::activations or the
// class's own type.
ActivationType ActivationTypeOf(NumericsClass numerics, WeightType weights);

constexpr int64_t kPanelOutputs = 16;
// Inputs that share one scale, of integer weights (for each output) and of integer activations.
constexpr int64_t kQuantGroup = 128;
// Inputs that share a multiplier of that scale, of int4 weights.
constexpr int64_t kQuantSubgroup = 32;
// Inputs that share an exponent, of mxfp4 weights.
constexpr int64_t kMxfp4Group = 32;
// Inputs that share a scale, of w4a16 weights.
constexpr int64_t kW4A16Group = 32;

// Inputs whose weights, of bf16 that is coded, share three lines.
constexpr int64_t kCodedInputs = 8;

// A weight matrix [n outputs, k inputs] packed into panels of 16 outputs, inputs interleaved in
// pairs:
//   kBf16: [ceil(n/16)][ceil(k/2)][16][2] bf16    kF32: [ceil(n/16)][k][16] f32
// Missing outputs and inputs are zero. Each panel starts on a 64-byte boundary when the matrix
// does. One cache line holds the next two inputs of 16 outputs, so lanes are outputs, no kernel
// ever reduces across lanes, and the same layout serves vector and matrix paths of every
// instruction set.
//
// Integer weights have one f16 scale for each group of 128 inputs of an output: 8.125 and 4.375
// bits a weight. A panel is a sequence of pairs of groups: a line of scales [2][16] f16, then the
// lines of the first and of the second group; an odd last group has none beside it. One stream a
// panel, so that nothing but the order of memory has to be prefetched. A group is one to four
// subgroups of 32 inputs, as many as the inputs need:
//   kInt8: [subgroups][8][16][4] bytes u; a weight is scale * (u - 128), u at least 1
//   kInt4: a line of multipliers [16][4 subgroups] bytes, then [subgroups][4][16][4] bytes; line j
//          of a subgroup has input 8 j + i in the low and 8 j + 4 + i in the high half of byte i.
//          With the multiplier's low 7 bits m, 1 to 15, and its highest bit h a weight is
//          scale * m * (half - 8 + h): levels from -8 to 7 or from -7 to 8, of a scale of its own
//          for each subgroup, and still one number u = m * half + 128 - m * (8 - h) below 256 for
//          which scale * (u - 128) is the weight. Missing subgroups have multipliers 0.
// Unsigned, because VPDPBUSD multiplies an unsigned operand with a signed one, and it is the
// activations that it can broadcast from memory.
//
// MXFP4 has an exponent for each group of 32 inputs of an output: 4.25 bits a weight. A panel is a
// sequence of four groups: a line of their exponents [4][16] bytes, then their lines; the last
// groups may be fewer.
//   kMxfp4F32: [groups][4][16][4] bytes; the four bytes of an output in line j of a group have
//              inputs 8 j to 8 j + 7, four bits each, the lowest first: a sign above a magnitude of
//              {0, 0.5, 1, 1.5, 2, 3, 4, 6} (E2M1). A weight is that times 2^(exponent - 127); a
//              group whose exponent is 255 is NaN.
// With int8 activations it lies as GGUF's blocks of it do (kGguf, below).
//
// W4A16 (compressed-tensors' name: weights of 4 bits, activations that are not quantised) has a
// bf16 scale for each group of 32 inputs of an output: 4.5 bits a weight. A panel is a sequence of
// two groups: a line of their scales [2][16] bf16, then their lines; an odd last group has none
// beside it.
//   kW4A16: [groups][4][16][4] bytes; the four bytes of an output in line j of a group have inputs
//           8 j to 8 j + 7, four bits each, the lowest first: a number from -8 to 7, in two's
//           complement. A weight is that times the scale.
//
// FP8 (E4M3: a sign, four bits of exponent with a bias of 7, three of mantissa) has an f32 scale
// for each group of 128 inputs of an output: 8.25 bits a weight. A panel is a sequence of groups: a
// line of scales [16] f32, then the group's lines.
//   kFp8: [ceil(inputs / 4)][16][4] bytes; the bytes of an output in line j are inputs 4 j, 4 j +
//   2,
//         4 j + 1 and 4 j + 3, so that both the low and the high bytes of the line's 16-bit words
//         are pairs of neighbours. A weight is the scale times the byte's value; a group with a
//         code that is NaN has a NaN scale, whatever its other codes are.
//
// bf16 in 12 bits, without loss: trained weights have few exponents. A panel has a head and then
// steps of 8 inputs, three lines each.
//   kBf16Coded: head: [16] bytes with the upper 7 bits of its 15 commonest exponents, [16] with
//               their lowest bit as the highest of a byte, the number of exceptions as 32 bits, and
//               the exceptions in ascending order, 32 bits each: step * 2^15 + word * 2^8 +
//               exponent; it has room for one exception in 256 weights. Then [steps][192] bytes.
//               The four lines of kBf16 that a step stands for, [4][32] words, have their signs and
//               mantissas in two lines of it: word i of line l in byte i / 8 * 16 + l % 2 * 8 + i %
//               8 of line l / 2, which is where instructions that interleave bytes look for them.
//               The same byte of the third line has the number of the exponent, of the first two
//               lines of kBf16 in its low, of the others in its high half; 15 is an exception's. A
//               panel that has more exceptions than there is room for says so (coded_weights.h) and
//               has nothing else.
//
// Blocks of a GGUF file (gguf_blocks.h) keep their bits and take as many bytes; k is a multiple of
// form.values, and a panel ends on a line. Plain floats, of kGgufF32 alone, lie as in the file,
// block by block of 16 outputs: [k / form.values][16][form.bytes] bytes. Of other types a panel has
// first what a block's scales are multiples of (an f16, two, or the exponent of MXFP4), then, from
// the next line on, the rest of the block by dwords (internal/gguf_layout.h):
//   kGguf, kGgufF32: [blocks][1 or 2][16] f16, or [blocks][16] bytes; [blocks][dwords][16][4] bytes
struct PackedMatrix {
  const std::byte* data = nullptr;
  WeightType type = WeightType::kBf16;
  int64_t n = 0;
  int64_t k = 0;
  GgufForm form = {};  // of kGguf and kGgufF32

  int64_t panels() const { return (n + kPanelOutputs - 1) / kPanelOutputs; }
  int64_t panel_bytes() const {
    const int64_t subgroups = (k + kQuantSubgroup - 1) / kQuantSubgroup;
    const int64_t groups = (k + kQuantGroup - 1) / kQuantGroup;
    switch (type) {
      case WeightType::kBf16:
        return (k + 1) / 2 * 64;
      case WeightType::kF32:
        return k * 64;
      case WeightType::kInt8:
        return (subgroups * 8 + (groups + 1) / 2) * 64;
      case WeightType::kInt4:
        return (subgroups * 4 + groups + (groups + 1) / 2) * 64;
      case WeightType::kMxfp4:  // no matrix is
        break;
      case WeightType::kMxfp4F32:
        return (subgroups * 4 + groups) * 64;
      case WeightType::kW4A16:
        return (subgroups * 4 + (subgroups + 1) / 2) * 64;
      case WeightType::kFp8:
        return (groups + (k + 3) / 4) * 64;
      case WeightType::kBf16Coded:
        // Seven exceptions are in the head's first line, 16 in each other.
        return (1 + (k / 16 + 8) / 16 + (k + kCodedInputs - 1) / kCodedInputs * 3) * 64;
      case WeightType::kGguf:
      case WeightType::kGgufF32:
        return (k / form.values * form.bytes * kPanelOutputs + 63) / 64 * 64;
    }
    return 0;
  }
  int64_t bytes() const { return panels() * panel_bytes(); }
  // `outputs` of them, from a panel on.
  PackedMatrix From(int64_t first_panel, int64_t outputs) const {
    PackedMatrix part = *this;
    if (data != nullptr) part.data += first_panel * panel_bytes();
    part.n = outputs;
    return part;
  }
  static int64_t Bytes(WeightType type, int64_t n, int64_t k) {
    return PackedMatrix{nullptr, type, n, k}.bytes();
  }
};

// Activations as matrix products want them: rows of f32 (kF32) or of bf16 (the other classes),
// zero-padded to this many bytes, a multiple of 64, or of int8 values, zero-padded to whole groups,
// and behind them an ActivationScale for each group (kInt8, kInt8Sums; what follows is left as it
// is). Long
// rows get up to 2 KiB more than they need, so that equal places of neighbouring rows do not
// compete for the same sets of a cache; use it as the stride, too.
int64_t ActivationRowBytes(ActivationType type, int64_t k);

// Of a group of kInt8: its values are x / scale with scale = max |x| / 127, rounded to nearest
// even. A group with a NaN or an infinity has a NaN scale and zero values, one below 2^-119 is
// zero.
struct ActivationScale {
  float scale;
  int32_t correction;  // -128 times the sum of the values: what the weights' 128 adds to a product
};
// Where the scales of a row of kInt8 or kInt8Sums begin.
constexpr int64_t ActivationScalesOffset(int64_t k) {
  return (k + kQuantGroup - 1) / kQuantGroup * kQuantGroup;
}

// kInt8Sums is kInt8 and, behind the scales, -128 times the sum of each 32 values and of each 16,
// as int32; `group` is one of these.
constexpr int64_t GroupSumsOffset(int64_t k, int64_t group) {
  const int64_t values = ActivationScalesOffset(k);
  const int64_t scales = values / kQuantGroup * static_cast<int64_t>(sizeof(ActivationScale));
  return values + scales + (group == 16 ? values / 32 * 4 : 0);
}

struct MatmulArgs {
  const std::byte* x = nullptr;  // activation rows
  int64_t x_stride_bytes = 0;
  const int32_t* x_rows = nullptr;  // [m] row of x for each row of the product; null: 0, 1, 2, ...
  int64_t m = 0;
  PackedMatrix w;
  int64_t panel_begin = 0;  // panels [panel_begin, panel_end) are computed
  int64_t panel_end = 0;
  const float* bias = nullptr;      // [n] or null
  float* y = nullptr;               // y[row * y_stride + output]
  int64_t y_stride = 0;             // in floats
  const int32_t* y_rows = nullptr;  // [m] row of y for each row; null: 0, 1, 2, ...
  // The caches would not hold y until it is read: it is written past them.
  bool y_is_large = false;
};

// What an MLP makes of the sums of gate and up: silu(gate) * up or, clamped,
// (u + 1) * g * sigmoid(alpha * g) with g = min(gate, limit) and u = up within +-limit (gpt-oss).
struct GatedActivation {
  bool clamped = false;
  float alpha = 0.0f;
  float limit = 0.0f;
};

struct GateUpArgs {
  const std::byte* x = nullptr;
  int64_t x_stride_bytes = 0;
  const int32_t* x_rows = nullptr;
  int64_t m = 0;
  PackedMatrix gate;
  PackedMatrix up;
  int64_t panel_begin = 0;
  int64_t panel_end = 0;
  const float* gate_bias = nullptr;  // [n] or null, as up_bias: added to the sums
  const float* up_bias = nullptr;
  GatedActivation activation;
  // Activation rows [m, n]: activation(x gate^T, x up^T), padding zeroed by the call that computes
  // the last panel.
  std::byte* h = nullptr;
  int64_t h_stride_bytes = 0;
  // Of integer weights h is kInt8 or kInt8Sums: eight panels are one group of it, so that
  // panel_begin is a multiple of 8, and panel_end is one or the last.
};

// KV cache of one layer in blocks of 16 tokens. One block holds, for each KV head, a key panel
// [ceil(d/2)][16][2] bf16 (the layout of PackedMatrix, so scores need no reduction across lanes)
// and values [8][d rounded up to 16][2] bf16: two tokens side by side, so that one line gives two
// vectors with one instruction each.
constexpr int64_t kKvBlockTokens = 16;
// Scores are reduced in chunks of this many positions, cut at absolute positions; partial results
// are merged in ascending order. It is part of the summation order: the chunks may be computed
// anywhere.
constexpr int64_t kAttentionChunkTokens = 256;

// In f32 (for reference runs) a key panel is [d][16], values are [16][d rounded up to 16]. In int8
// they are the same of bytes, each after a line of 16 f32 scales: of a token's key, and of its
// value, the largest magnitude / 127.
struct KvLayout {
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  WeightType type = WeightType::kBf16;  // or kF32, kInt8
  // Latent attention: values are the first so many values of a token's key and are not stored
  // beside it. There is one KV head, and no int8. 0: values of head_dim lie behind the keys.
  int64_t latent_values = 0;

  int64_t value_dim() const { return latent_values > 0 ? latent_values : head_dim; }
  // One head, one block.
  int64_t key_bytes() const {
    if (type == WeightType::kBf16) return (head_dim + 1) / 2 * 64;
    return type == WeightType::kF32 ? head_dim * 64 : 64 + (head_dim + 3) / 4 * 64;
  }
  int64_t value_row_elements() const { return (value_dim() + 15) / 16 * 16; }
  int64_t value_bytes() const {
    if (latent_values > 0) return 0;
    const int64_t elements = kKvBlockTokens * value_row_elements();
    if (type == WeightType::kBf16) return elements * 2;
    return type == WeightType::kF32 ? elements * 4 : 64 + elements;
  }
  int64_t head_bytes() const { return key_bytes() + value_bytes(); }
  int64_t block_bytes() const { return num_kv_heads * head_bytes(); }  // one layer
};

// Queries of `rows` consecutive tokens of one sequence, `group` of them for each of `kv_heads` KV
// heads. Chunks go through all heads one after the other, so that memory is read about in its
// order.
struct AttendArgs {
  // Query g of head h and row r, [head_dim]; what comes of it is [value_dim]: q + r * q_row_stride
  // + (h * group + g) * q_stride.
  const float* q = nullptr;
  int64_t q_stride = 0;  // in floats
  int64_t q_row_stride = 0;
  int64_t rows = 1;
  int64_t group = 0;
  float scale = 1.0f;
  KvLayout layout;
  int64_t kv_head = 0;  // the first one
  int64_t kv_heads = 1;
  const std::byte* const* blocks = nullptr;  // block i of the sequence: this layer's block memory
  int64_t context_end = 0;                   // row r sees the positions before context_end + r:
  int64_t window = 0;                        // all of them (0) or the last `window`
};

// Query of a partial result of attention: [value_dim rounded up to 16] sums of exp(score - max) *
// value, then max, then the sum of exp(score - max), which is 0 when there is no position in it.
constexpr int64_t AttentionPartialFloats(int64_t value_dim) {
  return (value_dim + 15) / 16 * 16 + 16;
}
// Rows of a prompt that one call should take: so many queries that a chunk, which the first tile of
// queries brings into the second-level cache, is worth its way (docs/experiments/attention.md).
constexpr int64_t AttentionRows(int64_t group) { return group < 48 ? 48 / group : 1; }
// Queries that one pass over a chunk computes, at most.
constexpr int64_t kMaxAttentionTile = 16;
constexpr int64_t AttentionScratchFloats(int64_t head_dim, WeightType kv = WeightType::kBf16) {
  const int64_t tile =
      kMaxAttentionTile *
      (kAttentionChunkTokens + AttentionPartialFloats(head_dim) + (head_dim + 15) / 16 * 8);
  // A chunk's keys and values in bf16.
  return tile + (kv == WeightType::kInt8 ? kAttentionChunkTokens * ((head_dim + 15) / 16 * 16) : 0);
}
inline int64_t AttentionScratchFloats(const KvLayout& layout) {
  if (layout.latent_values == 0) return AttentionScratchFloats(layout.head_dim, layout.type);
  // A chunk's values, in the order in which a cache of both has them.
  const int64_t values = kAttentionChunkTokens * layout.value_row_elements();
  return AttentionScratchFloats(layout.head_dim) +
         (layout.type == WeightType::kF32 ? values : values / 2);
}

// Sums of byte columns (tracer/eam_collection.h): what add_columns wants, so that 16 bits hold
// every sum of one call: 255 * 257 = 2^16 - 1.
constexpr int64_t kColumnBlock = 64;      // entries are counted in whole blocks
constexpr int kMaxColumnWeight = 127;     // the signed operand of VPMADDUBSW
constexpr int kMaxColumnWeightSum = 257;  // of one call; every weight is at least 1

// Logistic regression learned online (prefetch/predict/blend_predictor.h): rows of 16-bit weights
// in steps of 1 / kWeightSteps. Everything comes in whole blocks.
constexpr int64_t kWeightBlock = 16;
constexpr float kWeightSteps = 4096;  // weights reach from -8 to 8

// Products of one instruction set.
struct ProductKernels {
  void (*matmul)(const MatmulArgs& args) = nullptr;
  void (*gate_up)(const GateUpArgs& args) = nullptr;
};

// Which of several of the same bits are taken for how many rows (product_choice.h).
struct ProductStep {
  int64_t min_rows = 0;
  const char* instructions = "";
  ProductKernels products;
};
constexpr int kMaxProductSteps = 6;
struct ProductSteps {
  ProductStep steps[kMaxProductSteps];  // ascending rows
  int count = 0;
};

struct CpuKernels {
  Isa isa = Isa::kScalar;
  QuantIsa quant_isa = QuantIsa::kScalar;
  NumericsClass numerics = NumericsClass::kF32;

  // out: [rows] activation rows of ActivationRowBytes(type, k), padding zeroed.
  void (*prepare_activations)(const float* x, int64_t x_stride, int64_t rows, int64_t k,
                              ActivationType type, std::byte* out,
                              int64_t out_stride_bytes) = nullptr;
  // Of bf16 and f32 weights. x is of ActivationTypeOf(numerics, w.type), and so is the h of
  // gate_up.
  void (*matmul)(const MatmulArgs& args) = nullptr;
  void (*gate_up)(const GateUpArgs& args) = nullptr;
  // The same of int8 and int4 weights, and of GGUF's blocks with int8 activations.
  void (*quant_matmul)(const MatmulArgs& args) = nullptr;
  void (*quant_gate_up)(const GateUpArgs& args) = nullptr;
  // The same of mxfp4 weights with f32 activations, of which there is one for all classes.
  ProductKernels mxfp4;
  // The same of w4a16 weights, likewise.
  ProductKernels w4a16;
  // The same of GGUF's blocks with f32 activations, likewise.
  ProductKernels gguf;
  // The same of fp8 weights; class kAmxBf16 has kBf16's, on vectors.
  ProductKernels fp8;
  // The same of coded bf16 weights, to the bits of `matmul` and `gate_up` with kBf16.
  ProductKernels coded;
  // By WeightType: what a product with so many rows takes instead of the above.
  std::array<ProductSteps, kNumMatrixTypes> product_steps = {};
  // Those of integers, or of floats, or of one of the types above.
  ProductKernels TableProducts(WeightType type) const {
    if (type == WeightType::kMxfp4F32) return mxfp4;
    if (type == WeightType::kW4A16) return w4a16;
    if (type == WeightType::kGgufF32) return gguf;
    if (type == WeightType::kFp8) return fp8;
    if (type == WeightType::kBf16Coded) return coded;
    return IsQuantized(type) ? ProductKernels{quant_matmul, quant_gate_up}
                             : ProductKernels{matmul, gate_up};
  }
  ProductKernels ProductsFor(WeightType type, int64_t rows) const {
    const ProductSteps& choice = product_steps[static_cast<size_t>(type)];
    for (int i = choice.count - 1; i >= 0; --i) {
      if (rows >= choice.steps[i].min_rows) return choice.steps[i].products;
    }
    return TableProducts(type);
  }

  // out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out) = nullptr;
  // The same of x[i] - mean(x): a LayerNorm without bias.
  void (*layer_norm)(const float* x, const float* weight, float eps, int64_t n,
                     float* out) = nullptr;
  // Half-rotation (GPT-NeoX, Llama): (x[i], x[i+half]) -> (x[i] c - x[i+half] s, x[i+half] c + x[i]
  // s).
  void (*rope)(float* x, const float* cos, const float* sin, int64_t half) = nullptr;
  // y += a * x
  void (*axpy)(float a, const float* x, int64_t n, float* y) = nullptr;
  // out = softmax(x), max-subtracted; returns nothing. In place is allowed.
  void (*softmax)(const float* x, int64_t n, float* out) = nullptr;
  // log(sum(exp(x)))
  float (*log_sum_exp)(const float* x, int64_t n) = nullptr;

  // Writes one token's key and value (head_dim floats each, rounded to the layout's type) of one KV
  // head. With latent_values the value is not looked at.
  void (*store_kv)(const KvLayout& layout, std::byte* block, int64_t kv_head,
                   int64_t token_in_block, const float* key, const float* value) = nullptr;
  // Chunks [chunk_begin, chunk_end) (chunk c covers positions [c, c + 1) * kAttentionChunkTokens)
  // of all queries of `args`, folded into partials [kv_heads][rows][group][AttentionPartialFloats]
  // at partials + (chunk - chunk_begin) * chunk_stride floats; with stride 0 into the same, one
  // after the other. The caller has set them to zero, which is no position. scratch:
  // AttentionScratchFloats of the layout.
  void (*attend_chunks)(const AttendArgs& args, int64_t chunk_begin, int64_t chunk_end,
                        float* partials, int64_t chunk_stride, float* scratch) = nullptr;
  // totals += partials, for `queries` of both. Folding the chunks in ascending order gives the bits
  // of attend_chunks with stride 0.
  void (*fold_partials)(const float* partials, int64_t queries, int64_t value_dim,
                        float* totals) = nullptr;
  // out[i * out_stride ..] = the attention [value_dim] of query i.
  void (*finish_attention)(const float* totals, int64_t queries, int64_t value_dim, float* out,
                           int64_t out_stride) = nullptr;

  // Attention to chosen positions (indexer.h).
  void (*index_scores)(const IndexScoreArgs& args) = nullptr;
  void (*gather_keys)(const GatherKeysArgs& args) = nullptr;

  // Linear attention (delta_net.h).
  void (*delta_rule)(const DeltaRuleArgs& args) = nullptr;
  void (*causal_conv)(const CausalConvArgs& args) = nullptr;
  // y *= the sigmoid, or silu, of gate.
  void (*gate_row)(RowGate kind, const float* gate, int64_t n, float* y) = nullptr;

  // Packs panels [panel_begin, panel_end) of a row-major matrix [n, k] with row stride src_stride
  // elements, of dtype f32, f16 or bf16, into dst (the start of the packed matrix). Rounds to
  // nearest even.
  void (*pack_panels)(const void* src, DType src_dtype, int64_t src_stride, int64_t n, int64_t k,
                      WeightType type, int64_t panel_begin, int64_t panel_end,
                      std::byte* dst) = nullptr;
  // out[0..k) = row `row` of a packed matrix (embedding look-up from the packed head).
  void (*unpack_row)(const PackedMatrix& w, int64_t row, float* out) = nullptr;

  // scores[i] += (sum over c of weights[c] * columns[c][i]) << shift, modulo 2^32, for i in [0, n).
  // n is a multiple of kColumnBlock.
  void (*add_columns)(const uint8_t* const* columns, const uint8_t* weights, int64_t num_columns,
                      int shift, uint32_t* scores, int64_t n) = nullptr;
  // The first i in [begin, n) with float(scores[i]) * scales[i] > threshold, else n. Scores are
  // below 2^31; n is a multiple of 16.
  int64_t (*find_above)(const uint32_t* scores, const float* scales, int64_t begin, int64_t n,
                        float threshold) = nullptr;

  // For rows of weights. y[j] += sum over r of scales[r] * weight(rows[r][j]), in the order of r.
  void (*add_weight_rows)(const int16_t* const* rows, const float* scales, int64_t num_rows,
                          float* y, int64_t n) = nullptr;
  // weight(rows[r][j]) -= steps[r] * error[j], rounded to nearest and saturated. No row twice.
  void (*step_weight_rows)(int16_t* const* rows, const float* steps, int64_t num_rows,
                           const float* error, int64_t n) = nullptr;
  // y = 1 / (1 + exp(-x)); in place is allowed.
  void (*sigmoid)(const float* x, int64_t n, float* y) = nullptr;
  float (*dot)(const float* x, const float* y, int64_t n) = nullptr;
  // shares = keep * shares + (1 - keep) * now; logs = ln(shares + floor) to 1e-5, which must not be
  // below 2^-126.
  void (*decayed_log)(const float* now, float keep, float floor, int64_t n, float* shares,
                      float* logs) = nullptr;
};

// Whether this CPU (and its operating system) can run the instruction set.
bool IsaSupported(Isa isa);
bool QuantIsaSupported(QuantIsa isa);
// The table of one instruction set; CHECKs that it is supported.
const CpuKernels& KernelsFor(Isa isa);
// The table with the products of integer weights of another instruction set, to test and measure
// those that KernelsFor does not choose here. CHECKs that it is supported.
CpuKernels WithQuantIsa(const CpuKernels& kernels, QuantIsa isa);
// The same instruction set's table of class kF32.
const CpuKernels& F32KernelsOf(const CpuKernels& kernels);
// The fastest supported one (which on Intel is kAvx512 even where kAvx512Bf16 is there), or the one
// that the environment variable MOESAIC_ISA names. CPUID is slow in a virtual machine: call it
// once. Throws Error(kInvalidArgument) for an unknown name and Error(kUnsupported) for one that
// this CPU lacks.
const CpuKernels& SelectKernels();
// As above, for a model with such weights: who asks for f32 weights gets class kF32 on every CPU.
const CpuKernels& SelectKernels(WeightType weights);

}  // namespace moesaic
