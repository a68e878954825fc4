// Which instruction sets this CPU has, and which table is used.
#include <cstdlib>
#include <string>

#include "core/base/check.h"
#include "core/base/error.h"
#include "kernels/cpu/amx_support.h"
#include "kernels/cpu/internal/amx_tables.h"
#include "kernels/cpu/internal/tables.h"
#include "kernels/cpu/isas.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/product_choice.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace moesaic {
namespace {

constexpr Isa kAllIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx};
constexpr QuantIsa kAllQuantIsas[] = {QuantIsa::kScalar, QuantIsa::kAvx2,       QuantIsa::kAvxVnni,
                                      QuantIsa::kAvx512, QuantIsa::kAvx512Vnni, QuantIsa::kAmx};

#if defined(__x86_64__)
struct CpuId {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

CpuId ReadCpuId(uint32_t leaf, uint32_t subleaf) {
  CpuId r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx,
                    &r.edx);  // zeros when there is no such leaf
  return r;
}

// The register states that the operating system saves on a context switch.
uint64_t EnabledStates() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Intel SDM volume 1, 14.3 and 15.2-15.3: OSXSAVE, then XCR0, then the feature bits.
bool All(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

bool CpuHas(Isa isa) {
  const CpuId base = ReadCpuId(1, 0);
  if (!All(base.ecx, 1u << 27)) return false;
  const uint64_t states = EnabledStates();
  const CpuId extended = ReadCpuId(7, 0);
  const bool avx2 = All(states, 0x6) &&
                    All(base.ecx, 1u << 12 | 1u << 28 | 1u << 29) &&  // FMA AVX F16C
                    All(extended.ebx, 1u << 5);
  // Every CPU with AVX-512 F, DQ, BW and VL that is not a Xeon Phi has CD as well.
  const bool avx512 = avx2 && All(states, 0xe6) &&
                      All(extended.ebx, 1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31);
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return avx2;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx512Bf16:
      return avx512 && extended.eax >= 1 && All(ReadCpuId(7, 1).eax, 1u << 5);
    case Isa::kAmx:
      return CpuHas(Isa::kAvx512Bf16) && DetectAmx().bf16;
  }
  return false;
}
#endif

// VDPBF16PS is half a multiply-add's rate in FLOP/s on Intel's cores (measured, docs/benchmarks.md;
// they keep their bf16 speed for AMX), so that class kF32 is there both faster and more accurate.
// AMD's Zen 4 and 5 run it at twice that rate.
bool SlowBf16Dot() {
#if defined(__x86_64__)
  const CpuId vendor = ReadCpuId(0, 0);
  return vendor.ebx == signature_INTEL_ebx && vendor.ecx == signature_INTEL_ecx &&
         vendor.edx == signature_INTEL_edx;
#else
  return false;
#endif
}

#if defined(__x86_64__)
bool CpuHas(QuantIsa isa) {
  switch (isa) {
    case QuantIsa::kScalar:
      return true;
    case QuantIsa::kAvx2:
      return CpuHas(Isa::kAvx2);
    case QuantIsa::kAvxVnni:
      return CpuHas(Isa::kAvx2) && ReadCpuId(7, 0).eax >= 1 && All(ReadCpuId(7, 1).eax, 1u << 4);
    case QuantIsa::kAvx512:
      return CpuHas(Isa::kAvx512);
    case QuantIsa::kAvx512Vnni:
      return CpuHas(Isa::kAvx512) && All(ReadCpuId(7, 0).ecx, 1u << 11);
    case QuantIsa::kAmx:
      return DetectAmx().integers;
  }
  return false;
}
#endif

const ProductKernels& QuantProducts(QuantIsa isa) {
  CHECK(QuantIsaSupported(isa));
#if defined(__x86_64__)
  switch (isa) {
    case QuantIsa::kScalar:
      break;
    case QuantIsa::kAvx2:
      return internal::kQuantAvx2;
    case QuantIsa::kAvxVnni:
      return internal::kQuantAvxVnni;
    case QuantIsa::kAvx512:
      return internal::kQuantAvx512;
    case QuantIsa::kAvx512Vnni:
      return internal::kQuantAvx512Vnni;
    case QuantIsa::kAmx:
      return internal::kQuantAmx;
  }
#endif
  return internal::kQuantScalar;
}

