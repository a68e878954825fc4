// The AVX512-BF16 kernels: matrix products of bf16 activations and bf16 weights by VDPBF16PS. See
// internal/common.h for why this file includes no more than it does.
#include "kernels/cpu/internal/vec_avx512.h"
//
#include "kernels/cpu/internal/tiles.h"
//
#include "kernels/cpu/internal/coded_avx512.h"
//
#include "kernels/cpu/internal/coded_product.h"
#include "kernels/cpu/internal/fp8_product.h"
#include "kernels/cpu/internal/matmul.h"
#include "kernels/cpu/internal/tables.h"

namespace moesaic {
namespace {

// A pair of inputs per step. The instruction takes denormals for zero.
struct Bf16TimesBf16 {
  static constexpr int kSteps = 1;
  static constexpr int64_t kXBytes = 4;
  template <int kStep>
  MOESAIC_INLINE static __m512bh Weights(const std::byte* line) {
    return reinterpret_cast<__m512bh>(_mm512_loadu_si512(line));
  }
  MOESAIC_INLINE static __m512bh OfPairs(PairLine line) { return reinterpret_cast<__m512bh>(line); }
  template <int kStep>
  MOESAIC_INLINE static __m512bh X(const std::byte* x) {
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(LoadAs<int32_t>(x)));
  }
  MOESAIC_INLINE static Vec16 Accumulate(Vec16 sum, __m512bh x, __m512bh w) {
    return {_mm512_dpbf16_ps(sum.v, x, w)};
  }
};

using Bf16Bf16Product = FloatProduct<Bf16TimesBf16, ActivationType::kBf16>;
using Bf16CodedProduct = CodedProduct<Bf16TimesBf16, ActivationType::kBf16>;
using Bf16Fp8Product = Fp8Product<Bf16TimesBf16, ActivationType::kBf16>;
using Bf16F32Product = FloatProduct<Bf16TimesF32, ActivationType::kBf16>;

void MatmulBf16(const MatmulArgs& args) {
  if (args.w.type == WeightType::kBf16) return MatmulOf<Bf16Bf16Product>(args);
  MatmulOf<Bf16F32Product>(args);
}

void GateUpBf16(const GateUpArgs& args) {
  if (args.gate.type == WeightType::kBf16) return GateUpOf<Bf16Bf16Product>(args);
  GateUpOf<Bf16F32Product>(args);
}

}  // namespace

namespace internal {

constinit const ProductKernels kAvx512Bf16Products = {.matmul = MatmulBf16, .gate_up = GateUpBf16};
constinit const ProductKernels kAvx512Bf16CodedProducts = {.matmul = MatmulOf<Bf16CodedProduct>,
                                                           .gate_up = GateUpOf<Bf16CodedProduct>};
constinit const ProductKernels kAvx512Bf16Fp8Products = {.matmul = MatmulOf<Bf16Fp8Product>,
                                                         .gate_up = GateUpOf<Bf16Fp8Product>};

}  // namespace internal
}  // namespace moesaic
