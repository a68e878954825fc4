// The table of an instruction set of class kF32; included after Vec16 and the columns
// of that instruction set.
#pragma once

#include "kernels/cpu/internal/attention.h"
#include "kernels/cpu/internal/tiles.h"
//
#include "kernels/cpu/internal/coded_product.h"
#include "kernels/cpu/internal/delta_net.h"
#include "kernels/cpu/internal/fp8_product.h"
#include "kernels/cpu/internal/gguf_product.h"
#include "kernels/cpu/internal/indexer.h"
#include "kernels/cpu/internal/matmul.h"
#include "kernels/cpu/internal/packing.h"
#include "kernels/cpu/internal/regression.h"
#include "kernels/cpu/internal/rows.h"

namespace moesaic {
namespace {

using F32Bf16Product = FloatProduct<F32TimesBf16, ActivationType::kF32>;
using F32F32Product = FloatProduct<F32TimesF32, ActivationType::kF32>;
using Mxfp4Product = FourBitProduct<Mxfp4Format>;
using W4A16Product = FourBitProduct<W4A16Format>;
using F32CodedProduct = CodedProduct<F32TimesBf16, ActivationType::kF32>;
using F32Fp8Product = Fp8Product<F32TimesBf16, ActivationType::kF32>;

void MatmulF32(const MatmulArgs& args) {
  if (args.w.type == WeightType::kBf16) return MatmulOf<F32Bf16Product>(args);
  MatmulOf<F32F32Product>(args);
}

void GateUpF32(const GateUpArgs& args) {
  if (args.gate.type == WeightType::kBf16) return GateUpOf<F32Bf16Product>(args);
  GateUpOf<F32F32Product>(args);
}

constexpr CpuKernels F32Table(Isa isa) {
  return {.isa = isa,
          .numerics = NumericsClass::kF32,
          .prepare_activations = PrepareActivations,
          .matmul = MatmulF32,
          .gate_up = GateUpF32,
          .mxfp4 = {.matmul = MatmulOf<Mxfp4Product>, .gate_up = GateUpOf<Mxfp4Product>},
          .w4a16 = {.matmul = MatmulOf<W4A16Product>, .gate_up = GateUpOf<W4A16Product>},
          .gguf = {.matmul = MatmulOf<GgufProduct>, .gate_up = GateUpOf<GgufProduct>},
          .fp8 = {.matmul = MatmulOf<F32Fp8Product>, .gate_up = GateUpOf<F32Fp8Product>},
          .coded = {.matmul = MatmulOf<F32CodedProduct>, .gate_up = GateUpOf<F32CodedProduct>},
          .rms_norm = RmsNorm,
          .layer_norm = LayerNorm,
          .rope = Rope,
          .axpy = Axpy,
          .softmax = Softmax,
          .log_sum_exp = LogSumExp,
          .store_kv = StoreKv,
          .attend_chunks = AttendChunks,
          .fold_partials = FoldPartials,
          .finish_attention = FinishAttention,
          .index_scores = IndexScores,
          .gather_keys = GatherKeys,
          .delta_rule = DeltaRule,
          .causal_conv = CausalConv,
          .gate_row = GateRow,
          .pack_panels = PackPanels,
          .unpack_row = UnpackRow,
          .add_columns = AddColumns,
          .find_above = FindAbove,
          .add_weight_rows = AddWeightRows,
          .step_weight_rows = StepWeightRows,
          .sigmoid = Sigmoid,
          .dot = Dot,
          .decayed_log = DecayedLog};
}

}  // namespace
}  // namespace moesaic
