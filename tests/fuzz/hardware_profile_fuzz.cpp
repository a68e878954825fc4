// The HardwareProfile document: what is accepted can be written and read again, and its numbers can
// be computed with.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/perf/hardware_profile.h"

namespace {

using moesaic::ErrorKind;
using moesaic::HardwareProfile;
using moesaic::Measured;

void CheckMeasured(const Measured& m) {
  for (const double number : {m.value, m.low, m.high}) {
    CHECK(std::isfinite(number) && number >= 0);
  }
}

void CheckUsable(const HardwareProfile& profile) {
  for (const auto& disk : profile.disks) {
    for (const auto& rate : disk.rates) {
      CHECK(rate.block_bytes > 0 && rate.depth > 0);
      CheckMeasured(rate.read);
      CheckMeasured(rate.latency);
    }
  }
  for (const auto& rate : profile.memory) {
    CHECK_GT(rate.threads, 0);
    CheckMeasured(rate.read);
  }
  for (const auto& rate : profile.compute) {
    CHECK_GT(rate.threads, 0);
    CheckMeasured(rate.rate);
  }
  for (const auto& device : profile.devices) {
    for (const auto& rate : device.copies) {
      CHECK_GT(rate.packet_bytes, 0u);
      for (const Measured& m : {rate.to_device, rate.to_device_loaded, rate.to_host}) {
        CheckMeasured(m);
      }
    }
    for (const auto& rates : {device.on_host, device.on_device}) {
      for (const auto& rate : rates) {
        CHECK_GT(rate.rows, 0);
        CheckMeasured(rate.alone);
        CheckMeasured(rate.loaded);
      }
    }
    CHECK_GE(device.copy_bytes_per_s(uint64_t{1} << 19), 0);
    CHECK(profile.DeviceNamed(device.name, device.model) != nullptr);
  }
  CHECK_GE(profile.memory_bytes_per_s(), 0);
  profile.DiskFor("/data/model");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const HardwareProfile profile = moesaic::ParseProfile(text, "profile.json");
    CheckUsable(profile);
    const std::string written = moesaic::SerializeProfile(profile);
    CHECK(moesaic::SerializeProfile(moesaic::ParseProfile(written, "again.json")) == written);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kUnsupported);
  }
  return 0;
}
