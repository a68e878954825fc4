// HostPinner: keeps host memory where it is, so that a device can copy from and to it without a
// detour. A device brings its own (Device::host_pinner): a GPU's driver has to know of the memory,
// for an emulated one it is enough that the kernel does not page it out.
//
// Thread contract: safe from any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "core/base/error.h"

namespace moesaic {

class HostPinner {
 public:
  virtual ~HostPinner() = default;
  // `memory` starts and ends at a page. Returns why it could not be pinned.
  [[nodiscard]] virtual std::optional<Error> Pin(std::span<std::byte> memory) = 0;
  virtual void Unpin(std::span<std::byte> memory) = 0;  // what was pinned, as it was pinned
};

// mlock: the pages are resident and stay so.
class MlockPinner : public HostPinner {
 public:
  [[nodiscard]] std::optional<Error> Pin(std::span<std::byte> memory) override;
  void Unpin(std::span<std::byte> memory) override;
};

}  // namespace moesaic
