// The contract of core/device/device.h as a test suite that every kind of device passes. A file per
// kind instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, testing::Values(MachineFactory{...}),
//   MachineName);
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/base/mutex.h"
#include "core/device/collective.h"
#include "core/device/device.h"

namespace moesaic {

// Devices that reach each other, and whatever they need to live.
class TestMachine {
 public:
  virtual ~TestMachine() = default;
  virtual Device& device(int index) = 0;
};

struct MachineFactory {
  std::string name;
  int max_devices = 1;
  std::function<std::unique_ptr<TestMachine>(int devices, uint64_t capacity_bytes)> make;
  // What the tests are skipped for; empty: they run. Asked in each test, not before main.
  std::function<std::string()> why_not = [] { return std::string(); };
  std::function<std::unique_ptr<Collective>(std::span<Stream* const>)> collective =
      MakePeerCollective;
};

inline void PrintTo(const MachineFactory& factory, std::ostream* os) { *os << factory.name; }

inline std::string MachineName(const testing::TestParamInfo<MachineFactory>& info) {
  return info.param.name;
}

class DeviceContract : public testing::TestWithParam<MachineFactory> {
 protected:
  static constexpr uint64_t kCapacityBytes = uint64_t{4} << 20;

  void SetUp() override {
    const std::string why_not = GetParam().why_not();
    if (!why_not.empty()) GTEST_SKIP() << "SKIPPED: " << why_not;
  }

  std::unique_ptr<TestMachine> Make(int devices = 1, uint64_t capacity_bytes = kCapacityBytes) {
    return GetParam().make(devices, capacity_bytes);
  }
};

inline std::vector<std::byte> RandomBytes(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random());
  return result;
}

// Holds a host function, and what is queued behind it, until it is opened.
class Gate {
 public:
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    opened_.NotifyAll();
  }
  void Pass() {
    MutexLock lock(mutex_);
    while (!open_) opened_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar opened_;
  bool open_ GUARDED_BY(mutex_) = false;
};

}  // namespace moesaic
