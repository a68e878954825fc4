// Settings: what the environment asks of the interpreter, in MOESAIC_PTX: name=value, separated by
// commas ("gpus=3,seed=7").
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace moesaic::ptx {

struct Settings {
  int gpus = 1;
  bool words = true;  // 0: streams know no operations on words
  bool lazy = false;  // 1: a kernel is loaded by its first launch, which waits for all that runs on
                      // the GPU
  uint64_t seed = 0;  // streams are held up at random; 0: they are not
  std::chrono::milliseconds patience{20000};  // patience_ms: what waits longer than this for all
                                              // that runs on a GPU is a deadlock
  std::string kernels;  // a file of PTX whose kernels replace those of the program
};

// Throws Error(kInvalidArgument).
Settings ParseSettings(std::string_view text);
Settings ReadSettings();  // of the environment

}  // namespace moesaic::ptx
