// What the emulated CUDA runtime reports, and what CUDA devices do on it that no other device can
// be made to do: kernels that are loaded late, calls that fail, GPUs that are lost in the middle.
//
// With 2 GPUs, and with kernels that are loaded by their first launch (MOESAIC_PTX=lazy=1).
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/device/host_word.h"
#include "core/device/pinned_host_pool.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/interpreter/control.h"

namespace moesaic {
namespace {

constexpr uint64_t kCapacity = uint64_t{1} << 20;

class CudaRuntimeTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(FindCudaDevices().devices.size(), 2u)
        << "run with MOESAIC_PTX=gpus=2,lazy=1,patience_ms=300";
  }
  void TearDown() override {
    ptx::FailRuntimeCall(UINT64_MAX, 0);
    for (const int gpu : {0, 1}) ptx::RestoreGpu(gpu);
    EXPECT_EQ(ptx::TakeDefects(), std::vector<std::string>());
    cudaSetDevice(0);
    cudaGetLastError();
  }

  // The defects since the last call must be one, which says this.
  static void ExpectDefect(const std::string& text) {
    const std::vector<std::string> defects = ptx::TakeDefects();
    ASSERT_FALSE(defects.empty()) << "no defect: " << text;
    for (const std::string& defect : defects) {
      EXPECT_NE(defect.find(text), std::string::npos) << defect;
    }
  }
};

std::unique_ptr<Device> MakeDevice(int ordinal, bool load) {
  return CreateCudaDevice({.ordinal = ordinal,
                           .capacity_bytes = kCapacity,
                           .load_kernels = load ? cuda::LoadKernels : nullptr,
                           .fetch = load ? cuda::FetchFromHost : nullptr});
}

// Adds a row to another one: y += x, where the gate is so far open that its share is 1.
struct Addition {
  explicit Addition(Device& device)
      : x(*device.Allocate(256)), y(*device.Allocate(256)), gate(*device.Allocate(4)) {}
  void Launch(Stream& stream) const {
    cuda::AddGatedArgs args;
    args.y = reinterpret_cast<float*>(y.data());
    args.x = reinterpret_cast<const float*>(x.data());
    args.gate = reinterpret_cast<const float*>(gate.data());
    args.rows = 1;
    args.n = 64;
    stream.Launch([&args](cuda::StreamHandle handle) { return cuda::AddGated(args, handle); });
  }
  DeviceBuffer x, y, gate;
};

// A kernel that is loaded when it is launched would wait for the stream that waits for the word.
TEST_F(CudaRuntimeTest, ADeviceIsMadeWithAllKernelsLoaded) {
  const auto loaded = MakeDevice(1, true);
  EXPECT_EQ(ptx::UnloadedKernels(1), std::vector<std::string>());
  EXPECT_GT(ptx::UnloadedKernels(0).size(), 20u);
  const auto unloaded = MakeDevice(0, false);
  for (Device* const device : {loaded.get(), unloaded.get()}) {
    PinnedHostPool pool(4096, -1, device->host_pinner());
    const auto block = *pool.Allocate(sizeof(uint32_t));
    auto* const word = reinterpret_cast<uint32_t*>(block.data());
    StoreWord(word, 0);
    const auto waiting = device->CreateStream();
    const auto stream = device->CreateStream();
    const Addition addition(*device);
    waiting->WaitValue(word, 1);
    addition.Launch(*stream);
    EXPECT_FALSE(stream->Synchronize().has_value());
    StoreWord(word, 1);
    EXPECT_FALSE(waiting->Synchronize().has_value());
    if (device == unloaded.get()) {
      ExpectDefect("is launched for the first time, and waits to be loaded");
    } else {
      EXPECT_EQ(ptx::TakeDefects(), std::vector<std::string>());
    }
  }
}

TEST_F(CudaRuntimeTest, KernelsReachPinnedPools) {
  const auto device = MakeDevice(0, true);
  PinnedHostPool pool(4096, -1, device->host_pinner());
  ASSERT_TRUE(pool.pinned());
  const auto block = *pool.Allocate(256);
  EXPECT_TRUE(device->KernelsReach(block.span()));
  std::vector<std::byte> ordinary(256);
  EXPECT_FALSE(device->KernelsReach(ordinary));
}

