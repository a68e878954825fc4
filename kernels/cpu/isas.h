// The instruction sets that there are kernels for, in ascending order of preference: for whoever
// goes over all of them. Which of them this CPU has says IsaSupported.
#pragma once

#include <span>

#include "kernels/cpu/kernels.h"

namespace moesaic {

std::span<const Isa> AllIsas();
std::span<const QuantIsa> AllQuantIsas();

}  // namespace moesaic
