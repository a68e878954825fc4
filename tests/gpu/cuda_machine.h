// What the tests of tests/gpu share: CUDA devices, and a visible reason where there are none.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/device/cuda_device.h"
#include "tests/core/device/device_contract.h"

namespace moesaic {

// The first line that a test needs. ctest shows the reason, and so does `make test-gpu`.
#define MOESAIC_SKIP_WITHOUT_GPU()                                            \
  do {                                                                        \
    if (const CudaMachine found = FindCudaDevices(); found.devices.empty()) { \
      GTEST_SKIP() << "SKIPPED: " << found.why_none;                          \
    }                                                                         \
  } while (0)

// As many devices as are asked for, on the GPUs that are there in turn: one GPU can be several.
class CudaTestMachine : public TestMachine {
 public:
  CudaTestMachine(int devices, uint64_t capacity_bytes) {
    const auto gpus = static_cast<int>(FindCudaDevices().devices.size());
    std::vector<Device*> all;
    for (int i = 0; i < devices; ++i) {
      devices_.push_back(CreateCudaDevice({.ordinal = i % gpus, .capacity_bytes = capacity_bytes}));
      all.push_back(devices_.back().get());
    }
    ConnectCudaPeers(all);
  }
  Device& device(int index) override { return *devices_[static_cast<size_t>(index)]; }

 private:
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace moesaic
