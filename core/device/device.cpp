#include "core/device/device.h"

#include <utility>

#include "core/base/units.h"

namespace moesaic {

DeviceBuffer AllocateOrThrow(Device& device, uint64_t bytes, std::string_view what,
                             std::string_view advice) {
  std::optional<DeviceBuffer> buffer = device.Allocate(bytes);
  if (!buffer) {
    if (const std::optional<Error> lost = device.lost()) throw *lost;
    Fail(ErrorKind::kResourceExhausted, "device {}: {} for {} cannot be had ({} are free){}",
         device.name(), FormatBytes(bytes), what, FormatBytes(device.largest_free_bytes()), advice);
  }
  return std::move(*buffer);
}

}  // namespace moesaic
