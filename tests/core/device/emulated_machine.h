// Emulated devices for tests, on a virtual clock unless told otherwise.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/device/emulated_device.h"
#include "tests/core/device/device_contract.h"

namespace moesaic {

enum class TestTime { kVirtual, kReal };

class EmulatedMachine : public TestMachine {
 public:
  EmulatedMachine(TestTime time, int devices, EmulatedDeviceOptions options) {
    if (time == TestTime::kVirtual) {
      system_ = std::make_unique<EmulatedSystem>(&clock_);
    } else {
      system_ = std::make_unique<EmulatedSystem>();
    }
    for (int i = 0; i < devices; ++i) {
      options.name = fmt::format("emulated:{}", i);
      devices_.push_back(std::make_unique<EmulatedDevice>(*system_, options));
    }
  }

  EmulatedDevice& device(int index) override { return *devices_[static_cast<size_t>(index)]; }
  EmulatedSystem& system() { return *system_; }
  int64_t NowNs() const { return system_->clock().NowNs(); }

 private:
  VirtualClock clock_;
  std::unique_ptr<EmulatedSystem> system_;
  std::vector<std::unique_ptr<EmulatedDevice>> devices_;
};

}  // namespace moesaic
