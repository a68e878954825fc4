// Selection of the instruction set.
#include <cstdlib>
#include <set>

#include "core/base/error.h"
#include "kernels/cpu/product_choice.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

// Sets MOESAIC_ISA for a scope.
class ForcedIsa {
 public:
  explicit ForcedIsa(const char* name) {
    const char* before = std::getenv("MOESAIC_ISA");
    had_ = before != nullptr;
    if (had_) before_ = before;
    if (name != nullptr) {
      setenv("MOESAIC_ISA", name, 1);
    } else {
      unsetenv("MOESAIC_ISA");
    }
  }
  ~ForcedIsa() {
    if (had_) {
      setenv("MOESAIC_ISA", before_.c_str(), 1);
    } else {
      unsetenv("MOESAIC_ISA");
    }
  }

 private:
  bool had_ = false;
  std::string before_;
};

TEST(DispatchTest, EveryTableIsComplete) {
  for (const Isa isa : testing_util::SupportedIsas()) {
    const CpuKernels& k = KernelsFor(isa);
    EXPECT_EQ(k.isa, isa);
    EXPECT_EQ(k.numerics, isa == Isa::kAmx          ? NumericsClass::kAmxBf16
                          : isa == Isa::kAvx512Bf16 ? NumericsClass::kBf16
                                                    : NumericsClass::kF32);
    EXPECT_TRUE(k.prepare_activations && k.matmul && k.gate_up && k.quant_matmul &&
                k.quant_gate_up && k.rms_norm && k.layer_norm && k.rope && k.axpy && k.softmax &&
                k.log_sum_exp && k.store_kv && k.attend_chunks && k.fold_partials &&
                k.finish_attention && k.pack_panels && k.unpack_row)
        << IsaName(isa);
  }
}

// No table borrows the products of another: what a forced table runs is the code of its own source
// file (check_isa_objects.sh looks at the instructions in there). AVX512-BF16 and AMX are AVX-512
// but for them.
TEST(DispatchTest, EveryIsaHasItsOwnFunctions) {
  std::set<void*> matmuls, gate_ups, attends;
  for (const Isa isa : testing_util::SupportedIsas()) {
    const CpuKernels& k = KernelsFor(isa);
    EXPECT_TRUE(matmuls.insert(reinterpret_cast<void*>(k.matmul)).second) << IsaName(isa);
    EXPECT_TRUE(gate_ups.insert(reinterpret_cast<void*>(k.gate_up)).second) << IsaName(isa);
    const bool own = attends.insert(reinterpret_cast<void*>(k.attend_chunks)).second;
    EXPECT_EQ(own, isa != Isa::kAvx512Bf16) << IsaName(isa);
  }
}

TEST(DispatchTest, EveryQuantIsaHasItsOwnFunctions) {
  std::set<void*> matmuls, gate_ups;
  for (const QuantIsa isa : testing_util::SupportedQuantIsas()) {
    const CpuKernels k = WithQuantIsa(KernelsFor(Isa::kScalar), isa);
    EXPECT_EQ(k.quant_isa, isa);
    EXPECT_TRUE(matmuls.insert(reinterpret_cast<void*>(k.quant_matmul)).second);
    EXPECT_TRUE(gate_ups.insert(reinterpret_cast<void*>(k.quant_gate_up)).second);
  }
}

// The fastest one whose registers the table uses anyway.
TEST(DispatchTest, TablesHaveTheirQuantProducts) {
  for (const Isa isa : testing_util::SupportedIsas()) {
    QuantIsa expected = QuantIsa::kScalar;
    for (const QuantIsa quant_isa : testing_util::SupportedQuantIsas()) {
      if (isa == Isa::kScalar || (isa < Isa::kAvx512 && quant_isa >= QuantIsa::kAvx512)) break;
      if (quant_isa == QuantIsa::kAmx) break;
      expected = quant_isa;
    }
    EXPECT_EQ(KernelsFor(isa).quant_isa, expected) << IsaName(isa);
    EXPECT_EQ(KernelsFor(isa).quant_matmul, WithQuantIsa(KernelsFor(isa), expected).quant_matmul);
  }
}