CpuKernels MakeKernels(Isa isa) {
  CpuKernels table = internal::kScalarKernels;
#if defined(__x86_64__)
  if (isa == Isa::kAvx2) table = internal::kAvx2Kernels;
  if (isa >= Isa::kAvx512) table = internal::kAvx512Kernels;
  if (isa == Isa::kAvx512Bf16 || isa == Isa::kAmx) {
    const bool tiles = isa == Isa::kAmx;
    const ProductKernels& products =
        tiles ? internal::kAmxBf16Products : internal::kAvx512Bf16Products;
    table.isa = isa;
    table.numerics = tiles ? NumericsClass::kAmxBf16 : NumericsClass::kBf16;
    table.matmul = products.matmul;
    table.gate_up = products.gate_up;
    table.coded = tiles ? internal::kAmxCodedProducts : internal::kAvx512Bf16CodedProducts;
    table.fp8 = internal::kAvx512Bf16Fp8Products;
    if (tiles) {
      table.attend_chunks = internal::kAmxAttendChunks;
      table.index_scores = internal::kAmxIndexScores;
    }
  }
#endif
  table =
      WithQuantIsa(table, DefaultQuantIsa(isa, [](QuantIsa q) { return QuantIsaSupported(q); }));
  // Until `moesaic profile` has measured it (docs/benchmarks.md).
  if (isa == Isa::kAmx) {
    const KernelStep steps[] = {{1, IsaName(Isa::kAvx512)}, {5, IsaName(Isa::kAmx)}};
    CHECK(ChooseProducts(WeightType::kBf16, steps, table));
    const KernelStep coded_steps[] = {{1, IsaName(Isa::kAvx512)}, {3, IsaName(Isa::kAmx)}};
    CHECK(ChooseProducts(WeightType::kBf16Coded, coded_steps, table));
    if (QuantIsaSupported(QuantIsa::kAmx)) {
      const char* const vectors = QuantIsaName(table.quant_isa);
      const char* const tiles = QuantIsaName(QuantIsa::kAmx);
      const KernelStep int8_steps[] = {{1, vectors}, {7, tiles}};
      CHECK(ChooseProducts(WeightType::kInt8, int8_steps, table));
      const KernelStep int4_steps[] = {{1, vectors}, {6, tiles}};
      CHECK(ChooseProducts(WeightType::kInt4, int4_steps, table));
      const KernelStep block_steps[] = {{1, vectors}, {9, tiles}};
      CHECK(ChooseProducts(WeightType::kGguf, block_steps, table));
    }
  }
  return table;
}

std::string SupportedNames() {
  std::string names;
  for (const Isa isa : kAllIsas) {
    if (IsaSupported(isa)) names += (names.empty() ? "" : ", ") + std::string(IsaName(isa));
  }
  return names;
}

}  // namespace

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "unknown";
}

const char* QuantIsaName(QuantIsa isa) {
  switch (isa) {
    case QuantIsa::kScalar:
      return "scalar";
    case QuantIsa::kAvx2:
      return "avx2";
    case QuantIsa::kAvxVnni:
      return "avx_vnni";
    case QuantIsa::kAvx512:
      return "avx512";
    case QuantIsa::kAvx512Vnni:
      return "avx512_vnni";
    case QuantIsa::kAmx:
      return "amx";
  }
  return "unknown";
}

const char* NumericsClassName(NumericsClass numerics) {
  switch (numerics) {
    case NumericsClass::kF32:
      return "f32";
    case NumericsClass::kBf16:
      return "bf16";
    case NumericsClass::kAmxBf16:
      return "amx_bf16";
  }
  return "unknown";
}

ActivationType ActivationTypeOf(NumericsClass numerics, WeightType weights) {
  if (const auto own = TraitsOf(weights).activations) return *own;
  return numerics == NumericsClass::kF32 ? ActivationType::kF32 : ActivationType::kBf16;
}

