// Whether the tile registers of AMX can be used here.
#pragma once

#include "kernels/cpu/internal/tables.h"

namespace moesaic {

// Which kinds of tile products this CPU and its operating system have: the CPUID bits, the
// permission for the tile data, which Linux wants to be asked for (once for the process, here), and
// ProductsAreRight. Computed at the first call.
struct AmxSupport {
  bool bf16 = false;
  bool integers = false;
};
const AmxSupport& DetectAmx();

// Whether products agree with the scalar ones on a problem of all kinds of tiles whose sums are
// exact in any order. Not all virtual machines that show the CPUID bits run the instructions, and
// wrong tiles would show as bad text only.
bool ProductsAreRight(const ProductKernels& products, NumericsClass numerics, WeightType weights);

}  // namespace moesaic
