// Rule 1 for the schedules: the logits of a plain forward pass in every bit, for every schedule,
// number of groups, budget and number of devices; and what must hold of their timelines.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "serving/batch/batch_experts.h"
#include "serving/batch/pass_runner.h"
#include "tests/serving/batch/timeline_checks.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

constexpr int kPassSequences = 7;
constexpr int kPassSteps = 4;  // a prefill, then decode
constexpr int64_t kPassBlocks = 2;

struct Setting {
  ScheduleKind schedule;
  int64_t groups;
  int64_t slots;  // of each device
  int devices;
  EmulatedLink link = {};
};

std::vector<int32_t> TokensOf(int sequence, int step, int vocab) {
  return PromptOf(100 * step + sequence, step == 0 ? 3 + sequence % 5 : 1, vocab);
}

// [sequences] the hash of all logits of each, computed alone.
std::vector<uint64_t> Expected() {
  HarnessOptions options;
  options.isa = SelectKernels().isa;
  ModelHarness model(MOESAIC_SAMPLE_MODEL_DIR, options);
  const auto vocab = static_cast<int>(model.config().vocab_size);
  std::vector<uint64_t> hashes;
  for (int s = 0; s < kPassSequences; ++s) {
    ModelHarness::Sequence sequence = model.NewSequence(kPassBlocks * kKvBlockTokens);
    std::vector<float> all;
    for (int step = 0; step < kPassSteps; ++step) {
      const ModelHarness::Piece piece = {&sequence, TokensOf(s, step, vocab)};
      const std::vector<float> logits = model.Run({&piece, 1});
      all.insert(all.end(), logits.begin(), logits.end());
    }
    hashes.push_back(Hash64(std::as_bytes(std::span(all))));
  }
  return hashes;
}

struct PassRig {
  explicit PassRig(const Setting& setting)
      : options(OptionsOf(setting)),
        files(OpenModelFiles(options, SelectKernels())),
        plan(PlanOf(setting)),
        pool(options.threads),
        experts(options, plan, files, pool, timeline),
        model(files.config,
              ModelWeights::Load(files.config, WeightType::kBf16, *files.tensors, SelectKernels(),
                                 pool),
              files.experts->layout(), experts.places(), SelectKernels(), pool,
              LimitsOf(options, plan.sizes)),
        runner(model, pool, experts.streams(), experts.dense_device(), setting.schedule,
               &timeline) {}

  static EngineOptions OptionsOf(const Setting& setting) {
    EngineOptions engine;
    engine.model_dir = MOESAIC_SAMPLE_MODEL_DIR;
    engine.threads = 2;
    engine.packet_bytes = 16384;
    engine.devices.count = setting.devices;
    engine.devices.emulated_link = setting.link;
    return engine;
  }

  BatchPlan PlanOf(const Setting& setting) {
    BatchSizes sizes;
    sizes.schedule = setting.schedule;
    sizes.micro_batches = setting.groups;
    sizes.max_num_seqs = kPassSequences;
    sizes.max_batch_tokens = 64;
    sizes.max_context_tokens = kPassBlocks * kKvBlockTokens;
    sizes.num_kv_blocks = kPassBlocks * kPassSequences;
    sizes.expert_slots = setting.slots;
    sizes.buffers = std::max<int64_t>(1, setting.slots / 2);
    options.devices.memory =
        std::to_string(static_cast<uint64_t>(setting.slots) * files.experts->layout().slot_bytes);
    return LedgerOf(options, files, sizes);
  }

  std::vector<uint64_t> RunAll() {
    const auto vocab = static_cast<int>(files.config.vocab_size);
    std::vector<std::vector<int32_t>> blocks;
    for (int32_t s = 0; s < kPassSequences; ++s) blocks.push_back({2 * s, 2 * s + 1});
    std::vector<int64_t> lengths(kPassSequences, 0);
    std::vector<std::vector<float>> logits(kPassSequences);
    std::vector<SliceRange> groups;
    const int64_t count = std::min<int64_t>(plan.sizes.micro_batches, kPassSequences);
    for (int64_t g = 0; g < count; ++g) {
      groups.push_back({kPassSequences * g / count, kPassSequences * (g + 1) / count});
    }
    for (int step = 0; step < kPassSteps; ++step) {
      std::vector<int32_t> tokens;
      std::vector<SequenceSlice> slices;
      for (size_t s = 0; s < kPassSequences; ++s) {
        const std::vector<int32_t> own = TokensOf(static_cast<int>(s), step, vocab);
        SequenceSlice slice;
        slice.first_row = std::ssize(tokens);
        slice.num_tokens = std::ssize(own);
        slice.start_position = lengths[s];
        slice.blocks = blocks[s];
        slices.push_back(slice);
        lengths[s] += slice.num_tokens;
        tokens.insert(tokens.end(), own.begin(), own.end());
      }
      runner.Run({tokens, slices}, groups);
      for (size_t s = 0; s < kPassSequences; ++s) {
        for (int64_t t = 0; t < slices[s].num_tokens; ++t) {
          const auto row = static_cast<int32_t>(slices[s].first_row + t);
          std::vector<float> out(static_cast<size_t>(vocab));
          model.Logits({&row, 1}, out.data());
          logits[s].insert(logits[s].end(), out.begin(), out.end());
        }
      }
    }
    experts.StopPrefetching();
    std::vector<uint64_t> hashes;
    for (const auto& values : logits) hashes.push_back(Hash64(std::as_bytes(std::span(values))));
    return hashes;
  }

  EngineOptions options;
  ModelFiles files;
  BatchPlan plan;
  Timeline timeline{1'000'000};
  ThreadPool pool;
  BatchExperts experts;
  Model model;
  PassRunner runner;
};

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
  const Setting settings[] = {
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
  for (const Setting& setting : settings) {
    PassRig rig(setting);
    EXPECT_EQ(rig.RunAll(), expected)
        << ScheduleKindName(setting.schedule) << ", " << setting.groups << " groups, "
        << setting.slots << " slots, " << setting.devices << " devices";
    const Timeline::Snapshot timeline = rig.timeline.Take();
    ExpectNoStallWhileIdle(timeline);
    ExpectComputeLaneInOrder(timeline);
    ExpectCopiesAroundAttention(timeline, setting.devices > 0);
  }
}

// What a layer streams is read once for all groups when the buffers hold it.
TEST(PassExactnessTest, GroupsShareWhatIsRead) {
  for (const ScheduleKind schedule : {ScheduleKind::kOverlapped, ScheduleKind::kPagedWeights}) {
    PassRig rig({schedule, 2, 64, 0});  // 32 buffers for the 32 experts of a layer
    rig.RunAll();
    const ExpertStats& totals = rig.experts.streams().front()->totals();
    const auto experts =
        static_cast<uint64_t>(rig.files.config.num_experts * rig.files.config.num_sparse_layers());
    EXPECT_LE(totals.bytes_read, (kPassSteps * experts + 32) * rig.plan.slot_bytes);
  }
}

// Copies that were queued while they failed may fail a pass each; a link has fewer than this.
std::vector<uint64_t> AfterWhatIsOnItsWay(PassRig& rig) {
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
    EXPECT_THROW(rig.RunAll(), Error);
    device.SetFaults({});
    EXPECT_EQ(AfterWhatIsOnItsWay(rig), expected) << ScheduleKindName(schedule);
  }
}

}  // namespace
}  // namespace moesaic
