#include "serving/plan/machine_profiler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "kernels/cpu/product_choice.h"
#include "serving/plan/kernel_measuring.h"
#include "serving/plan/measuring.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (fs::temp_directory_path() / "moesaic_profiler_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~ScratchDirectory() { fs::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

DiskRate Rate(uint32_t block_bytes, int depth, double bytes_per_s) {
  return {block_bytes, depth, {bytes_per_s, 0, 0, "", "", ""}, {}};
}

TEST(KernelMeasuringTest, StepsGoToWhatIsClearlyFaster) {
  const std::vector<const char*> options = {"narrow", "wide"};
  const auto steps = [&](std::vector<RowTimes> times) {
    std::string text;
    for (const KernelStep& step : StepsOf(options, 1, times)) {
      text += std::to_string(step.min_rows) + step.instructions + " ";
    }
    return text;
  };
  EXPECT_EQ(steps({{1, {0.97, 1.0}}, {2, {1.0, 1.0}}}), "1wide ");
  EXPECT_EQ(steps({{1, {0.9, 1.0}}, {2, {1.02, 1.0}}, {4, {1.1, 1.0}}}), "1narrow 4wide ");
  EXPECT_EQ(steps({{1, {1.0, 1.0}}, {8, {0.5, 1.0}}}), "1wide 8narrow ");
  // Never more steps than a table holds.
  std::vector<RowTimes> unsteady;
  for (int64_t i = 0; i < 20; ++i) {
    unsteady.push_back({i + 1, {i % 2 == 0 ? 1.0 : 2.0, i % 2 == 0 ? 2.0 : 1.0}});
  }
  EXPECT_EQ(StepsOf(options, 0, unsteady).size(), static_cast<size_t>(kMaxProductSteps));
}

// How large the rates are is for benches to say.
TEST(MachineProfilerTest, PeaksOfEveryInstructionSetThereIs) {
  const Topology topology = ReadTopology();
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (!IsaSupported(isa)) continue;
    const MachinePeaks peaks = MeasurePeaks(topology, isa, WeightType::kBf16, 1);
    for (const double rate : {peaks.read_bytes_per_s, peaks.flop_per_s}) {
      EXPECT_GT(rate, 0) << IsaName(isa);
      EXPECT_TRUE(std::isfinite(rate)) << IsaName(isa);
    }
  }
}

TEST(MachineProfilerTest, QuickProfileIsCompleteAndLeavesNothing) {
  const ScratchDirectory directory;
  ProfilerOptions options;
  options.quick = true;
  std::set<std::string> stages;
  options.progress = [&](std::string_view stage) { stages.emplace(stage); };
  const HardwareProfile profile = MeasureMachine(ReadTopology(), directory.path(), options);

  EXPECT_TRUE(profile.quick);
  EXPECT_FALSE(profile.host.fingerprint.empty());
  ASSERT_FALSE(profile.compute.empty());
  // What is kept can be used: a choice for every type of weights that leaves one.
  CpuKernels kernels = SelectKernels();
  size_t with_options = 0;
  for (const WeightType type :
       {WeightType::kBf16, WeightType::kBf16Coded, WeightType::kInt8, WeightType::kInt4}) {
    if (ProductOptions(kernels, type).size() > 1) ++with_options;
    for (const KernelChoice& choice : profile.kernels) {
      EXPECT_EQ(choice.numerics, NumericsClassName(kernels.numerics));
      if (choice.weights != WeightTypeName(type)) continue;
      EXPECT_TRUE(ChooseProducts(type, choice.steps, kernels)) << choice.weights;
    }
  }
  EXPECT_EQ(profile.kernels.size(), with_options);
  EXPECT_EQ(profile.compute.front().instructions, "baseline f32");
  for (const ComputeRate& rate : profile.compute) {
    EXPECT_GT(rate.rate.value, 0) << rate.instructions;
    EXPECT_LE(rate.rate.low, rate.rate.value);
    EXPECT_GE(rate.rate.high, rate.rate.value);
    EXPECT_EQ(rate.rate.unit, "flop/s");
  }
  ASSERT_FALSE(profile.memory.empty());
  for (const MemoryRate& rate : profile.memory) EXPECT_GT(rate.read.value, 0);
  ASSERT_EQ(profile.disks.size(), 1u);
  EXPECT_EQ(profile.disks[0].path, fs::canonical(directory.path()).string());
  ASSERT_FALSE(profile.disks[0].rates.empty());
  for (const DiskRate& rate : profile.disks[0].rates) {
    EXPECT_GT(rate.read.value, 0) << rate.block_bytes;
    EXPECT_GT(rate.latency.value, 0) << rate.block_bytes;
    EXPECT_FALSE(rate.read.how.empty());
    EXPECT_FALSE(rate.read.when.empty());
  }
  EXPECT_GE(stages.size(), 4u);
  EXPECT_TRUE(fs::is_empty(directory.path()));
  // What was measured survives its file.
  const std::string text = SerializeProfile(profile);
  EXPECT_EQ(SerializeProfile(ParseProfile(text, "p")), text);
}

