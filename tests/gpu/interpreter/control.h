// What a test that runs in the interpreter can ask of it, beyond what the environment can
// (settings.h). Plain C++. Thread contract: safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic::ptx {

// Calls of the CUDA runtime and driver that can fail, since the process began.
uint64_t RuntimeCalls();

// The call that is `number` calls from now (0: the next one) does nothing and answers `error`, a
// cudaError_t. UINT64_MAX: none does. An error that ends a context (cudaErrorIllegalAddress and
// the like) loses the GPU that was current.
void FailRuntimeCall(uint64_t number, int error);
// The name of the call that has failed in this way; empty: it has not come yet.
std::string FailedRuntimeCall();

// A GPU that was lost is as in a new process: a test may lose it again.
void RestoreGpu(int device);

// Streams that are made from now on are held up at random; 0: they are not.
void SetSeed(uint64_t seed);

// The kernels of the program that are not loaded onto a GPU (mangled names, less what is a file's).
std::vector<std::string> UnloadedKernels(int device);

// What was done wrong since the last call. Defects that nobody takes make the process exit with 1.
std::vector<std::string> TakeDefects();

}  // namespace moesaic::ptx
