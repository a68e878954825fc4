#include "kernels/cpu/product_choice.h"

#include <algorithm>
#include <string_view>

#include "kernels/cpu/internal/amx_tables.h"
#include "kernels/cpu/internal/tables.h"
#include "kernels/cpu/isas.h"

namespace moesaic {
std::vector<ProductOption> ProductOptions(const CpuKernels& kernels, WeightType type) {
  std::vector<ProductOption> options;
  if (IsQuantized(type)) {
    for (const QuantIsa isa : AllQuantIsas()) {
      const bool own = isa == kernels.quant_isa;
      const bool narrow = isa != QuantIsa::kScalar && isa < kernels.quant_isa &&
                          isa != QuantIsa::kAvx512;  // VNNI takes one instruction for its four
      const bool tiles = isa == QuantIsa::kAmx && kernels.isa == Isa::kAmx;
      if (!own && !((narrow || tiles) && QuantIsaSupported(isa))) continue;
      const CpuKernels table = WithQuantIsa(kernels, isa);
      options.push_back({QuantIsaName(isa), {table.quant_matmul, table.quant_gate_up}});
    }
    return options;
  }
  // One for all classes, or for a class.
  const bool coded = type == WeightType::kBf16Coded;
  if (TraitsOf(type).activations || type == WeightType::kFp8 || coded) {
#if defined(__x86_64__)
    if (kernels.isa == Isa::kAmx && coded) {
      options.push_back({IsaName(Isa::kAvx512), internal::kAmxCodedOrderProducts});
    }
#endif
    options.push_back({IsaName(kernels.isa), kernels.TableProducts(type)});
    return options;
  }
  if (kernels.isa == Isa::kAvx512) {
    const CpuKernels& narrow = KernelsFor(Isa::kAvx2);
    options.push_back({IsaName(narrow.isa), {narrow.matmul, narrow.gate_up}});
  }
#if defined(__x86_64__)
  if (kernels.isa == Isa::kAmx && type == WeightType::kBf16) {
    options.push_back({IsaName(Isa::kAvx512), internal::kAmxOrderProducts});
  }
#endif
  options.push_back({IsaName(kernels.isa), {kernels.matmul, kernels.gate_up}});
  return options;
}

QuantIsa DefaultQuantIsa(Isa isa, FunctionRef<bool(QuantIsa)> supported) {
  if (isa == Isa::kScalar) return QuantIsa::kScalar;
  if (isa < Isa::kAvx512)
    return supported(QuantIsa::kAvxVnni) ? QuantIsa::kAvxVnni : QuantIsa::kAvx2;
  return supported(QuantIsa::kAvx512Vnni) ? QuantIsa::kAvx512Vnni : QuantIsa::kAvx512;
}

bool ChooseProducts(WeightType type, std::span<const KernelStep> steps, CpuKernels& kernels) {
  const std::vector<ProductOption> options = ProductOptions(kernels, type);
  if (steps.size() > static_cast<size_t>(kMaxProductSteps)) return false;
  ProductSteps chosen;
  for (const KernelStep& step : steps) {
    const auto option =
        std::find_if(options.begin(), options.end(), [&](const ProductOption& candidate) {
          return candidate.instructions == step.instructions;
        });
    const bool ascends = chosen.count == 0
                             ? step.min_rows <= 1
                             : step.min_rows > chosen.steps[chosen.count - 1].min_rows;
    if (option == options.end() || !ascends) return false;
    chosen.steps[chosen.count++] = {step.min_rows, option->instructions, option->products};
  }
  kernels.product_steps[static_cast<size_t>(type)] = chosen;
  return true;
}

CpuKernels WithChoices(const CpuKernels& kernels, std::span<const KernelChoice> choices) {
  CpuKernels table = kernels;
  for (const KernelChoice& choice : choices) {
    if (choice.numerics != NumericsClassName(kernels.numerics)) continue;
    for (const WeightTraits& traits : kWeightTypes) {
      const bool meant = choice.weights == traits.name && IsOfMatrices(traits.type);
      if (meant) ChooseProducts(traits.type, choice.steps, table);
    }
  }
  return table;
}

}  // namespace moesaic
