// What a CUDA device does beyond the contract of all devices.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/device/pinned_host_pool.h"
#include "tests/gpu/cuda_machine.h"

namespace moesaic {
namespace {

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    MOESAIC_SKIP_WITHOUT_GPU();
    machine_ = std::make_unique<CudaTestMachine>(2, uint64_t{64} << 20);
  }
  Device& device(int index = 0) { return machine_->device(index); }

  std::unique_ptr<CudaTestMachine> machine_;
};

TEST_F(CudaDeviceTest, SaysWhatItIs) {
  EXPECT_EQ(device().name(), "cuda:0");
  EXPECT_EQ(device().kind(), DeviceKind::kCuda);
  const CudaDeviceInfo info = FindCudaDevices().devices.front();
  EXPECT_FALSE(info.name.empty());
  EXPECT_FALSE(info.pci_bus_id.empty());
  EXPECT_GE(info.compute_capability, 80);
  EXPECT_GT(info.total_bytes, uint64_t{1} << 30);
  EXPECT_EQ(device().numa_node(), info.numa_node);
}

TEST_F(CudaDeviceTest, MoreMemoryThanThereIsIsAClearError) {
  const uint64_t too_many = FindCudaDevices().devices.front().total_bytes * 2;
  try {
    CreateCudaDevice({.ordinal = 0, .capacity_bytes = too_many});
    FAIL() << "took twice the memory of the device";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kResourceExhausted);
    EXPECT_NE(std::string(error.what()).find("--gpu-memory"), std::string::npos);
  }
  // Nothing is left of it.
  const auto stream = device().CreateStream();
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_FALSE(device().lost().has_value());
}

TEST_F(CudaDeviceTest, ADeviceThatIsNotThereIsAClearError) {
  const auto count = static_cast<int>(FindCudaDevices().devices.size());
  for (const int ordinal : {-1, count}) {
    try {
      CreateCudaDevice({.ordinal = ordinal, .capacity_bytes = 1 << 20});
      FAIL() << "made cuda:" << ordinal;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
    }
  }
}

TEST_F(CudaDeviceTest, PinnedPoolsArePinned) {
  PinnedHostPool pool(8 << 20, device().numa_node(), device().host_pinner());
  EXPECT_TRUE(pool.pinned()) << pool.why_not_pinned()->what();
  PinnedHostPool second(8 << 20, -1, device(1).host_pinner());
  EXPECT_TRUE(second.pinned());
}

// In packets, as experts come: pieces of pinned memory one behind the other, and from ordinary
// memory through the stream's own.
TEST_F(CudaDeviceTest, LargeCopiesFromEveryKindOfMemory) {
  constexpr uint64_t kBytes = (uint64_t{9} << 20) + 4321;
  PinnedHostPool pool(2 * (kBytes + 4096), -1, device().host_pinner());
  const auto stream = device().CreateStream();
  const auto buffer = *device().Allocate(kBytes);
  const std::vector<std::byte> sent = RandomBytes(kBytes, 11);
  std::vector<std::byte> received(kBytes);
  stream->CopyToDevice(buffer.span(), sent);
  stream->CopyToHost(received, buffer.span());
  ASSERT_FALSE(stream->Synchronize().has_value());
  EXPECT_EQ(received, sent);

  const auto out = *pool.Allocate(kBytes);
  const auto in = *pool.Allocate(kBytes);
  const std::vector<std::byte> other = RandomBytes(kBytes, 12);
  std::copy(other.begin(), other.end(), out.data());
  constexpr uint64_t kPacketBytes = uint64_t{1} << 20;
  for (uint64_t at = 0; at < kBytes; at += kPacketBytes) {
    const uint64_t bytes = std::min(kPacketBytes, kBytes - at);
    stream->CopyToDevice(buffer.Subspan(at, bytes), out.span().subspan(at, bytes));
  }
  stream->CopyToHost(in.span(), buffer.span());
  ASSERT_FALSE(stream->Synchronize().has_value());
  EXPECT_TRUE(std::equal(other.begin(), other.end(), in.data()));
}

TEST_F(CudaDeviceTest, AHostFunctionThatThrowsFailsWhatFollows) {
  const auto stream = device().CreateStream();
  const auto waiting = device(1).CreateStream();
  const auto event = device().CreateEvent();
  stream->Call([](const Error*) { throw std::runtime_error("thrown on purpose"); });
  stream->Record(*event);
  waiting->Wait(*event);
  bool told = false;
  waiting->Call([&told](const Error* error) { told = error != nullptr; });
  const auto error = stream->Synchronize();
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->kind(), ErrorKind::kInternal);
  EXPECT_NE(std::string(error->what()).find("thrown on purpose"), std::string::npos);
  EXPECT_TRUE(waiting->Synchronize().has_value());
  EXPECT_TRUE(told);
  EXPECT_EQ(event->Query(), Event::State::kFailed);
  stream->ClearError();
  stream->Record(*event);
  EXPECT_FALSE(event->Synchronize().has_value());
  EXPECT_EQ(event->Query(), Event::State::kComplete);
  EXPECT_FALSE(stream->Synchronize().has_value());
}

}  // namespace
}  // namespace moesaic
