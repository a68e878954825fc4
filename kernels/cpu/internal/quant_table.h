// The products of integer weights of one instruction set; included after its Vec16 and Ints16.
#pragma once

#include "kernels/cpu/internal/gguf_int_product.h"
#include "kernels/cpu/internal/quant_tiles.h"
//
#include "kernels/cpu/internal/matmul.h"
#include "kernels/cpu/internal/tables.h"

namespace moesaic {
namespace {

void QuantMatmul(const MatmulArgs& args) {
  if (args.w.type == WeightType::kGguf) return MatmulOf<GgufIntProduct>(args);
  if (args.w.type == WeightType::kInt8) return MatmulOf<QuantProduct<WeightType::kInt8>>(args);
  MatmulOf<QuantProduct<WeightType::kInt4>>(args);
}

void QuantGateUp(const GateUpArgs& args) {
  if (args.gate.type == WeightType::kGguf) return GateUpOf<GgufIntProduct>(args);
  if (args.gate.type == WeightType::kInt8) return GateUpOf<QuantProduct<WeightType::kInt8>>(args);
  GateUpOf<QuantProduct<WeightType::kInt4>>(args);
}

constexpr ProductKernels kQuantProducts = {.matmul = QuantMatmul, .gate_up = QuantGateUp};

}  // namespace
}  // namespace moesaic