int64_t ActivationRowBytes(ActivationType type, int64_t k) {
  int64_t bytes = k * (type == ActivationType::kF32 ? 4 : 2);
  if (type == ActivationType::kInt8) {
    const int64_t values = ActivationScalesOffset(k);
    bytes = values + values / kQuantGroup * int64_t{sizeof(ActivationScale)};
  }
  if (type == ActivationType::kInt8Sums) bytes = GroupSumsOffset(k, 16) + (k + 127) / 128 * 32;
  int64_t lines = (bytes + 63) / 64;
  if (type == ActivationType::kInt8 || type == ActivationType::kInt8Sums) {
    return (lines | 1) * 64;  // as below, and simpler
  }
  // A tile reads a stretch of up to 32 lines of 12 rows at once. With rows a multiple of 4 KiB
  // apart they would all want the same sets of a level 1 cache (64 sets of 12 ways); 16 lines off
  // they spread over all of them.
  if (lines >= 32) lines += (48 - lines % 32) % 32;
  return lines * 64;
}

std::span<const Isa> AllIsas() { return kAllIsas; }
std::span<const QuantIsa> AllQuantIsas() { return kAllQuantIsas; }

bool IsaSupported(Isa isa) {
#if defined(__x86_64__)
  return CpuHas(isa);
#else
  return isa == Isa::kScalar;
#endif
}

bool QuantIsaSupported(QuantIsa isa) {
#if defined(__x86_64__)
  return CpuHas(isa);
#else
  return isa == QuantIsa::kScalar;
#endif
}

const CpuKernels& KernelsFor(Isa isa) {
  CHECK(IsaSupported(isa));
  switch (isa) {
    case Isa::kScalar:
      break;
    case Isa::kAvx2: {
      static const CpuKernels kernels = MakeKernels(Isa::kAvx2);
      return kernels;
    }
    case Isa::kAvx512: {
      static const CpuKernels kernels = MakeKernels(Isa::kAvx512);
      return kernels;
    }
    case Isa::kAvx512Bf16: {
      static const CpuKernels kernels = MakeKernels(Isa::kAvx512Bf16);
      return kernels;
    }
    case Isa::kAmx: {
      static const CpuKernels kernels = MakeKernels(Isa::kAmx);
      return kernels;
    }
  }
  static const CpuKernels kernels = MakeKernels(Isa::kScalar);
  return kernels;
}

CpuKernels WithQuantIsa(const CpuKernels& kernels, QuantIsa isa) {
  CpuKernels table = kernels;
  table.quant_isa = isa;
  table.quant_matmul = QuantProducts(isa).matmul;
  table.quant_gate_up = QuantProducts(isa).gate_up;
  for (const WeightTraits& traits : kWeightTypes) {
    const bool integers = IsQuantized(traits.type) && IsOfMatrices(traits.type);
    if (integers) table.product_steps[static_cast<size_t>(traits.type)] = {};
  }
  return table;
}

const CpuKernels& F32KernelsOf(const CpuKernels& kernels) {
  return kernels.numerics != NumericsClass::kF32 ? KernelsFor(Isa::kAvx512) : kernels;
}

const CpuKernels& SelectKernels() {
  const char* forced = std::getenv("MOESAIC_ISA");
  if (forced == nullptr || *forced == '\0') {
    Isa best = Isa::kScalar;
    for (const Isa isa : kAllIsas) {
      if (isa == Isa::kAvx512Bf16 && SlowBf16Dot()) continue;
      if (IsaSupported(isa)) best = isa;
    }
    return KernelsFor(best);
  }
  for (const Isa isa : kAllIsas) {
    if (IsaName(isa) != std::string(forced)) continue;
    if (!IsaSupported(isa)) {
      Fail(ErrorKind::kUnsupported,
           "MOESAIC_ISA={}: this CPU (or its operating system) cannot run it; it has {}", forced,
           SupportedNames());
    }
    return KernelsFor(isa);
  }
  Fail(ErrorKind::kInvalidArgument, "MOESAIC_ISA={}: unknown instruction set; this CPU has {}",
       forced, SupportedNames());
}

const CpuKernels& SelectKernels(WeightType weights) {
  return weights == WeightType::kF32 ? F32KernelsOf(SelectKernels()) : SelectKernels();
}

}  // namespace moesaic
