// Rule 1 for the schedules: the logits of a plain forward pass in every bit, for every schedule,
// number of groups, budget and number of devices; and what must hold of their timelines.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "core/device/emulated_device.h"
#include "tests/core/base/caught.h"
#include "tests/serving/batch/pass_rig.h"
#include "tests/serving/batch/timeline_checks.h"

namespace moesaic {
namespace {

// [sequences] the hash of all logits of each, computed alone.
std::vector<uint64_t> Expected(const std::string& directory = MOESAIC_SAMPLE_MODEL_DIR) {
  HarnessOptions options;
  options.isa = SelectKernels().isa;
  ModelHarness model(directory, options);
  const auto vocab = static_cast<int>(model.config().vocab_size);
  std::vector<uint64_t> hashes;
  for (int s = 0; s < kPassSequences; ++s) {
    ModelHarness::Sequence sequence = model.NewSequence(kPassBlocks * kKvBlockTokens);
    std::vector<float> all;
    for (int step = 0; step < kPassSteps; ++step) {
      const ModelHarness::Piece piece = {&sequence, PassTokens(s, step, vocab)};
      const std::vector<float> logits = model.Run({&piece, 1});
      all.insert(all.end(), logits.begin(), logits.end());
    }
    hashes.push_back(Hash64(std::as_bytes(std::span(all))));
  }
  return hashes;
}

// Of every group and layer: queries come before their attention, attention before its outputs go
// back; each lane's attention is that of one group after another.
void ExpectCopiesAroundAttention(const Timeline::Snapshot& timeline, bool devices) {
  const int64_t attention = timeline.sum(Activity::kAttention).count;
  EXPECT_GT(attention, 0);
  EXPECT_EQ(timeline.sum(Activity::kHiddenOut).count, devices ? attention : 0);
  EXPECT_EQ(timeline.sum(Activity::kHiddenIn).count, devices ? attention : 0);
  std::map<Activity, std::vector<TimelineInterval>> lanes;
  for (const TimelineInterval& interval : timeline.intervals) {
    lanes[interval.activity].push_back(interval);
    if (interval.activity == Activity::kAttention) {
      EXPECT_EQ(interval.lane, 0);
    }
  }
  if (!devices) return;
  for (size_t i = 0; i < static_cast<size_t>(attention); ++i) {
    const TimelineInterval& task = lanes[Activity::kAttention][i];
    EXPECT_LE(lanes[Activity::kHiddenOut][i].end_ns, task.begin_ns);
    EXPECT_LE(task.end_ns, lanes[Activity::kHiddenIn][i].begin_ns);
    EXPECT_EQ(lanes[Activity::kHiddenOut][i].layer, task.layer);
    EXPECT_EQ(lanes[Activity::kHiddenIn][i].layer, task.layer);
  }
}

TEST(PassExactnessTest, SchedulesGroupsBudgetsAndDevices) {
  const std::vector<uint64_t> expected = Expected();
  constexpr auto kModule = ScheduleKind::kModuleBatching;
  constexpr auto kOverlapped = ScheduleKind::kOverlapped;
  constexpr auto kPaged = ScheduleKind::kPagedWeights;
  const PassSetting settings[] = {
      {kModule, 1, 40, 0},
      {kModule, 3, 40, 0},
      {kOverlapped, 2, 1, 0},
      {kOverlapped, 2, 64, 0},
      {kOverlapped, 1, 40, 0},
      {kPaged, 1, 40, 0},
      {kPaged, 2, 3, 0},
      {kPaged, 4, 64, 0},
      {kPaged, 9, 256, 0},
      {kModule, 1, 40, 1},
      {kModule, 3, 256, 1},
      {kModule, 2, 20, 2},
      {kOverlapped, 2, 64, 1},
      {kOverlapped, 2, 1, 3},
      {kPaged, 3, 64, 1},
      {kPaged, 7, 2, 2},
      {kPaged, 4, 64, 1, {1e9, 20}},
      {kModule, 2, 64, 2, {1e9, 20}},
  };
  for (const PassSetting& setting : settings) {
    PassRig rig(setting);
    EXPECT_EQ(HashesOf(rig.RunAll()), expected)
        << ScheduleKindName(setting.schedule) << ", " << setting.groups << " groups, "
        << setting.slots << " slots, " << setting.devices << " devices";
    const Timeline::Snapshot timeline = rig.timeline.Take();
    ExpectNoStallWhileIdle(timeline);
    ExpectComputeLaneInOrder(timeline);
    ExpectCopiesAroundAttention(timeline, setting.devices > 0);
  }
}

// Experts that are routed before their layer attends, in groups that are in different layers;
// scaled residuals; norms that subtract the mean.
TEST(PassExactnessTest, LayersOfOtherKinds) {
  for (const char* const name : {"arctic_bf16", "granitemoe_shared_bf16", "dbrx_bf16_clip"}) {
    const std::string directory = FixtureModel(name);
    const std::vector<uint64_t> expected = Expected(directory);
    for (PassSetting setting : {PassSetting{ScheduleKind::kModuleBatching, 3, 12, 0},
                                PassSetting{ScheduleKind::kOverlapped, 2, 12, 1},
                                PassSetting{ScheduleKind::kPagedWeights, 3, 3, 0}}) {
      setting.adjust = [&directory](EngineOptions& engine) { engine.model_dir = directory; };
      PassRig rig(setting);
      EXPECT_EQ(HashesOf(rig.RunAll()), expected)
          << name << ", " << ScheduleKindName(setting.schedule);
    }
  }
}

// What a layer streams is read once for all groups when the buffers hold it.
TEST(PassExactnessTest, GroupsShareWhatIsRead) {
  for (const ScheduleKind schedule : {ScheduleKind::kOverlapped, ScheduleKind::kPagedWeights}) {
    PassRig rig({schedule, 2, 64, 0});  // 32 buffers for the 32 experts of a layer
    rig.RunAll();
    const ExpertStats& totals = rig.experts.streams().front()->totals();
    const auto experts = static_cast<uint64_t>(rig.files.config.num_experts() *
                                               rig.files.config.num_sparse_layers());
    EXPECT_LE(totals.bytes_read, (kPassSteps * experts + 32) * rig.plan.slot_bytes);
  }
}

// Copies that were queued while they failed may fail a pass each; a link has fewer than this.
PassLogits AfterWhatIsOnItsWay(PassRig& rig) {
  for (int copy = 0; copy < 16; ++copy) {
    try {
      return rig.RunAll();
    } catch (const Error&) {
    }
  }
  return rig.RunAll();
}

TEST(PassExactnessTest, AFailedExpertFailsThePassOnly) {
  const std::vector<uint64_t> expected = Expected();
  for (const ScheduleKind schedule :
       {ScheduleKind::kModuleBatching, ScheduleKind::kOverlapped, ScheduleKind::kPagedWeights}) {
    PassRig rig({schedule, 2, 40, 2});
    auto& device = dynamic_cast<EmulatedDevice&>(rig.experts.device(1));
    EmulatedFaults faults;
    faults.copy_failure_probability = 1;
    device.SetFaults(faults);
    const Error error = Caught([&] { rig.RunAll(); });
    EXPECT_TRUE(Contains(error, "emulated:1: copying "));
    EXPECT_FALSE(Contains(error, "disk"));
    device.SetFaults({});
    EXPECT_EQ(HashesOf(AfterWhatIsOnItsWay(rig)), expected) << ScheduleKindName(schedule);
  }
}

TEST(PassExactnessTest, CopiesToADeviceHaveThePlansSize) {
  // Every expert has a slot, so that each is copied once: whole, or in packets of the options.
  PassSetting setting{ScheduleKind::kModuleBatching, 2, 256, 1};
  const auto run = [&](uint64_t& copies) {
    PassRig rig(setting);
    std::vector<uint64_t> hashes = HashesOf(rig.RunAll());
    const auto& device = dynamic_cast<EmulatedDevice&>(rig.experts.device(0));
    copies = device.counters(EmulatedEngine::kHostToDevice).copies;
    return hashes;
  };
  uint64_t in_packets = 0;
  uint64_t whole = 0;
  const std::vector<uint64_t> expected = run(in_packets);
  setting.packet_bytes = 1 << 20;
  EXPECT_EQ(run(whole), expected);
  EXPECT_GT(whole, 0u);
  EXPECT_GT(in_packets, 3 * whole);
}

}  // namespace
}  // namespace moesaic
