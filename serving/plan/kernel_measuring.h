// Which instruction set multiplies how many rows fastest here. Internal to serving/plan.
#pragma once

#include <span>
#include <vector>

#include "core/base/kernel_choice.h"
#include "kernels/cpu/kernels.h"
#include "serving/plan/machine_profiler.h"

namespace moesaic {

// A choice for each type of weights with which the table has options (ProductOptions), on this
// thread: products of an expert's size, their weights in memory beyond the second-level cache.
std::vector<KernelChoice> MeasureKernelChoices(const CpuKernels& kernels,
                                               const ProfilerOptions& options);

// Seconds of one product with so many rows, by option.
struct RowTimes {
  int64_t rows = 0;
  std::vector<double> seconds;
};

// Ascending rows, at least one. Steps from `own` (an index of options) to whatever is at least 5%
// faster and back: less than that is noise.
std::vector<KernelStep> StepsOf(const std::vector<const char*>& options, size_t own,
                                std::span<const RowTimes> times);

}  // namespace moesaic
