// What every Collective does, on devices of any kind that reach each other.
#include "core/device/collective.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "tests/core/device/device_contract.h"

namespace moesaic {
namespace {

// A stream and a buffer for all pieces on each of several devices.
struct Group {
  Group(TestMachine& machine, const MachineFactory& factory, size_t devices,
        const std::vector<uint64_t>& sizes)
      : bytes(sizes) {
    for (size_t d = 0; d < devices; ++d) {
      Device& device = machine.device(static_cast<int>(d));
      streams.push_back(device.CreateStream());
      pointers.push_back(streams.back().get());
      buffers.push_back(*device.Allocate(total()));
      logs.push_back(*device.Allocate(total() * kRounds));
      pieces.push_back(buffers[d].Subspan(offset(d), bytes[d]));
      into.push_back(buffers[d].span());
    }
    collective = factory.collective(pointers);
  }
  uint64_t offset(size_t device) const {
    return std::accumulate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(device),
                           uint64_t{0});
  }
  uint64_t total() const { return offset(bytes.size()); }
  std::vector<std::byte> Read(size_t device, const DeviceSpan& span) {
    std::vector<std::byte> read(span.bytes());
    streams[device]->CopyToHost(read, span);
    EXPECT_FALSE(streams[device]->Synchronize().has_value());
    return read;
  }

  static constexpr uint64_t kRounds = 5;
  const std::vector<uint64_t> bytes;  // [devices] of a piece
  std::vector<DeviceBuffer> buffers;
  std::vector<DeviceBuffer> logs;  // what was gathered, round after round
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Stream*> pointers;
  std::vector<DeviceSpan> pieces;
  std::vector<DeviceSpan> into;
  std::unique_ptr<Collective> collective;
};

// Round after round without waiting: a piece is overwritten as soon as the stream may.
TEST_P(DeviceContract, CollectiveGathersForAll) {
  for (const size_t devices : {size_t{1}, size_t{2}, size_t{3}}) {
    if (static_cast<int>(devices) > GetParam().max_devices) continue;
    const auto machine = Make(static_cast<int>(devices));
    std::vector<uint64_t> sizes = {3000, 0, 70001};
    sizes.resize(devices);
    Group group(*machine, GetParam(), devices, sizes);
    EXPECT_NE(std::string(group.collective->name()), "");
    std::vector<std::vector<std::byte>> sources;
    for (uint64_t round = 0; round < Group::kRounds; ++round) {
      sources.push_back(RandomBytes(group.total(), round));
    }
    for (uint64_t round = 0; round < Group::kRounds; ++round) {
      for (size_t d = 0; d < devices; ++d) {
        group.streams[d]->CopyToDevice(
            group.pieces[d], std::span(sources[round]).subspan(group.offset(d), sizes[d]));
      }
      group.collective->Gather(group.pieces, group.into);
      for (size_t d = 0; d < devices; ++d) {
        group.streams[d]->CopyBetween(group.logs[d].Subspan(round * group.total(), group.total()),
                                      group.into[d]);
      }
    }
    for (size_t d = 0; d < devices; ++d) {
      for (uint64_t round = 0; round < Group::kRounds; ++round) {
        EXPECT_TRUE(group.Read(d, group.logs[d].Subspan(round * group.total(), group.total())) ==
                    sources[round])
            << devices << " devices, device " << d << ", round " << round;
      }
    }
  }
}

// Of one to the others; and of all to one, from elsewhere than their places.
TEST_P(DeviceContract, CollectiveGathersForSome) {
  if (GetParam().max_devices < 3) GTEST_SKIP() << "SKIPPED: fewer than 3 devices";
  const auto machine = Make(3);
  Group group(*machine, GetParam(), 3, {5000, 5000, 5000});
  const std::vector<std::byte> source = RandomBytes(15000, 1);
  const auto part = [&](size_t d) { return std::span(source).subspan(d * 5000, 5000); };
  group.streams[1]->CopyToDevice(group.buffers[1].Subspan(0, 5000), part(1));
  const std::vector<DeviceSpan> one = {{}, group.buffers[1].Subspan(0, 5000), {}};
  const std::vector<DeviceSpan> others = {
      group.buffers[0].Subspan(100, 5000), {}, group.buffers[2].Subspan(0, 5000)};
  group.collective->Gather(one, others);
  EXPECT_TRUE(std::ranges::equal(group.Read(0, others[0]), part(1)));
  EXPECT_TRUE(std::ranges::equal(group.Read(2, others[2]), part(1)));

  std::vector<DeviceSpan> pieces;
  for (size_t d = 0; d < 3; ++d) {
    pieces.push_back(group.logs[d].Subspan(d * 1000, 5000));
    group.streams[d]->CopyToDevice(pieces[d], part(d));
  }
  const std::vector<DeviceSpan> to_last = {{}, {}, group.buffers[2].span()};
  group.collective->Gather(pieces, to_last);
  EXPECT_TRUE(group.Read(2, to_last[2]) == source);
}

// Who wants a piece that failed is in error, and all are well again when they are told so.
TEST_P(DeviceContract, CollectiveTellsOfErrors) {
  if (GetParam().max_devices < 2) GTEST_SKIP() << "SKIPPED: fewer than 2 devices";
  const auto machine = Make(2);
  Group group(*machine, GetParam(), 2, {64, 64});
  group.streams[1]->Call([](const Error*) { throw std::runtime_error("spilled"); });
  group.collective->Gather(group.pieces, group.into);
  const std::optional<Error> error = group.streams[0]->Synchronize();
  ASSERT_TRUE(error.has_value());
  EXPECT_NE(std::string(error->what()).find("spilled"), std::string::npos);
  EXPECT_TRUE(group.streams[1]->Synchronize().has_value());
  for (Stream* const stream : group.pointers) stream->ClearError();
  const std::vector<std::byte> source = RandomBytes(128, 2);
  for (size_t d = 0; d < 2; ++d) {
    group.streams[d]->CopyToDevice(group.pieces[d], std::span(source).subspan(d * 64, 64));
  }
  group.collective->Gather(group.pieces, group.into);
  for (size_t d = 0; d < 2; ++d) EXPECT_TRUE(group.Read(d, group.into[d]) == source);
}

}  // namespace
}  // namespace moesaic
