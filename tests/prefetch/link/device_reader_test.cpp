// DeviceReader on emulated devices: what a copy brings, what a fault does, who is told.

#include "prefetch/link/device_reader.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "prefetch/link/expert_loader.h"
#include "tests/core/device/emulated_machine.h"
#include "tests/prefetch/test_source.h"

namespace moesaic {
namespace {

constexpr uint64_t kPacket = 4096;

EmulatedDeviceOptions Link() {
  EmulatedDeviceOptions options;
  options.capacity_bytes = 1 << 20;
  options.host_to_device = {4.096e9, 0};  // a packet in 1 us
  return options;
}

class DeviceReaderTest : public testing::Test {
 protected:
  void Open(TestTime time, int depth) {
    machine_ = std::make_unique<EmulatedMachine>(time, 1, Link());
    buffer_ = *device().Allocate(64 * kPacket);
    reader_ = std::make_unique<DeviceReader>(
        std::vector<std::span<const std::byte>>{files_[0], files_[1]}, buffer_.span(), depth);
  }
  ~DeviceReaderTest() override {
    reader_.reset();
    buffer_.Reset();
  }

  EmulatedDevice& device() { return machine_->device(0); }
  void Submit(int file, uint64_t packet) {
    reader_->Submit({.file = file,
                     .offset = packet * kPacket,
                     .bytes = kPacket,
                     .destination = buffer_.data() + packet * kPacket,
                     .tag = packet});
  }
  std::map<uint64_t, int64_t> WaitFor(size_t reads) {
    std::map<uint64_t, int64_t> results;
    while (results.size() < reads) {
      std::vector<ReadCompletion> done;
      reader_->Wait(done, -1);
      for (const ReadCompletion& read : done) {
        EXPECT_TRUE(results.emplace(read.tag, read.result).second);
      }
    }
    return results;
  }
  bool Arrived(int file, uint64_t packet) const {
    return std::memcmp(buffer_.data() + packet * kPacket, files_[file].data() + packet * kPacket,
                       kPacket) == 0;
  }

