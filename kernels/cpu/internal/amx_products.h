// The products of one implementation of Tiles. Included after Vec16, DecodeHalf (coded_*.h),
// Ints16, Tiles, quant_tiles.h and matmul.h.
#pragma once

#include "kernels/cpu/internal/amx_bf16.h"
#include "kernels/cpu/internal/amx_gguf.h"
#include "kernels/cpu/internal/amx_integers.h"

namespace moesaic {
namespace {

void AmxMatmul(const MatmulArgs& args) {
  if (args.w.type == WeightType::kF32) {
    return MatmulOf<FloatProduct<Bf16TimesF32, ActivationType::kBf16>>(args);
  }
  MatmulOf<AmxBf16Product>(args);
  Tiles::Release();
}

void AmxGateUp(const GateUpArgs& args) {
  if (args.gate.type == WeightType::kF32) {
    return GateUpOf<FloatProduct<Bf16TimesF32, ActivationType::kBf16>>(args);
  }
  GateUpOf<AmxBf16Product>(args);
  Tiles::Release();
}

void AmxCodedMatmul(const MatmulArgs& args) {
  MatmulOf<AmxCodedProduct>(args);
  Tiles::Release();
}

void AmxCodedGateUp(const GateUpArgs& args) {
  GateUpOf<AmxCodedProduct>(args);
  Tiles::Release();
}

void AmxQuantMatmul(const MatmulArgs& args) {
  if (args.w.type == WeightType::kGguf) return AmxGgufMatmul(args);
  args.w.type == WeightType::kInt8 ? AmxQuantMatmulOf<WeightType::kInt8>(args)
                                   : AmxQuantMatmulOf<WeightType::kInt4>(args);
}

void AmxQuantGateUp(const GateUpArgs& args) {
  if (args.gate.type == WeightType::kGguf) return AmxGgufGateUp(args);
  args.gate.type == WeightType::kInt8 ? AmxQuantGateUpOf<WeightType::kInt8>(args)
                                      : AmxQuantGateUpOf<WeightType::kInt4>(args);
}

constexpr ProductKernels kAmxBf16 = {.matmul = AmxMatmul, .gate_up = AmxGateUp};
constexpr ProductKernels kAmxCoded = {.matmul = AmxCodedMatmul, .gate_up = AmxCodedGateUp};
constexpr ProductKernels kAmxIntegers = {.matmul = AmxQuantMatmul, .gate_up = AmxQuantGateUp};

}  // namespace
}  // namespace moesaic
