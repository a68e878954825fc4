#include "kernels/cpu/amx_support.h"

#include <vector>

#include "core/base/aligned_buffer.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace moesaic {
namespace {

#if defined(__x86_64__)
// ARCH_REQ_XCOMP_PERM of <asm/prctl.h>, which older headers lack, and the feature number of the
// tile data (Linux, Documentation/arch/x86/xstate.rst).
constexpr long kRequestPermission = 0x1023;
constexpr long kTileData = 18;

bool TileDataPermitted() { return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0; }

AmxSupport Detect() {
  uint32_t eax, ebx, ecx, edx;
  if (!IsaSupported(Isa::kAvx512) || __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) {
    return {};
  }
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr uint32_t kTileStates = 0x60000;  // configuration and data
  const bool tiles = (edx >> 24 & 1) != 0 && (low & kTileStates) == kTileStates;
  if (!tiles || !TileDataPermitted()) return {};
  AmxSupport support;
  support.bf16 =
      (edx >> 22 & 1) != 0 &&
      ProductsAreRight(internal::kAmxBf16Products, NumericsClass::kAmxBf16, WeightType::kBf16);
  // Its source is compiled with VNNI as well.
  support.integers =
      (edx >> 25 & 1) != 0 && QuantIsaSupported(QuantIsa::kAvx512Vnni) &&
      ProductsAreRight(internal::kQuantAmx, NumericsClass::kF32, WeightType::kInt8) &&
      ProductsAreRight(internal::kQuantAmx, NumericsClass::kF32, WeightType::kInt4);
  return support;
}
#else
AmxSupport Detect() { return {}; }
#endif

}  // namespace

const AmxSupport& DetectAmx() {
  static const AmxSupport support = Detect();
  return support;
}

bool ProductsAreRight(const ProductKernels& products, NumericsClass numerics, WeightType weights) {
  const CpuKernels& reference = internal::kScalarKernels;
  // A tile and a half of panels and of steps, rows for tiles of different height.
  constexpr int64_t kRows = 41, kN = 40, kK = 80;
  // Small integers: bf16 holds them, a product of them and their sums are exact.
  const auto integers = [](int64_t count, int64_t factor) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      values[static_cast<size_t>(i)] = static_cast<float>(i * factor % 15 - 7);
    }
    return values;
  };
  const std::vector<float> x = integers(kRows * kK, 37);
  const std::vector<float> w = integers(kN * kK, 11);
  PackedMatrix matrix{nullptr, weights, kN, kK};
  AlignedBuffer packed(static_cast<size_t>(PackedMatrix::Bytes(weights, kN, kK)));
  matrix.data = packed.data();
  reference.pack_panels(w.data(), DType::kF32, kK, kN, kK, weights, 0, matrix.panels(),
                        packed.data());
  const auto multiply = [&](const ProductKernels& kernels, ActivationType type) {
    const int64_t stride = ActivationRowBytes(type, kK);
    AlignedBuffer rows(static_cast<size_t>(kRows * stride));
    reference.prepare_activations(x.data(), kK, kRows, kK, type, rows.data(), stride);
    std::vector<float> y(static_cast<size_t>(kRows * kN));
    kernels.matmul({.x = rows.data(),
                    .x_stride_bytes = stride,
                    .m = kRows,
                    .w = matrix,
                    .panel_end = matrix.panels(),
                    .y = y.data(),
                    .y_stride = kN});
    return y;
  };
  const ProductKernels scalar = IsQuantized(weights) ? internal::kQuantScalar
                                                     : ProductKernels{.matmul = reference.matmul,
                                                                      .gate_up = reference.gate_up};
  return multiply(products, ActivationTypeOf(numerics, weights)) ==
         multiply(scalar, ActivationTypeOf(reference.numerics, weights));
}

}  // namespace moesaic
