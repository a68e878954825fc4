// HostExperts: every blob is there, in its device's pool, and reaches the device.

#include "prefetch/link/host_experts.h"

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <vector>

#include "tests/core/base/temp_dir.h"
#include "tests/core/device/emulated_machine.h"
#include "tests/prefetch/test_source.h"

namespace moesaic {
namespace {

class HostExpertsTest : public testing::Test {
 protected:
  std::unique_ptr<TestSource> Write(const TestSourceShape& shape) {
    std::vector<std::filesystem::path> names;
    for (int f = 0; f < shape.files; ++f) {
      names.push_back(directory_.path() / ("part" + std::to_string(f)));
    }
    auto source = std::make_unique<TestSource>(shape, names);
    for (size_t f = 0; f < names.size(); ++f) {
      const std::vector<std::byte>& bytes = source->Contents()[f];
      std::ofstream(names[f], std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    }
    return source;
  }

  const TempDir directory_;
  const ExpertGrid grid_{4, 8};
};

EmulatedDeviceOptions OneMiB() {
  EmulatedDeviceOptions options;
  options.capacity_bytes = 1 << 20;
  return options;
}

TEST_F(HostExpertsTest, HoldsEveryExpertInItsDevicesPool) {
  TestSourceShape packed;
  packed.dense_layers = {1};
  TestSourceShape direct;
  direct.piece_bytes = {3 * 4096};
  direct.direct = true;
  for (const TestSourceShape& shape : {packed, direct}) {
    const std::unique_ptr<TestSource> source = Write(shape);
    for (const int devices : {1, 2, 3}) {
      EmulatedMachine machine(TestTime::kReal, devices, OneMiB());
      std::vector<Device*> places;
      for (int d = 0; d < devices; ++d) places.push_back(&machine.device(d));
      const ExpertPlacement placement(grid_, std::vector<int>(static_cast<size_t>(devices), -1));
      const HostExperts experts(*source, grid_, placement, places, {});
      uint64_t bytes = 0;
      const auto files = experts.memory();
      EXPECT_EQ(files.size(), static_cast<size_t>(devices));
      for (const std::span<const std::byte> file : files) bytes += file.size();
      EXPECT_EQ(bytes, source->AllIds().size() * source->layout().slot_bytes);
      for (const ExpertId id : source->AllIds()) {
        const ExpertIndex expert = grid_.Index(id);
        EXPECT_TRUE(source->IsBlobOf(id, experts.blob(expert)));
        const Extent extent = experts.Extents(id)[0];
        EXPECT_EQ(extent.file, placement.device(expert));
        EXPECT_EQ(files[static_cast<size_t>(extent.file)].data() + extent.offset,
                  experts.blob(expert));
        EXPECT_EQ(extent.bytes, experts.layout().slot_bytes);
      }
    }
  }
}

TEST_F(HostExpertsTest, ADeviceWithoutExpertsTakesNoMemory) {
  TestSourceShape shape;
  shape.dense_layers = {1, 2, 3};
  const std::unique_ptr<TestSource> source = Write(shape);
  const ExpertGrid grid(4, 8);
  EmulatedMachine machine(TestTime::kReal, 9, OneMiB());
  std::vector<Device*> places;
  for (int d = 0; d < 9; ++d) places.push_back(&machine.device(d));
  const ExpertPlacement placement(grid, std::vector<int>(9, -1));
  const HostExperts experts(*source, grid, placement, places, {});
  EXPECT_TRUE(experts.memory()[8].empty());
}

// What is on the host only, or on another node than its device's, has a home of its own.
TEST_F(HostExpertsTest, HomesAreWhereThePlacementFixesThem) {
  const std::unique_ptr<TestSource> source = Write({});
  EmulatedMachine machine(TestTime::kReal, 1, OneMiB());
  Device* const place = &machine.device(0);
  FixedExperts fixed;
  fixed.devices.assign(static_cast<size_t>(grid_.total()), FixedExperts::kDealt);
  fixed.nodes.resize(static_cast<size_t>(grid_.total()));
  fixed.devices[3] = fixed.devices[5] = ExpertPlacement::kHost;
  fixed.nodes[4] = fixed.nodes[5] = 0;
  const ExpertPlacement placement(grid_, std::vector<int>{-1}, 0, fixed);
  const HostExperts experts(*source, grid_, placement, {&place, 1}, {});
  const auto files = experts.memory();
  ASSERT_EQ(files.size(), 4u);
  const uint64_t slot_bytes = source->layout().slot_bytes;
  EXPECT_EQ(files[0].size(), (source->AllIds().size() - 3) * slot_bytes);
  for (const size_t file : {1, 2, 3}) EXPECT_EQ(files[file].size(), slot_bytes);
  const auto file_of = [&](ExpertIndex expert) {
    return experts.Extents(grid_.Id(expert))[0].file;
  };
  EXPECT_EQ(file_of(3), 1);
  EXPECT_EQ(file_of(4), 2);
  EXPECT_EQ(file_of(5), 3);
  EXPECT_EQ(experts.files()[1], "host memory");
  for (const ExpertId id : source->AllIds()) {
    EXPECT_TRUE(source->IsBlobOf(id, experts.blob(grid_.Index(id))));
  }
}

TEST_F(HostExpertsTest, AFileThatIsCutShortIsRefused) {
  const std::unique_ptr<TestSource> source = Write({});
  std::filesystem::resize_file(source->files()[0], 1000);
  EmulatedMachine machine(TestTime::kReal, 1, OneMiB());
  Device* const place = &machine.device(0);
  const ExpertPlacement placement(grid_, std::vector<int>{-1});
  try {
    const HostExperts experts(*source, grid_, placement, {&place, 1}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
    EXPECT_NE(std::string(error.what()).find("part0"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace moesaic
