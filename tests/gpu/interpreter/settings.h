// Settings: what the environment asks of the interpreter.
#pragma once

#include <cstdint>
#include <string>

namespace moesaic::ptx {

struct Settings {
  int gpus = 1;         // MOESAIC_PTX_GPUS
  bool words = true;    // MOESAIC_PTX_WORDS=0: streams know no operations on words
  bool lazy = false;    // MOESAIC_PTX_LAZY=1: a kernel is loaded by its first launch, which
                        // waits for all that runs on the GPU
  uint64_t seed = 0;    // MOESAIC_PTX_SEED: streams are held up at random; 0: they are not
  std::string kernels;  // MOESAIC_PTX_KERNELS: a file of PTX whose kernels replace others
};

Settings ReadSettings();

}  // namespace moesaic::ptx