// All that asks about a stream or an event of another GPU than the thread's, which is the first one
// for a new thread, would start a context there, and hear of its errors.
TEST_F(CudaRuntimeTest, CallsAreMadeOnTheGpuThatTheyAreAbout) {
  const auto device = MakeDevice(1, true);
  const auto other = MakeDevice(0, true);
  const auto stream = device->CreateStream();
  const auto waiting = other->CreateStream();
  const auto event = device->CreateEvent();
  cudaSetDevice(0);
  stream->Record(*event);
  waiting->Wait(*event);
  EXPECT_FALSE(event->Synchronize().has_value());
  EXPECT_EQ(event->Query(), Event::State::kComplete);
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_TRUE(stream->Idle());
  EXPECT_FALSE(waiting->Synchronize().has_value());
  EXPECT_EQ(ptx::TakeDefects(), std::vector<std::string>());

  // The check itself.
  cudaEvent_t raw = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&raw, cudaEventDisableTiming), cudaSuccess);
  cudaSetDevice(1);
  EXPECT_EQ(cudaEventQuery(raw), cudaSuccess);
  ExpectDefect("cudaEventQuery for something of GPU 0 by a thread whose GPU is 1");
  cudaEventDestroy(raw);
}

TEST_F(CudaRuntimeTest, WhatHostFunctionsAndCapturesMayNotDo) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  cudaLaunchHostFunc(
      stream, [](void*) { cudaGetLastError(); }, nullptr);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(ptx::TakeDefects(), std::vector<std::string>());
  cudaLaunchHostFunc(
      stream, [](void* handle) { cudaStreamQuery(static_cast<cudaStream_t>(handle)); }, stream);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ExpectDefect("cudaStreamQuery is called in a host function");

  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 256), cudaErrorStreamCaptureUnsupported);
  ExpectDefect("cudaMalloc is called by a thread that captures a stream");
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  cudaStreamDestroy(stream);
}