TEST(DispatchTest, IntegersOfCpusThatThisOneIsNot) {
  const auto choose = [](Isa isa, std::vector<QuantIsa> supported) {
    return DefaultQuantIsa(isa, [&](QuantIsa quant_isa) {
      return std::find(supported.begin(), supported.end(), quant_isa) != supported.end();
    });
  };
  using enum QuantIsa;
  EXPECT_EQ(choose(Isa::kScalar, {kScalar, kAvx2, kAvx512}), kScalar);
  EXPECT_EQ(choose(Isa::kAvx2, {kScalar, kAvx2, kAvx512}), kAvx2);
  EXPECT_EQ(choose(Isa::kAvx2, {kScalar, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni}), kAvxVnni);
  EXPECT_EQ(choose(Isa::kAvx512, {kScalar, kAvx2, kAvx512}), kAvx512);  // Skylake-X
  EXPECT_EQ(choose(Isa::kAvx512, {kScalar, kAvx2, kAvx512, kAvx512Vnni}), kAvx512Vnni);
  EXPECT_EQ(choose(Isa::kAmx, {kScalar, kAvx2, kAvxVnni, kAvx512, kAvx512Vnni, kAmx}), kAvx512Vnni);
}

TEST(DispatchTest, ForcedIsaIsTaken) {
  for (const Isa isa : testing_util::SupportedIsas()) {
    const ForcedIsa forced(IsaName(isa));
    EXPECT_EQ(&SelectKernels(), &KernelsFor(isa));
  }
}

TEST(DispatchTest, TheFastestIsTheDefault) {
  for (const char* name : {static_cast<const char*>(nullptr), ""}) {
    const ForcedIsa forced(name);
    Isa fastest = testing_util::SupportedIsas().back();
#if defined(__x86_64__)
    // Its bf16 dot product has half the rate of its multiply-adds.
    if (fastest == Isa::kAvx512Bf16 && __builtin_cpu_is("intel")) fastest = Isa::kAvx512;
#endif
    EXPECT_EQ(SelectKernels().isa, fastest);
  }
}

TEST(DispatchTest, F32WeightsAreComputedInTheirClass) {
  for (const Isa isa : testing_util::SupportedIsas()) {
    const ForcedIsa forced(IsaName(isa));
    EXPECT_EQ(SelectKernels(WeightType::kF32).numerics, NumericsClass::kF32) << IsaName(isa);
    for (const WeightType type : {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
      EXPECT_EQ(&SelectKernels(type), &KernelsFor(isa)) << IsaName(isa);
    }
  }
}

TEST(DispatchTest, UnknownNameIsAnError) {
  const ForcedIsa forced("sse9");
  try {
    SelectKernels();
    FAIL() << "sse9 was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(e.what()).find("sse9"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("scalar"), std::string::npos);
  }
}

TEST(DispatchTest, MissingIsaIsAnError) {
  for (const Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    if (IsaSupported(isa)) continue;
    const ForcedIsa forced(IsaName(isa));
    try {
      SelectKernels();
      ADD_FAILURE() << IsaName(isa) << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    }
  }
}

#if defined(__x86_64__)
// The compiler's own reading of CPUID and XCR0.
TEST(DispatchTest, AgreesWithTheCompilersDetection) {
  EXPECT_EQ(IsaSupported(Isa::kAvx2),
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
  EXPECT_EQ(IsaSupported(Isa::kAvx512),
            __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"));
  EXPECT_EQ(IsaSupported(Isa::kAvx512Bf16),
            IsaSupported(Isa::kAvx512) && __builtin_cpu_supports("avx512bf16"));
  EXPECT_EQ(QuantIsaSupported(QuantIsa::kAvx512Vnni),
            IsaSupported(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni"));
}
#endif

}  // namespace
}  // namespace moesaic
