// The data mover over a reader that the test drives: every blob whole, every expert once per pass,
// faults, one buffer.

#include "serving/batch/streaming_experts.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/base/mutex.h"
#include "tests/prefetch/fake_reader.h"
#include "tests/prefetch/test_source.h"
#include "tests/serving/batch/timeline_checks.h"

namespace moesaic {
namespace {

struct StreamRig {
  StreamRig(const TestSourceShape& shape, int64_t slots, int64_t buffers)
      : source(shape), disk(source.Contents()) {
    StreamingOptions options;
    options.slots = slots;
    options.buffers = buffers;
    options.packet_bytes = 4096;
    options.depth = 4;
    options.timeline = &timeline;
    experts = std::make_unique<StreamingExperts>(
        source, shape.num_layers, shape.num_experts, options,
        std::make_unique<ManualReader>(disk, options.depth, true));
  }

  ExpertStats RunLayer(const std::vector<ExpertId>& needed) {
    experts->BeginLayer(needed, 1);
    std::set<ExpertId> seen;
    std::vector<PinnedExpert> ready;
    try {
      while (experts->NextReady(ready)) {
        for (const PinnedExpert& expert : ready) {
          EXPECT_TRUE(source.IsBlobOf(expert.id, expert.blob));
          EXPECT_TRUE(seen.insert(expert.id).second);
          experts->Release(expert);
        }
        ready.clear();
      }
    } catch (...) {
      experts->EndLayer();
      throw;
    }
    EXPECT_EQ(seen.size(), needed.size());
    return experts->EndLayer();
  }

  ExpertStats RunPass(bool last) {
    const TestSourceShape& shape = source.shape();
    ExpertStats stats;
    experts->StepBegan();
    if (begin_ns == 0) begin_ns = SteadyClock().NowNs();
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      if (!source.HasLayer(layer)) continue;
      if (last && layer == shape.num_layers - 1) {
        end_ns = SteadyClock().NowNs();
        experts->StopPrefetching();
      }
      std::vector<int> all;
      all.reserve(static_cast<size_t>(shape.num_experts));
      for (int e = 0; e < shape.num_experts; ++e) all.push_back(e);
      stats += RunLayer(source.Ids(layer, all));
    }
    experts->timeline().ComputeEnded(Activity::kDense, -1);
    return stats;
  }

