#include "core/perf/hardware_profile.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/error.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

HardwareProfile Example() {
  HardwareProfile profile;
  Topology topology;
  topology.cpu_model = "Some \"CPU\"";
  topology.isa_flags = {"avx2", "fma"};
  topology.cpus = {{0, 0, 0, 0}, {1, 0, 0, 0}};
  topology.nodes = {{0, {0, 1}, 1u << 30}};
  topology.memory_total_bytes = uint64_t{1} << 34;
  topology.cgroup.cpu_quota = 1.5;
  profile.host = DescribeHost(topology);
  profile.created = "2026-01-02T03:04:05Z";
  const Measured rate{2e9, 1.5e9, 2.5e9, "byte/s", "median of 3", "2026-01-02T03:04:05Z"};
  profile.disks = {{"/", "uring", {{4096, 1, rate, {80, 70, 90, "us", "p50", "t"}}}},
                   {"/data", "threads", {}},
                   {"/data/models", "uring", {}}};
  profile.memory = {{1, rate}, {2, {3e10, 3e10, 3e10, "byte/s", "h", "t"}}};
  profile.compute = {{"avx2 f32", 1, rate}, {"avx2 f32", 2, {4e9, 4e9, 4e9, "flop/s", "h", "t"}}};
  profile.kernels = {{"f32",
                      "int8",
                      {{1, "avx_vnni"}, {4, "avx512_vnni"}},
                      "median of 7",
                      "2026-01-02T03:04:05Z"}};
  const auto per_s = [](double value) { return Measured{value, value, value, "byte/s", "h", "t"}; };
  profile.devices = {{"cuda:0",
                      "Some GPU",
                      {{1 << 16, per_s(1e9), per_s(9e8), per_s(2e9)},
                       {1 << 20, per_s(2e10), per_s(1.8e10), per_s(2.1e10)}},
                      {{"int4", 1, per_s(3e10), per_s(2e10)}},
                      {{"int4", 16, per_s(3e11), per_s(2e11)}}},
                     {"cuda:1", "Another", {}, {}, {}}};
  return profile;
}

TEST(HardwareProfileTest, RoundTrip) {
  const HardwareProfile profile = Example();
  const std::string text = SerializeProfile(profile);
  const HardwareProfile again = ParseProfile(text, "p.json");
  EXPECT_EQ(SerializeProfile(again), text);
  EXPECT_EQ(again.host.fingerprint, profile.host.fingerprint);
  EXPECT_EQ(again.host.cpu_model, "Some \"CPU\"");
  EXPECT_EQ(again.disks.at(0).rates.at(0).latency.value, 80);
  EXPECT_EQ(again.memory.at(1).threads, 2);
  EXPECT_EQ(again.kernels.at(0).steps.at(1).min_rows, 4);
  EXPECT_EQ(again.kernels.at(0).steps.at(1).instructions, "avx512_vnni");
  EXPECT_EQ(again.devices.at(0).copies.at(1).to_device_loaded.value, 1.8e10);
  EXPECT_EQ(again.devices.at(0).on_host.at(0).weights, "int4");
  EXPECT_EQ(again.devices.at(0).on_device.at(0).rows, 16);
}

TEST(HardwareProfileTest, LookUps) {
  const HardwareProfile profile = Example();
  EXPECT_EQ(profile.memory_bytes_per_s(), 3e10);
  EXPECT_EQ(profile.DiskFor("/data/models/x")->path, "/data/models");
  EXPECT_EQ(profile.DiskFor("/data/modelsx")->path, "/data");
  EXPECT_EQ(profile.DiskFor("/home")->path, "/");
  EXPECT_EQ(profile.DiskFor("relative"), nullptr);
  EXPECT_EQ(HardwareProfile().memory_bytes_per_s(), 0);
  ASSERT_NE(profile.DeviceNamed("cuda:0", "Some GPU"), nullptr);
  EXPECT_EQ(profile.DeviceNamed("cuda:0", "Another"), nullptr);
  EXPECT_EQ(profile.DeviceNamed("cuda:0", "Some GPU")->copy_bytes_per_s(1 << 19), 1.8e10);
  EXPECT_EQ(profile.DeviceNamed("cuda:0", "Some GPU")->copy_bytes_per_s(4096), 9e8);
  EXPECT_EQ(profile.DeviceNamed("cuda:1", "Another")->copy_bytes_per_s(4096), 0);
}

