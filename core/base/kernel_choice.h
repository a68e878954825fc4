// KernelChoice: which instruction set multiplies how many rows with weights of one type. Measured
// by `moesaic profile` and kept in a HardwareProfile; plain data.
//
// Only instruction sets of one numerics class stand beside each other in a choice, so that it
// changes speed and no bit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic {

struct KernelStep {
  int64_t min_rows = 0;      // from so many rows of one product on
  std::string instructions;  // "avx512_vnni"
};

struct KernelChoice {
  std::string numerics;           // NumericsClassName
  std::string weights;            // WeightTypeName
  std::vector<KernelStep> steps;  // ascending, the first from one row on
  std::string how;                // "median of 7 rounds, 1024 x 1024, one thread"
  std::string when;               // UTC, ISO 8601
};

}  // namespace moesaic