  TestSource source;
  ManualDisk disk;
  Timeline timeline{100'000};
  int64_t begin_ns = 0;  // of reading ahead
  int64_t end_ns = 0;
  std::unique_ptr<StreamingExperts> experts;
};

std::vector<TestSourceShape> Shapes() {
  TestSourceShape packed;
  packed.dense_layers = {1};
  TestSourceShape direct;
  direct.direct = true;
  direct.piece_bytes = {12288};
  return {packed, direct};
}

TEST(StreamingExpertsTest, EveryExpertOnceAPass) {
  for (const TestSourceShape& shape : Shapes()) {
    const int64_t layers = shape.num_layers - static_cast<int64_t>(shape.dense_layers.size());
    const int64_t all = layers * shape.num_experts;
    for (const int64_t slots : {int64_t{1}, int64_t{2}, int64_t{7}, all - 1, all}) {
      for (const int64_t buffers : {1, 2, 5}) {
        StreamRig rig(shape, slots, buffers);
        const int64_t streamed = slots == all ? 0 : all - std::max<int64_t>(0, slots - buffers);
        uint64_t bytes = 0;
        for (int pass = 0; pass < 3; ++pass) bytes += rig.RunPass(pass == 2).bytes_read;
        // Residents once, the others once a pass.
        const auto experts = static_cast<uint64_t>(all - streamed + 3 * streamed);
        // What was read ahead for a pass that did not come.
        const auto most = experts + static_cast<uint64_t>(buffers);
        const uint64_t expert_bytes = rig.source.layout().slot_bytes;
        EXPECT_GE(bytes, experts * expert_bytes) << slots << " slots, " << buffers << " buffers";
        EXPECT_LE(bytes, most * expert_bytes) << slots << " slots, " << buffers << " buffers";
        const Timeline::Snapshot timeline = rig.timeline.Take();
        ExpectNoStallWhileIdle(timeline);
        ExpectNoFreeBufferWhileIdle(timeline, rig.begin_ns, rig.end_ns);
        ExpectComputeLaneInOrder(timeline);
        EXPECT_GE(timeline.sum(Activity::kRead).bytes, bytes);
        EXPECT_LE(timeline.sum(Activity::kRead).bytes, most * expert_bytes);
      }
    }
  }
}

TEST(StreamingExpertsTest, ReadsAheadWhileALayerIsComputed) {
  StreamRig rig(Shapes()[1], 4, 4);
  rig.RunLayer(rig.source.Ids(0, {0, 1}));
  EXPECT_EQ(rig.experts->resident(), 0);  // no pass has begun: nothing is read ahead
  rig.disk.SetAutomatic(false);
  rig.experts->StepBegan();
  rig.disk.WaitForPending(4);  // of the layers that come
  rig.disk.SetAutomatic(true);
  rig.RunPass(true);
}

TEST(StreamingExpertsTest, FailedReadsAreTriedAgainAndThenFailTheLayer) {
  for (const TestSourceShape& shape : Shapes()) {
    StreamRig rig(shape, 3, 3);
    int failures = 2;
    rig.disk.SetFault([&](const ReadRequest&) { return failures-- > 0 ? -EIO : 0; });
    EXPECT_EQ(rig.RunLayer(rig.source.Ids(0, {0, 1})).failed_reads, 2u);
    rig.disk.SetFault([](const ReadRequest& read) { return read.file == 0 ? -EIO : 0; });
    try {
      rig.RunLayer(rig.source.Ids(2, {0, 1, 2, 3, 4}));
      FAIL() << "the layer had its experts";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
    }
    rig.RunLayer(rig.source.Ids(3, {0, 1}));  // in the other file
    rig.disk.SetFault(nullptr);
    rig.RunPass(false);
    rig.RunPass(true);
  }
}

TEST(StreamingExpertsTest, DamagedExpertsFailTheirLayerOnly) {
  StreamRig rig(Shapes()[0], 3, 2);
  rig.source.on_pack = [](ExpertId id) {
    if (id.layer == 2 && id.index == 1) Fail(ErrorKind::kCorrupt, "damaged");
  };
  EXPECT_THROW(rig.RunLayer(rig.source.Ids(2, {0, 1, 2})), Error);
  rig.RunLayer(rig.source.Ids(2, {0, 2}));
  rig.RunLayer(rig.source.Ids(3, {1}));
}

TEST(StreamingExpertsTest, DirectBytesAreCheckedUntilTheyWereRightOnce) {
  StreamRig rig(Shapes()[1], 3, 2);
  std::set<ExpertId> right;
  std::map<ExpertId, int> checks;
  bool damaged = true;
  Mutex mutex;
  rig.source.must_check = [&](ExpertId id) {
    const MutexLock lock(mutex);
    return right.count(id) == 0;
  };
  rig.source.on_check = [&](ExpertId id, std::span<const std::byte> slot) {
    EXPECT_TRUE(rig.source.IsBlobOf(id, slot.data()));
    const MutexLock lock(mutex);
    ++checks[id];
    if (damaged && id.layer == 2 && id.index == 1) Fail(ErrorKind::kCorrupt, "damaged");
    right.insert(id);
  };
  EXPECT_THROW(rig.RunLayer(rig.source.Ids(2, {0, 1, 2})), ExpertError);
  rig.RunLayer(rig.source.Ids(2, {0, 2}));
  rig.RunLayer(rig.source.Ids(3, {1}));
  {
    const MutexLock lock(mutex);
    damaged = false;
  }
  rig.RunPass(false);
  rig.RunPass(true);
  const MutexLock lock(mutex);
  const int experts = rig.source.shape().num_layers * rig.source.shape().num_experts;
  EXPECT_EQ(static_cast<int>(checks.size()), experts);
  for (const auto& [id, times] : checks) {
    if (id.layer == 2 && id.index == 1) {
      EXPECT_GE(times, 2);
    } else {
      EXPECT_EQ(times, 1) << id.layer << " " << id.index;
    }
  }
}

}  // namespace
}  // namespace moesaic
