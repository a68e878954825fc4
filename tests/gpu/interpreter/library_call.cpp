#include "tests/gpu/interpreter/library_call.h"

#include <fmt/format.h>

#include <utility>

#include "tests/gpu/interpreter/runtime_call.h"

namespace moesaic::ptx {
namespace {

bool AllThere(const char* call, int device, const std::vector<TouchedMemory>& memory) {
  for (const TouchedMemory& touched : memory) {
    std::string why_not;
    const auto found = Machine::Get().memory().Find(reinterpret_cast<uint64_t>(touched.data),
                                                    touched.bytes, &why_not);
    if (found && found->kind == MemoryKind::kDevice && found->device == device) continue;
    if (found) {
      why_not = found->kind == MemoryKind::kDevice ? fmt::format("is of GPU {}", found->device)
                                                   : "is of the host";
    }
    Machine::Get().Report(fmt::format("the {} of {}: {}", touched.what, call, why_not));
    return false;
  }
  return true;
}

}  // namespace

cudaError_t BeginLibraryCall(const char* call, bool records) {
  return Begin(call, ThisThread().device,
               records ? WhileCapturing::kAllowed : WhileCapturing::kForbidden);
}

int CurrentGpu() { return ThisThread().device; }
int GpuOf(cudaStream_t stream) { return stream->queue.device(); }

void ReportDefect(const std::string& defect) { Machine::Get().Report(defect); }

cudaError_t QueueLibraryWork(const char* call, cudaStream_t stream,
                             const std::vector<TouchedMemory>& memory, std::function<void()> work) {
  const int device = stream->queue.device();
  if (!AllThere(call, device, memory)) return cudaErrorInvalidValue;
  stream->queue.Push([call, device, memory, work = std::move(work)] {
    // Looked at again: what has been freed meanwhile is gone.
    if (AllThere(call, device, memory)) {
      work();
    } else {
      Machine::Get().Lose(device, cudaErrorIllegalAddress);
    }
  });
  return cudaSuccess;
}

}  // namespace moesaic::ptx
