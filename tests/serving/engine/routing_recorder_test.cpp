#include "serving/engine/routing_recorder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "tests/core/base/temp_dir.h"
#include "tests/core/config/made_up_layers.h"
#include "tracer/binary_trace.h"

namespace moesaic {
namespace {

ModelConfig Config() {
  ModelConfig config;
  for (const bool sparse : {false, true, false, true}) {
    config.layers.push_back(sparse ? SparseLayer(8, 1) : LayerSpec{});
  }
  return config;
}

// One step of one request whose token at position p is p + 100 and uses expert p of layer 1 and
// expert 7 - p of layer 3.
void Step(RoutingRecorder& recorder, RequestId request, int64_t first, int64_t end,
          int64_t prompt_tokens) {
  std::vector<int32_t> tokens;
  std::vector<int32_t> low;
  std::vector<int32_t> high;
  for (int64_t p = first; p < end; ++p) {
    tokens.push_back(static_cast<int32_t>(p + 100));
    low.push_back(static_cast<int32_t>(p));
    high.push_back(static_cast<int32_t>(7 - p));
  }
  const std::vector<float> weights(tokens.size(), 1.0f);
  recorder.BeginStep(end - first);
  recorder.Observe({1, 1, low, weights, {}});
  recorder.Observe({3, 1, high, weights, {}});
  Sequence sequence;
  sequence.id = request;
  sequence.request.id = "id";
  sequence.request.domain = "domain";
  sequence.prompt_tokens = prompt_tokens;
  SequenceSlice slice;
  slice.num_tokens = end - first;
  slice.start_position = first;
  const std::vector<ScheduledSlice> plan = {{&sequence, end - first}};
  recorder.EndStep(plan, {tokens, {slice}});
}

TEST(RoutingRecorderTest, RecordsEveryPositionOnce) {
  const TempDir dir;
  const auto file = dir.path() / "t.trace";
  {
    RoutingRecorder recorder(file, Config(), "model", 16);
    Step(recorder, 9, 0, 2, 3);
    Step(recorder, 9, 2, 3, 3);
    Step(recorder, 9, 3, 4, 3);
    // Preempted: all that it has is computed again, and one token more.
    Step(recorder, 9, 0, 2, 3);
    Step(recorder, 9, 2, 5, 3);
    Step(recorder, 9, 5, 6, 3);
    recorder.EndRequest(9);
    Step(recorder, 10, 2, 4, 3);  // two positions were found in the prefix cache
  }
  const RoutingTrace trace = ReadBinaryTrace(file);
  EXPECT_EQ(trace.header.num_layers, 2);
  EXPECT_EQ(trace.header.first_layer, 1);
  ASSERT_EQ(trace.sequences.size(), 2u);
  const TraceSequence& first = trace.sequences[0];
  EXPECT_EQ(first.id, "id");
  EXPECT_EQ(first.domain, "domain");
  EXPECT_EQ(first.first_pos, 0);
  EXPECT_EQ(first.prefill_tokens, 3);
  EXPECT_EQ(first.token_ids, (std::vector<int32_t>{100, 101, 102, 103, 104, 105}));
  EXPECT_EQ(first.experts, (std::vector<uint16_t>{0, 7, 1, 6, 2, 5, 3, 4, 4, 3, 5, 2}));
  EXPECT_EQ(trace.sequences[1].first_pos, 2);
  EXPECT_EQ(trace.sequences[1].prefill_tokens, 1);
  EXPECT_EQ(trace.sequences[1].token_ids, (std::vector<int32_t>{102, 103}));
}

TEST(RoutingRecorderTest, AFullDiskEndsTheRecordingOnly) {
  const TempDir dir;
  const auto file = dir.path() / "t.trace";
  RoutingRecorder recorder(file, Config(), "model", 16);
  Step(recorder, 1, 0, 2, 3);
  recorder.EndRequest(1);
  const auto bytes = std::filesystem::file_size(file);
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit full = {bytes, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  Step(recorder, 2, 0, 2, 3);
  recorder.EndRequest(2);
  Step(recorder, 3, 0, 2, 3);
  recorder.EndRequest(3);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(ReadBinaryTrace(file).sequences.size(), 1u);
}

}  // namespace
}  // namespace moesaic
