// The collective by NCCL (core/device/nccl_collective_cuda.cpp), with the libnccl.so.2 of
// tests/gpu/interpreter/nccl: it keeps the contract of collectives
// (tests/core/device/collective_contract.cpp), and whatever call fails, nobody waits for ever.
#include "core/device/nccl_collective.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/core/device/device_contract.h"
#include "tests/gpu/cuda_machine.h"
#include "tests/gpu/interpreter/control.h"

namespace moesaic {
namespace {

constexpr int kGpus = 3;

MachineFactory Factory() {
  MachineFactory factory;
  factory.name = "Nccl";
  factory.max_devices = kGpus;
  factory.make = [](int devices, uint64_t capacity_bytes) {
    return std::make_unique<CudaTestMachine>(devices, capacity_bytes);
  };
  factory.collective = MakeNcclCollective;
  return factory;
}

INSTANTIATE_TEST_SUITE_P(Cuda, DeviceContract, testing::Values(Factory()), MachineName);

struct NcclTest : testing::Test {
  void SetUp() override {
    ASSERT_TRUE(BuiltWithNccl());
    ASSERT_EQ(FindCudaDevices().devices.size(), size_t{kGpus}) << "run with MOESAIC_PTX=gpus=3";
  }
  void TearDown() override {
    ptx::FailRuntimeCall(UINT64_MAX, 0);
    for (int gpu = 0; gpu < kGpus; ++gpu) ptx::RestoreGpu(gpu);
    EXPECT_EQ(ptx::TakeDefects(), std::vector<std::string>());
    cudaSetDevice(0);
    cudaGetLastError();
  }
};

TEST_F(NcclTest, TwoStreamsOfOneGpuAreRefused) {
  CudaTestMachine machine(1, 1 << 20);
  const auto first = machine.device(0).CreateStream();
  const auto second = machine.device(0).CreateStream();
  const std::vector<Stream*> streams = {first.get(), second.get()};
  try {
    MakeNcclCollective(streams);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
    EXPECT_NE(std::string(error.what()).find("invalid usage"), std::string::npos) << error.what();
  }
}

// Gathers once, with the `number`-th call of the runtime from now failing. Whether one did.
bool GatherWithAFailure(uint64_t number, int failure) {
  constexpr uint64_t kBytes = 4096;
  CudaTestMachine machine(kGpus, 1 << 20);
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Stream*> pointers;
  std::vector<DeviceBuffer> buffers;
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    streams.push_back(machine.device(gpu).CreateStream());
    pointers.push_back(streams.back().get());
    buffers.push_back(*machine.device(gpu).Allocate(kGpus * kBytes));
  }
  const std::vector<std::byte> source = RandomBytes(kGpus * kBytes, number);
  std::vector<DeviceSpan> pieces;
  std::vector<DeviceSpan> into;
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    const auto at = static_cast<uint64_t>(gpu) * kBytes;
    pieces.push_back(buffers[static_cast<size_t>(gpu)].Subspan(at, kBytes));
    into.push_back(buffers[static_cast<size_t>(gpu)].span());
    pointers[static_cast<size_t>(gpu)]->CopyToDevice(pieces.back(),
                                                     std::span(source).subspan(at, kBytes));
  }
  for (Stream* const stream : pointers) EXPECT_FALSE(stream->Synchronize().has_value());
  const auto collective = MakeNcclCollective(pointers);
  ptx::FailRuntimeCall(number, failure);
  collective->Gather(pieces, into);
  bool failed = false;
  for (Stream* const stream : pointers) failed |= stream->Synchronize().has_value();
  const std::string call = ptx::FailedRuntimeCall();
  ptx::FailRuntimeCall(UINT64_MAX, 0);
  if (!failed) {
    for (int gpu = 0; gpu < kGpus; ++gpu) {
      std::vector<std::byte> read(source.size());
      pointers[static_cast<size_t>(gpu)]->CopyToHost(read, into[static_cast<size_t>(gpu)]);
      EXPECT_FALSE(pointers[static_cast<size_t>(gpu)]->Synchronize().has_value());
      EXPECT_TRUE(read == source) << number << ": " << call << " failed, and nobody was told";
    }
  }
  return !call.empty();
}

// Each call that a Gather makes fails once, as a call and with its GPU: all streams come to their
// end, and who hears of no error has the right bytes.
TEST_F(NcclTest, WhateverCallFailsNobodyWaitsForEver) {
  for (const int failure :
       {static_cast<int>(cudaErrorInvalidValue), static_cast<int>(cudaErrorIllegalAddress)}) {
    uint64_t calls = 0;
    while (GatherWithAFailure(calls, failure)) {
      ++calls;
      for (int gpu = 0; gpu < kGpus; ++gpu) ptx::RestoreGpu(gpu);
      ptx::TakeDefects();
    }
    EXPECT_GT(calls, 30u);
  }
}

}  // namespace
}  // namespace moesaic
