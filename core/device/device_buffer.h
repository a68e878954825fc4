// DeviceBuffer: owned memory of a device; DeviceSpan: a part of one that somebody else owns.
//
// The addresses are the device's: kernels of that device and copies of its streams take them, the
// host must not read or write through them. Giving a buffer back while queued work still uses it is
// a bug that nothing detects: wait for an event recorded behind that work first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/check.h"
#include "core/device/memory_arena.h"

namespace moesaic {

class Device;

class DeviceSpan {
 public:
  DeviceSpan() = default;
  DeviceSpan(Device* device, std::byte* data, uint64_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}

  Device* device() const { return device_; }
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  DeviceSpan Subspan(uint64_t offset, uint64_t bytes) const {
    CHECK_LE(offset, bytes_);
    CHECK_LE(bytes, bytes_ - offset);
    return {device_, data_ + offset, bytes};
  }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// Move-only; the device must outlive it.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device* device, ArenaBlock block) : device_(device), block_(std::move(block)) {}

  Device* device() const { return device_; }
  std::byte* data() const { return block_.data(); }
  uint64_t bytes() const { return block_.bytes(); }
  DeviceSpan span() const { return {device_, data(), bytes()}; }
  DeviceSpan Subspan(uint64_t offset, uint64_t bytes) const {
    return span().Subspan(offset, bytes);
  }
  void Reset() { block_.Reset(); }

 private:
  Device* device_ = nullptr;
  ArenaBlock block_;
};

}  // namespace moesaic
