// The part of the contract that is about words of host memory (Stream::WaitValue and WriteValue).
#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "core/device/host_word.h"
#include "core/device/pinned_host_pool.h"
#include "tests/core/device/device_contract.h"

namespace moesaic {
namespace {

// Words in pinned memory, 0 at first.
class Words {
 public:
  Words(Device& device, size_t count)
      : pool_(uint64_t{1} << 16, device.numa_node(), device.host_pinner()),
        memory_(pool_.Allocate(count * sizeof(uint32_t)).value()) {
    for (size_t i = 0; i < count; ++i) StoreWord(at(i), 0);
  }
  uint32_t* at(size_t i) const { return reinterpret_cast<uint32_t*>(memory_.data()) + i; }

 private:
  PinnedHostPool pool_;
  HostBuffer memory_;
};

TEST_P(DeviceContract, AStreamWaitsForAWord) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const Words words(device, 1);
  const DeviceBuffer buffer = device.Allocate(512).value();
  const auto stream = device.CreateStream();
  const auto other = device.CreateStream();
  const auto event = device.CreateEvent();
  PinnedHostPool pool(uint64_t{1} << 16, device.numa_node(), device.host_pinner());
  const std::optional<HostBuffer> in = pool.Allocate(512);
  ASSERT_TRUE(in.has_value());
  stream->WaitValue(words.at(0), 7);
  stream->Record(*event);
  for (const uint32_t value : {1, 6, 8}) {  // it is this value that counts
    StoreWord(words.at(0), value);
    other->CopyToDevice(buffer.span(), in->span());  // and other streams go on
    EXPECT_FALSE(other->Synchronize().has_value());
    EXPECT_EQ(event->Query(), Event::State::kPending);
    EXPECT_FALSE(stream->Idle());
  }
  StoreWord(words.at(0), 7);
  EXPECT_FALSE(event->Synchronize().has_value());
  stream->WaitValue(words.at(0), 7);  // as it is
  EXPECT_FALSE(stream->Synchronize().has_value());
}

TEST_P(DeviceContract, AWordIsWrittenInOrder) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const Words words(device, 2);
  PinnedHostPool pool(uint64_t{1} << 16, device.numa_node(), device.host_pinner());
  const std::optional<HostBuffer> out = pool.Allocate(4096);
  ASSERT_TRUE(out.has_value());
  const DeviceBuffer buffer = device.Allocate(4096).value();
  const auto stream = device.CreateStream();
  const auto other = device.CreateStream();
  const std::vector<std::byte> sent = RandomBytes(4096, 31);
  Gate gate;
  stream->Call([&gate](const Error*) { gate.Pass(); });
  stream->CopyToDevice(buffer.span(), sent);
  stream->CopyToHost(out->span(), buffer.span());
  stream->WriteValue(words.at(0), 5);
  stream->WriteValue(words.at(1), 6);
  EXPECT_EQ(LoadWord(words.at(0)), 0u);
  gate.Open();
  other->WaitValue(words.at(1), 6);  // behind what it waits for in the order of calls
  EXPECT_FALSE(other->Synchronize().has_value());
  EXPECT_EQ(LoadWord(words.at(0)), 5u);
  EXPECT_TRUE(std::equal(sent.begin(), sent.end(), out->data()));
  EXPECT_FALSE(stream->Synchronize().has_value());
}

// The host answers what a graph asks, twice in each of its runs.
TEST_P(DeviceContract, AGraphAsksAndWaits) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const Words words(device, 4);
  PinnedHostPool pool(uint64_t{1} << 16, device.numa_node(), device.host_pinner());
  const std::optional<HostBuffer> in = pool.Allocate(512);
  const std::optional<HostBuffer> out = pool.Allocate(512);
  ASSERT_TRUE(in.has_value() && out.has_value());
  const DeviceBuffer buffer = device.Allocate(512).value();
  const auto stream = device.CreateStream();
  stream->BeginCapture();
  for (size_t i = 0; i < 2; ++i) {
    stream->WriteValue(words.at(2 * i), 1);
    stream->WaitValue(words.at(2 * i + 1), 1);
    stream->CopyToDevice(buffer.span(), in->span());
  }
  stream->CopyToHost(out->span(), buffer.span());
  const std::unique_ptr<Graph> graph = stream->EndCapture();
  if (graph == nullptr && device.kind() == DeviceKind::kCuda) {
    GTEST_SKIP() << "SKIPPED: the driver records no operations on words";
  }
  ASSERT_NE(graph, nullptr);
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_EQ(LoadWord(words.at(0)), 0u);
  const auto other = device.CreateStream();
  for (const uint64_t seed : {32, 33}) {
    for (size_t i = 0; i < 4; ++i) StoreWord(words.at(i), 0);
    const auto event = device.CreateEvent();
    stream->Replay(*graph);
    stream->Record(*event);
    std::vector<std::byte> sent;
    for (size_t i = 0; i < 2; ++i) {
      other->WaitValue(words.at(2 * i), 1);
      EXPECT_FALSE(other->Synchronize().has_value());
      EXPECT_EQ(event->Query(), Event::State::kPending);
      sent = RandomBytes(512, seed + 10 * i);
      std::copy(sent.begin(), sent.end(), in->data());
      StoreWord(words.at(2 * i + 1), 1);
    }
    EXPECT_FALSE(event->Synchronize().has_value());
    EXPECT_TRUE(std::equal(sent.begin(), sent.end(), out->data())) << seed;
  }
}

TEST_P(DeviceContract, AStreamInErrorNeitherWaitsForWordsNorWritesThem) {
  const auto machine = Make();
  Device& device = machine->device(0);
  const Words words(device, 2);
  const auto stream = device.CreateStream();
  stream->Call([](const Error*) { throw std::runtime_error("on purpose"); });
  EXPECT_TRUE(stream->Synchronize().has_value());
  stream->WaitValue(words.at(0), 1);
  stream->WriteValue(words.at(1), 1);
  EXPECT_TRUE(stream->Synchronize().has_value());
  EXPECT_EQ(LoadWord(words.at(1)), 0u);
  stream->ClearError();
  stream->WriteValue(words.at(1), 1);
  EXPECT_FALSE(stream->Synchronize().has_value());
  EXPECT_EQ(LoadWord(words.at(1)), 1u);
}

}  // namespace
}  // namespace moesaic
