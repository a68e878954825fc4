#include "tests/gpu/interpreter/runtime_call.h"

#include <fmt/format.h>

namespace moesaic::ptx {
namespace {

bool EndsContext(cudaError_t error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorMisalignedAddress ||
         error == cudaErrorLaunchFailure || error == cudaErrorECCUncorrectable;
}

// False: it may not be called now.
bool CheckPlace(const char* call, WhileCapturing capturing) {
  const ThreadState& thread = ThisThread();
  if (thread.in_host_function) {
    Machine::Get().Report(fmt::format("{} is called in a host function of a stream", call));
  }
  if (thread.capturing == nullptr || capturing == WhileCapturing::kAllowed) return true;
  Machine::Get().Report(fmt::format("{} is called by a thread that captures a stream", call));
  thread.capturing->SpoilCapture();
  return false;
}

}  // namespace

ThreadState& ThisThread() {
  thread_local ThreadState state;
  return state;
}

cudaError_t Begin(const char* call, int device, WhileCapturing capturing) {
  Machine& machine = Machine::Get();
  if (!CheckPlace(call, capturing)) return Answer(cudaErrorStreamCaptureUnsupported);
  if (const cudaError_t error = machine.Count(call); error != cudaSuccess) {
    if (EndsContext(error)) machine.Lose(device, error);
    return Answer(error);
  }
  return Answer(machine.lost(device));
}

void BeginFreeing(const char* call, WhileCapturing capturing) { CheckPlace(call, capturing); }

void CheckCurrent(const char* call, int device) {
  if (device == ThisThread().device) return;
  Machine::Get().Report(fmt::format("{} for something of GPU {} by a thread whose GPU is {}", call,
                                    device, ThisThread().device));
}

cudaError_t Answer(cudaError_t error) {
  if (error != cudaSuccess) ThisThread().last_error = error;
  return error;
}

}  // namespace moesaic::ptx
