#include "core/perf/machine_spec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/file.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGood =
    "name: box\n"
    "link-in-gb-per-s: 16\n"
    "link-in-gb-per-s-source: 'spec-sheet: PCIe'\n"
    "link-in-gb-per-s-measured: 12.5\n"
    "link-in-gb-per-s-measured-source: 'measured: here'\n"
    "host-memory-gb: 64\n"
    "host-memory-gb-source: 'spec-sheet: 4 x 16'\n"
    "host-gb-per-s: 50\n"
    "host-gb-per-s-source: 'assumed: a guess'\n"
    "cpu-tflops: 1\n"
    "cpu-tflops-source: 'code: a constant'\n";

std::string MachineRefusal(const std::string& yaml) {
  try {
    ParseMachineSpec(yaml, "box.yaml");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(MachineSpecTest, TakesTheMeasuredValueUnlessTheSheetIsAskedFor) {
  const MachineSpec measured = ParseMachineSpec(kGood, "box.yaml");
  EXPECT_FALSE(measured.has_gpu());
  EXPECT_DOUBLE_EQ(measured.link_in_bytes_per_s.value, 12.5e9);
  EXPECT_EQ(measured.link_in_bytes_per_s.from, Provenance::kMeasured);
  EXPECT_EQ(measured.link_in_bytes_per_s.note, "here");
  EXPECT_EQ(measured.cpu_flop_per_s.from, Provenance::kCode);
  const MachineSpec sheet = ParseMachineSpec(kGood, "box.yaml", ConstantChoice::kSpecSheet);
  EXPECT_DOUBLE_EQ(sheet.link_in_bytes_per_s.value, 16e9);
  EXPECT_EQ(sheet.link_in_bytes_per_s.from, Provenance::kSpecSheet);
}

TEST(MachineSpecTest, WhatIsLeftOutIsSaidToBeAssumed) {
  const MachineSpec machine = ParseMachineSpec(kGood, "box.yaml");
  EXPECT_DOUBLE_EQ(machine.link_out_bytes_per_s.value, machine.link_in_bytes_per_s.value);
  EXPECT_EQ(machine.link_out_bytes_per_s.from, Provenance::kAssumed);
  EXPECT_EQ(machine.cpu_attention_bytes_per_s.note, "as host_bytes_per_s");
}

TEST(MachineSpecTest, BadPresetsAreRefusedWithAReason) {
  EXPECT_EQ(MachineRefusal("name: box"), "box.yaml: link-in-gb-per-s is missing or zero");
  EXPECT_EQ(MachineRefusal("link-in-gb-per-s: 16"),
            "box.yaml: link-in-gb-per-s-source: expected \"KIND: note\" with measured, spec-sheet, "
            "assumed or code, not ''");
  EXPECT_EQ(MachineRefusal(std::string(kGood) +
                           "device-memory-gb: 24\ndevice-memory-gb-source: 'code: x'"),
            "box.yaml: device-gb-per-s is missing or zero");
  EXPECT_EQ(
      MachineRefusal(std::string(kGood) + "cpu-efficiency: 2\ncpu-efficiency-source: 'assumed: x'"),
      "box.yaml: cpu-efficiency must be above 0 and at most 1, not 2");
  EXPECT_EQ(MachineRefusal("link-in-gb-per-s: fast"),
            "box.yaml:1: link-in-gb-per-s: expected a number of at least 0, not 'fast'");
}

TEST(MachineSpecTest, EveryPresetReadsBothWaysAndNamesItsSources) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(MOESAIC_CONFIGS_DIR) / "machines")) {
    names.push_back(entry.path().stem().string());
    for (const auto choice : {ConstantChoice::kPreferMeasured, ConstantChoice::kSpecSheet}) {
      const MachineSpec machine =
          ParseMachineSpec(ReadTextFile(entry.path(), 1 << 16), entry.path().string(), choice);
      EXPECT_EQ(machine.name, entry.path().stem().string());
      EXPECT_TRUE(machine.has_gpu());
      EXPECT_GT(machine.threads, 0);
      for (const NamedConstant& named : machine.Constants()) {
        if (named.unit == "1" && named.constant.value == 1) continue;
        EXPECT_FALSE(named.constant.note.empty()) << machine.name << " " << named.name;
      }
    }
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"a100", "a40", "a5000", "a6000", "h100", "h200", "l4",
                                             "t4"}));
}

HardwareProfile MeasuredProfile() {
  HardwareProfile profile;
  profile.host.cpu_model = "cpu";
  profile.host.physical_cores = 2;
  const auto rate = [](double value) { return Measured{value, value, value, "", "once", "today"}; };
  profile.disks.push_back(
      {"/data", "uring", {{4096, 1, rate(1e8), rate(80)}, {1 << 20, 8, rate(2e9), rate(900)}}});
  profile.disks.push_back({"/fast", "uring", {{1 << 20, 8, rate(5e9), rate(900)}}});
  profile.memory.push_back({1, rate(10e9)});
  profile.memory.push_back({2, rate(20e9)});
  profile.compute.push_back({"avx512_vnni int8", 2, rate(9e12)});
  profile.compute.push_back({"avx2 f32", 2, rate(2e11)});
  profile.compute.push_back({"avx512 f32", 2, rate(4e11)});
  return profile;
}

TEST(MachineSpecTest, AProfileGivesAMachineWhoseLinkIsTheModelsDisk) {
  const MachineSpec machine = MachineFromProfile(MeasuredProfile(), "/data/model", 8'000'000'000);
  EXPECT_FALSE(machine.has_gpu());
  EXPECT_DOUBLE_EQ(machine.link_in_bytes_per_s.value, 2e9);
  EXPECT_EQ(machine.disk_block_bytes, 1u << 20);
  EXPECT_DOUBLE_EQ(machine.host_bytes_per_s.value, 20e9);
  EXPECT_DOUBLE_EQ(machine.cpu_flop_per_s.value, 4e11);
  EXPECT_EQ(machine.cpu_flop_per_s.note, "avx512 f32: once, today");
  EXPECT_EQ(machine.threads, 2);
  EXPECT_DOUBLE_EQ(MachineFromProfile(MeasuredProfile(), "/elsewhere", 1).link_in_bytes_per_s.value,
                   5e9);
}

// Its tiles multiply floats, and faster than memory feeds them.
TEST(MachineSpecTest, AProfileWithTiles) {
  HardwareProfile profile = MeasuredProfile();
  const double vectors = MachineFromProfile(profile, "/data/model", 1).cpu_efficiency.value;
  profile.compute.push_back({"amx bf16", 2, {7e12, 7e12, 7e12, "", "once", "today"}});
  profile.compute.push_back({"amx int8", 2, {14e12, 14e12, 14e12, "", "once", "today"}});
  const MachineSpec machine = MachineFromProfile(profile, "/data/model", 1);
  EXPECT_DOUBLE_EQ(machine.cpu_flop_per_s.value, 7e12);
  EXPECT_LT(machine.cpu_efficiency.value, vectors);
}

TEST(MachineSpecTest, AProfileWithoutARateIsRefused) {
  HardwareProfile profile = MeasuredProfile();
  profile.memory.clear();
  EXPECT_THROW(MachineFromProfile(profile, "/data", 1), Error);
}

}  // namespace
}  // namespace moesaic