TEST(HardwareProfileTest, FingerprintTellsMachinesApart) {
  Topology topology;
  topology.cpu_model = "A";
  topology.memory_total_bytes = uint64_t{16} << 30;
  const std::string a = DescribeHost(topology).fingerprint;
  topology.memory_total_bytes -= 50 << 20;  // another kernel reserves a little more
  EXPECT_EQ(DescribeHost(topology).fingerprint, a);
  topology.cpu_model = "B";
  EXPECT_NE(DescribeHost(topology).fingerprint, a);
}

TEST(HardwareProfileTest, RefusesWhatIsNoProfile) {
  for (const char* text :
       {"", "[]", "{}", "{\"format\":\"moesaic-hardware-profile\",\"version\":2}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},\"disks\":3}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},\"memory\":[1]}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},"
        "\"kernels\":[{\"steps\":[{\"min_rows\":0}]}]}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},"
        "\"devices\":[{\"on_host\":[{\"rows\":0,\"alone\":{\"value\":1},"
        "\"loaded\":{\"value\":1}}]}]}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},"
        "\"devices\":[{\"copies\":[{\"packet_bytes\":1,\"to_device\":{\"value\":1}}]}]}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},\"memory\":[{}]}",
        // What is divided by must be there.
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},"
        "\"disks\":[{\"rates\":[{\"depth\":1,\"read\":{\"value\":1},\"latency\":{\"value\":1}}]}]}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},"
        "\"memory\":[{\"read\":{\"value\":1}}]}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{},"
        "\"compute\":[{\"threads\":1,\"rate\":{\"low\":1}}]}",
        "{\"format\":\"moesaic-hardware-profile\",\"version\":2,\"host\":{\"isa_flags\":[1]}}"}) {
    try {
      ParseProfile(text, "p.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCorrupt) << error.what();
      EXPECT_NE(std::string(error.what()).find("p.json"), std::string::npos) << error.what();
    }
  }
  try {
    ParseProfile("{\"format\":\"moesaic-hardware-profile\",\"version\":99,\"host\":{}}", "p.json");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  }
}

TEST(HardwareProfileTest, FileOfThisHostOnly) {
  std::string name = (fs::temp_directory_path() / "moesaic_profile_XXXXXX").string();
  const fs::path directory = mkdtemp(name.data());
  const fs::path file = directory / "sub" / "profile.json";
  const HardwareProfile profile = Example();
  std::string why;
  EXPECT_FALSE(LoadProfileFor(profile.host, file, &why).has_value());
  EXPECT_NE(why.find("does not exist"), std::string::npos);
  SaveProfile(profile, file);
  EXPECT_TRUE(LoadProfileFor(profile.host, file, &why).has_value());
  HostDescription other = profile.host;
  other.fingerprint = "0";
  EXPECT_FALSE(LoadProfileFor(other, file, &why).has_value());
  EXPECT_NE(why.find("another machine"), std::string::npos);
  std::ofstream(file) << "{";
  EXPECT_FALSE(LoadProfileFor(profile.host, file, &why).has_value());
  EXPECT_NE(why.find("profile.json"), std::string::npos);
  EXPECT_THROW(SaveProfile(profile, "/proc/nowhere/profile.json"), Error);
  fs::remove_all(directory);
}

TEST(HardwareProfileTest, DefaultPath) {
  EXPECT_EQ(DefaultProfilePath("/x", "/home/u"), "/x/moesaic/profile.json");
  EXPECT_EQ(DefaultProfilePath("relative", "/home/u"), "/home/u/.cache/moesaic/profile.json");
  EXPECT_EQ(DefaultProfilePath("", "/home/u"), "/home/u/.cache/moesaic/profile.json");
  EXPECT_EQ(DefaultProfilePath("", "").filename(), "profile.json");
}

}  // namespace
}  // namespace moesaic
