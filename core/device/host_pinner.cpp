#include "core/device/host_pinner.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "core/base/units.h"

namespace moesaic {

std::optional<Error> MlockPinner::Pin(std::span<std::byte> memory) {
  if (memory.empty() || mlock(memory.data(), memory.size()) == 0) return std::nullopt;
  const std::error_code code(errno, std::generic_category());
  return Error(ErrorKind::kResourceExhausted,
               fmt::format("cannot pin {} of host memory: {}; raise the limit of locked memory "
                           "(ulimit -l, or LimitMEMLOCK= of the service)",
                           FormatBytes(memory.size()), code.message()));
}

void MlockPinner::Unpin(std::span<std::byte> memory) {
  if (!memory.empty()) munlock(memory.data(), memory.size());
}

}  // namespace moesaic
