// The kernels of AMX where there is no AMX, for tests: slow.
#pragma once

#include "kernels/cpu/kernels.h"

namespace moesaic::testing_util {

// The table with its products on emulated tile registers, in class kAmxBf16.
CpuKernels WithEmulatedAmx(const CpuKernels& kernels);

// Whether this thread's registers have been given back.
bool EmulatedTilesAreReleased();

}  // namespace moesaic::testing_util