TEST_F(CudaRuntimeTest, CopiesStayInTheirMemory) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  void* device = nullptr;
  void* pinned = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 256), cudaSuccess);
  ASSERT_EQ(cudaHostAlloc(&pinned, 256, 0), cudaSuccess);
  std::memset(pinned, 7, 256);
  EXPECT_EQ(cudaMemcpyAsync(device, pinned, 256, cudaMemcpyHostToDevice, stream), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(device, pinned, 257, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  ExpectDefect("the destination of a copy");
  EXPECT_EQ(cudaMemcpyAsync(pinned, device, 256, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  ExpectDefect("the destination of a copy is memory of the host");
  std::byte ordinary[16];
  EXPECT_EQ(cudaMemcpyAsync(device, ordinary, 16, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  ExpectDefect("nobody took or registered");
  EXPECT_EQ(cudaMemcpyPeerAsync(device, 1, device, 0, 16, stream), cudaErrorInvalidValue);
  ExpectDefect("is memory of GPU 0");
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(static_cast<unsigned char*>(device)[255], 7);
  cudaFree(device);
  cudaFreeHost(pinned);
  EXPECT_NE(cudaFree(device), cudaSuccess);
  ExpectDefect("which is no such memory");
  cudaStreamDestroy(stream);
}

// One step as the model makes them: copies, a kernel, an event for another stream, a graph, a word.
std::string Step(Device& device, PinnedHostPool& pool, float (&result)[64]) {
  const auto block = *pool.Allocate(4096);
  auto* const values = reinterpret_cast<float*>(block.data());
  auto* const word = reinterpret_cast<uint32_t*>(block.data() + 2048);
  std::fill(values, values + 64, 2.0f);
  std::fill(values + 64, values + 128, 1.0f);
  values[256] = 100.0f;
  StoreWord(word, 0);
  std::optional<Error> error;
  {
    const Addition addition(device);  // goes behind the streams that use it
    const auto stream = device.CreateStream();
    const auto other = device.CreateStream();
    const auto event = device.CreateEvent();
    stream->CopyToDevice(addition.x.span(), block.span().subspan(0, 256));
    stream->CopyToDevice(addition.y.span(), block.span().subspan(256, 256));
    stream->CopyToDevice(addition.gate.span(), block.span().subspan(1024, 4));
    stream->BeginCapture();
    addition.Launch(*stream);
    stream->WriteValue(word, 1);
    stream->CopyToHost(block.span().subspan(512, 256), addition.y.span());
    const std::unique_ptr<Graph> graph = stream->EndCapture();
    if (graph != nullptr) {
      stream->Replay(*graph);
    } else {
      addition.Launch(*stream);
      stream->WriteValue(word, 1);
      stream->CopyToHost(block.span().subspan(512, 256), addition.y.span());
    }
    other->WaitValue(word, 1);
    stream->Record(*event);
    other->Wait(*event);
    other->CopyToHost(block.span().subspan(768, 256), addition.y.span());
    error = stream->Synchronize();
    // A stream that is in error writes no word, and who waits for it is told by the host.
    if (error) StoreWord(word, 1);
    const std::optional<Error> second = other->Synchronize();
    if (!error) error = second;
  }
  if (error) return error->what();
  if (!std::equal(values + 128, values + 192, values + 192)) return "the two copies differ";
  std::copy(values + 128, values + 192, result);
  return "";
}

// Whichever call fails, in whichever way: the step ends with that error, or has its result.
TEST_F(CudaRuntimeTest, EveryCallOfAStepMayFail) {
  for (const cudaError_t code : {cudaErrorMemoryAllocation, cudaErrorIllegalAddress}) {
    for (uint64_t number = 0;; ++number) {
      ptx::RestoreGpu(0);
      const auto device = MakeDevice(0, true);
      PinnedHostPool pool(1 << 16, -1, device->host_pinner());
      float result[64] = {};
      ptx::FailRuntimeCall(number, code);
      std::string error;
      try {
        error = Step(*device, pool, result);
      } catch (const Error& thrown) {
        error = thrown.what();
      }
      const std::string failed = ptx::FailedRuntimeCall();
      ptx::FailRuntimeCall(UINT64_MAX, 0);
      if (error.empty()) {
        EXPECT_TRUE(std::all_of(result, result + 64, [](float v) { return v == 3.0f; }))
            << "call " << number << ", " << failed;
      } else {
        EXPECT_NE(error.find("cuda:0"), std::string::npos) << error;
        EXPECT_FALSE(failed.empty()) << error;
      }
      if (failed.empty()) {
        EXPECT_GT(number, 30u);  // calls that a step makes
        break;
      }
    }
  }
}

// An event is not done because somebody could not ask for it.
TEST_F(CudaRuntimeTest, AQuestionThatFailsIsNoAnswer) {
  const auto device = MakeDevice(0, true);
  PinnedHostPool pool(4096, -1, device->host_pinner());
  const auto block = *pool.Allocate(sizeof(uint32_t));
  auto* const word = reinterpret_cast<uint32_t*>(block.data());
  StoreWord(word, 0);
  const auto stream = device->CreateStream();
  const auto event = device->CreateEvent();
  stream->WaitValue(word, 1);
  stream->Record(*event);
  ptx::FailRuntimeCall(0, cudaErrorMemoryAllocation);
  EXPECT_EQ(event->Query(), Event::State::kPending);
  EXPECT_EQ(ptx::FailedRuntimeCall(), "cudaEventQuery");
  ptx::FailRuntimeCall(0, cudaErrorMemoryAllocation);
  EXPECT_FALSE(stream->Idle());
  EXPECT_EQ(ptx::FailedRuntimeCall(), "cudaStreamQuery");
  StoreWord(word, 1);
  EXPECT_FALSE(event->Synchronize().has_value());
  EXPECT_EQ(event->Query(), Event::State::kComplete);
}

TEST_F(CudaRuntimeTest, AKernelThatGoesWrongLosesTheDevice) {
  const auto device = MakeDevice(1, true);
  const auto stream = device->CreateStream();
  {
    Addition addition(*device);
    addition.x = DeviceBuffer();
    addition.Launch(*stream);
    const std::optional<Error> error = stream->Synchronize();
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->kind(), ErrorKind::kUnavailable);
  }
  EXPECT_TRUE(device->lost().has_value());
  ExpectDefect("nobody took or registered this memory");
}

}  // namespace
}  // namespace moesaic