TEST(MachineProfilerTest, MeasuresAnExistingFileWithoutTouchingIt) {
  const ScratchDirectory directory;
  const fs::path file = directory.path() / "data";
  std::ofstream(file) << std::string(300000, 'x');  // not a multiple of a page
  ProfilerOptions options;
  options.quick = true;
  const DiskProfile disk = MeasureDiskFile(file, options);
  ASSERT_FALSE(disk.rates.empty());
  for (const DiskRate& rate : disk.rates) EXPECT_LE(rate.block_bytes, 300000u);
  EXPECT_EQ(fs::file_size(file), 300000u);
}

TEST(MachineProfilerTest, RefusesWhatCannotBeMeasured) {
  const ScratchDirectory directory;
  ProfilerOptions options;
  options.quick = true;
  EXPECT_THROW(MeasureDiskFile(directory.path() / "missing", options), Error);
  std::ofstream(directory.path() / "tiny") << "x";
  EXPECT_THROW(MeasureDiskFile(directory.path() / "tiny", options), Error);
  EXPECT_THROW(TemporaryFile(directory.path() / "missing", true), Error);
}

TEST(MachineProfilerTest, ChoosesTheLeastInFlightThatIsFast) {
  DiskProfile disk;
  EXPECT_EQ(ChooseDiskRate(disk), nullptr);
  disk.rates = {Rate(4096, 1, 0.1e9),    Rate(4096, 32, 0.5e9),   Rate(65536, 1, 0.6e9),
                Rate(65536, 32, 1.7e9),  Rate(1 << 20, 1, 1.2e9), Rate(1 << 20, 4, 1.93e9),
                Rate(4 << 20, 1, 1.5e9), Rate(4 << 20, 4, 2.0e9)};
  const auto choose = [&](uint64_t read_bytes) {
    const DiskRate* rate = ChooseDiskRate(disk, read_bytes);
    return rate == nullptr ? std::pair<uint32_t, int>(0, 0)
                           : std::pair<uint32_t, int>(rate->block_bytes, rate->depth);
  };
  EXPECT_EQ(choose(UINT64_MAX), std::make_pair(1u << 20, 4));
  EXPECT_EQ(choose(1 << 20), std::make_pair(1u << 20, 4));
  EXPECT_EQ(choose(24 << 10), std::make_pair(65536u, 32));  // one block of 64 KiB holds it
  EXPECT_EQ(choose(65537), std::make_pair(1u << 20, 4));
  EXPECT_EQ(choose(1), std::make_pair(4096u, 32));
  const DiskRate* stream = ChooseDiskRate(disk, UINT64_MAX, ReadUse::kStream);
  ASSERT_NE(stream, nullptr);
  EXPECT_EQ(stream->block_bytes, 4u << 20);
  EXPECT_EQ(stream->depth, 4);
  stream = ChooseDiskRate(disk, 65536, ReadUse::kStream);
  ASSERT_NE(stream, nullptr);
  EXPECT_EQ(stream->block_bytes, 65536u);
}

TEST(MeasuringTest, SummaryIsMedianAndRange) {
  const Measured m = Summarise({3, 1, 2}, "us", "how");
  EXPECT_EQ(m.value, 2);
  EXPECT_EQ(m.low, 1);
  EXPECT_EQ(m.high, 3);
  EXPECT_EQ(m.when.size(), 20u);
}

}  // namespace
}  // namespace moesaic
