// Which instruction set multiplies how many rows: the choices that keep every bit.
#pragma once

#include <span>
#include <vector>

#include "core/base/function_ref.h"
#include "core/base/kernel_choice.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

struct ProductOption {
  const char* instructions;  // IsaName or QuantIsaName
  ProductKernels products;
};

// The products with weights of this type that this CPU has, that give the bits of those of the
// table and that use no wider registers than it; the table's own is among them. Ascending width.
std::vector<ProductOption> ProductOptions(const CpuKernels& kernels, WeightType type);

// Whose products of integer weights the table of an instruction set has on a CPU that supports
// those that `supported` says. kAmx is a choice by rows and never the table's own.
QuantIsa DefaultQuantIsa(Isa isa, FunctionRef<bool(QuantIsa)> supported);

// Makes the table take the products of the last step whose rows a product has. Returns false, and
// changes nothing, when a step names no option, when rows do not ascend from at most 1, and when
// there are too many steps.
bool ChooseProducts(WeightType type, std::span<const KernelStep> steps, CpuKernels& kernels);

// Those choices of a profile that are of the table's class and possible with it; the rest is left
// out.
CpuKernels WithChoices(const CpuKernels& kernels, std::span<const KernelChoice> choices);

}  // namespace moesaic