  const std::vector<std::byte> files_[2] = {RandomBytes(64 * kPacket, 1),
                                            RandomBytes(16 * kPacket + 100, 2)};
  std::unique_ptr<EmulatedMachine> machine_;
  DeviceBuffer buffer_;
  std::unique_ptr<DeviceReader> reader_;
};

TEST_F(DeviceReaderTest, CopiesFollowEachOtherWithoutAGap) {
  Open(TestTime::kVirtual, 8);
  for (uint64_t packet = 0; packet < 8; ++packet) Submit(0, packet);
  EXPECT_EQ(reader_->free_slots(), 0);
  machine_->system().AdvanceUs(3);
  EXPECT_EQ(WaitFor(3), (std::map<uint64_t, int64_t>{{0, 4096}, {1, 4096}, {2, 4096}}));
  EXPECT_EQ(reader_->free_slots(), 3);
  machine_->system().AdvanceUs(5);
  EXPECT_EQ(WaitFor(5).size(), 5u);
  for (uint64_t packet = 0; packet < 8; ++packet) EXPECT_TRUE(Arrived(0, packet));
}

// Packets are queued one behind the other on their stream: that of another stream gets in line
// before all but the one that moves.
TEST_F(DeviceReaderTest, AnotherStreamsCopyWaitsForOnePacket) {
  Open(TestTime::kVirtual, 8);
  for (uint64_t packet = 0; packet < 8; ++packet) Submit(0, packet);
  const std::unique_ptr<Stream> other = device().CreateStream();
  const DeviceBuffer hidden = *device().Allocate(kPacket);
  other->CopyToDevice(hidden.span(), std::span(files_[1]).first(kPacket));
  machine_->system().AdvanceUs(2);
  EXPECT_TRUE(other->Idle());
  EXPECT_EQ(WaitFor(1).begin()->first, 0u);
  EXPECT_EQ(reader_->free_slots(), 1);  // one packet went before it
  machine_->system().AdvanceUs(7);
  EXPECT_EQ(WaitFor(7).size(), 7u);
}

TEST_F(DeviceReaderTest, FilesEndWhereTheirMemoryDoes) {
  Open(TestTime::kReal, 2);
  Submit(1, 15);
  Submit(1, 16);
  EXPECT_EQ(WaitFor(2), (std::map<uint64_t, int64_t>{{15, 4096}, {16, 100}}));
}

TEST_F(DeviceReaderTest, OnlyTheFailedCopyFails) {
  Open(TestTime::kReal, 4);
  device().SetFaults({.failing_copies = {2}});
  for (uint64_t packet = 0; packet < 4; ++packet) Submit(0, packet);
  EXPECT_EQ(WaitFor(4), (std::map<uint64_t, int64_t>{{0, 4096}, {1, -EIO}, {2, 4096}, {3, 4096}}));
  EXPECT_FALSE(Arrived(0, 1));
  EXPECT_TRUE(Arrived(0, 2));
  EXPECT_TRUE(Arrived(0, 3));
  Submit(0, 1);
  EXPECT_EQ(WaitFor(1), (std::map<uint64_t, int64_t>{{1, 4096}}));
  EXPECT_TRUE(Arrived(0, 1));
}

TEST_F(DeviceReaderTest, ALostDeviceAnswers) {
  Open(TestTime::kReal, 4);
  device().SetFaults({.lost_at_copy = 2});
  for (uint64_t packet = 0; packet < 4; ++packet) Submit(0, packet);
  const std::map<uint64_t, int64_t> results = WaitFor(4);
  for (uint64_t packet = 1; packet < 4; ++packet) EXPECT_EQ(results.at(packet), -ENODEV);
  Submit(0, 0);
  EXPECT_EQ(WaitFor(1).at(0), -ENODEV);
}

TEST_F(DeviceReaderTest, WaitEndsByWakeAndByTime) {
  Open(TestTime::kReal, 1);
  std::vector<ReadCompletion> done;
  reader_->Wait(done, 0);
  reader_->Wait(done, 1000);
  std::thread waker([&] { reader_->Wake(); });
  reader_->Wait(done, -1);
  waker.join();
  EXPECT_TRUE(done.empty());
}

// The production loader on a link that fails now and then: every blob is whole.
TEST(DeviceLoaderTest, RetriesFailedCopies) {
  TestSourceShape shape;
  shape.piece_bytes = {64 * 4096};
  shape.direct = true;
  shape.files = 1;
  const TestSource source(shape);
  EmulatedDeviceOptions link = Link();
  link.capacity_bytes = 8 * source.layout().slot_bytes;
  EmulatedMachine machine(TestTime::kReal, 1, link);
  EmulatedDevice& device = machine.device(0);
  DeviceBuffer slots = *device.Allocate(link.capacity_bytes);
  ExpertLoaderOptions options;
  options.slot_memory = {slots.data(), slots.bytes()};
  options.packet_bytes = 4 * 4096;
  options.max_retries = 20;
  ExpertLoader loader(
      source, 4, 8, MakeLruPolicy(32), options,
      std::make_unique<DeviceReader>(std::vector<std::span<const std::byte>>{source.Contents()[0]},
                                     slots.span(), kDefaultReadDepth));
  device.SetFaults({.copy_failure_probability = 0.3, .seed = 5});
  for (int layer = 0; layer < 4; ++layer) {
    loader.BeginLayer(source.Ids(layer, {0, 1, 2, 3, 4, 5, 6, 7}));
    std::vector<PinnedExpert> ready;
    for (int handed_out = 0; loader.NextReady(ready); ready.clear()) {
      for (const PinnedExpert& expert : ready) {
        EXPECT_TRUE(source.IsBlobOf(expert.id, expert.blob));
        EXPECT_GE(expert.blob, slots.data());
        EXPECT_LT(expert.blob, slots.data() + slots.bytes());
        loader.Release(expert);
        ++handed_out;
      }
      ASSERT_LE(handed_out, 8);
    }
    EXPECT_EQ(loader.EndLayer().misses, 8u);
  }
  EXPECT_GT(loader.transfer_counters().packets_failed, 0u);
}

}  // namespace
}  // namespace moesaic
