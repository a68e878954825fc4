// The binary form of routing traces: round trips with the JSON form, recording step by step, what
// is left of a killed recorder.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/file.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"
#include "tests/tracer/random_trace.h"
#include "tracer/binary_trace.h"
#include "tracer/routing_trace_json.h"
#include "tracer/trace_format.h"
#include "tracer/trace_writer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostTextBytes = 1 << 26;

// A block whose checksum is wrong would be lost: it is the last. tests/data/stored/README.md says
// who wrote the file.
TEST(TraceFilesTest, AFileOfAnEarlierBuildHasItsChecksums) {
  const RoutingTrace trace =
      ReadBinaryTrace(fs::path(MOESAIC_TEST_DATA_DIR) / "stored" / "sample.trace");
  EXPECT_EQ(trace.lost_bytes, 0u);
  ASSERT_EQ(trace.sequences.size(), 1u);
  EXPECT_EQ(trace.tokens(trace.sequences[0]), 16);
  EXPECT_EQ(trace.sequences[0].prefill_tokens, 14);
}

TEST(TraceFilesTest, BothFormsKeepEverything) {
  const TempDir dir;
  for (const bool texts : {false, true}) {
    RoutingTrace trace = RandomTrace(9, texts);
    if (!texts) {
      trace.header.phase = "mixed";
      trace.sequences[2].prefill_tokens = trace.tokens(trace.sequences[2]);
      trace.sequences[3].prefill_tokens = 1;
    }
    for (const char* name : {"t.trace", "t.jsonl", "t.jsonl.gz"}) {
      const fs::path path = dir.path() / name;
      if (std::string_view(name) == "t.trace") {
        WriteBinaryTrace(path, trace);
        EXPECT_TRUE(IsBinaryTrace(path));
      } else {
        WriteJsonTrace(path, trace);
        EXPECT_FALSE(IsBinaryTrace(path));
      }
      const RoutingTrace back = ReadRoutingTrace(path);
      ExpectEqual(back, trace);
      EXPECT_EQ(back.lost_bytes, 0u);
    }
    EXPECT_FALSE(fs::exists(dir.path() / "t.trace.tmp"));
  }
}

TEST(TraceFilesTest, WithoutWeightsAndTokensItIsSmall) {
  const TempDir dir;
  RoutingTrace trace = RandomTrace(9, false);
  trace.header.weight_scale = 0;
  size_t ids = 0;
  for (TraceSequence& sequence : trace.sequences) {
    sequence.weights.clear();
    sequence.token_ids.clear();
    ids += sequence.experts.size();
  }
  const fs::path path = dir.path() / "t.trace";
  WriteBinaryTrace(path, trace);
  ExpectEqual(ReadRoutingTrace(path), trace);
  EXPECT_LT(fs::file_size(path), ids * 6 / 8 + 700);  // 37 experts: six bits
}

TEST(TraceFilesTest, BytesPackAndUnpack) {
  std::vector<std::byte> bytes;
  BytePacker packer(bytes);
  packer.Varint(0);
  packer.Varint(uint64_t{1} << 62);
  for (int bits = 1; bits <= 32; ++bits) {
    packer.Bits(static_cast<uint32_t>((uint64_t{1} << bits) - 1), bits);
  }
  packer.EndRun();
  packer.Text("text");
  ByteUnpacker unpacker(bytes);
  EXPECT_EQ(unpacker.Varint(), 0u);
  EXPECT_EQ(unpacker.Varint(), uint64_t{1} << 62);
  for (int bits = 1; bits <= 32; ++bits) {
    EXPECT_EQ(unpacker.Bits(bits), static_cast<uint32_t>((uint64_t{1} << bits) - 1)) << bits;
  }
  unpacker.EndRun();
  EXPECT_EQ(unpacker.Text(), "text");
  EXPECT_TRUE(unpacker.done());
  EXPECT_TRUE(unpacker.ok());
  unpacker.Byte();
  EXPECT_FALSE(unpacker.ok());
  EXPECT_EQ(ExpertBits(1), 1);
  EXPECT_EQ(ExpertBits(2), 1);
  EXPECT_EQ(ExpertBits(3), 2);
  EXPECT_EQ(ExpertBits(128), 7);
  EXPECT_EQ(ExpertBits(129), 8);
}

// Two requests in one batch, one of them still in its prompt.
TEST(TraceFilesTest, RecordsStepsOfSeveralSequences) {
  const TempDir dir;
  const fs::path path = dir.path() / "t.trace";
  RoutingTraceHeader header = Header(16);
  header.phase = "mixed";
  header.weight_scale = 0;
  header.num_layers = 2;
  RoutingTraceWriter writer(path, header, {.max_step_rows = 3});
  const int64_t a = writer.BeginSequence("a", "x", 0);
  const int64_t b = writer.BeginSequence("b", "y", 7);
  const std::vector<int32_t> tokens = {5, 6, 9};
  const std::vector<float> weights = {0.5f, 0.25f, 0.75f, 0.125f, 3.0f, 9.0f};
  const auto step = [&](std::vector<int32_t> layer0, std::vector<int32_t> layer1, bool prefill) {
    writer.BeginStep(3);
    Routing routing;
    routing.top_k = 2;
    routing.weights = weights;
    routing.experts = layer0;
    writer.Observe(0, routing);
    routing.experts = layer1;
    writer.Observe(1, routing);
    const std::span<const int32_t> all = tokens;
    const std::vector<TraceStepSlice> slices = {{a, 0, 2, prefill, all.first(2)},
                                                {b, 2, 1, false, all.subspan(2)}};
    writer.EndStep(slices);
  };
  step({1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}, true);
  step({0, 1, 0, 2, 0, 3}, {15, 1, 15, 2, 15, 3}, false);
  writer.Close();
  const RoutingTrace trace = ReadRoutingTrace(path);
  ASSERT_EQ(trace.sequences.size(), 2u);
  EXPECT_EQ(trace.sequences[0].experts, (std::vector<uint16_t>{1, 2, 7, 8, 3, 4, 9, 10,  //
                                                               0, 1, 15, 1, 0, 2, 15, 2}));
  EXPECT_EQ(trace.sequences[1].experts, (std::vector<uint16_t>{5, 6, 11, 12, 0, 3, 15, 3}));
  EXPECT_EQ(trace.sequences[0].prefill_tokens, 2);
  EXPECT_EQ(trace.sequences[1].prefill_tokens, 0);
  EXPECT_EQ(trace.sequences[0].token_ids, (std::vector<int32_t>{5, 6, 5, 6}));
  EXPECT_EQ(trace.sequences[1].first_pos, 7);
  EXPECT_FLOAT_EQ(trace.sequences[0].weights[0], 0.5f);
  EXPECT_FLOAT_EQ(trace.sequences[1].weights[0], 3.0f);
  EXPECT_NEAR(trace.sequences[1].weights[1], 4, 1e-4);  // 9 is beyond what 16 bits hold
}

TEST(TraceFilesTest, WeightsAreRounded) {
  const TempDir dir;
  const fs::path path = dir.path() / "t.trace";
  RoutingTraceHeader header = Header();
  header.weight_scale = 100;
  header.num_layers = 1;
  {
    RoutingTraceWriter writer(path, header, {});
    const int64_t number = writer.BeginSequence("a", "", 0);
    writer.Append(number, false, std::vector<uint16_t>{1, 2}, std::vector<float>{0.996f, 0.494f},
                  {});
  }
  const RoutingTrace trace = ReadRoutingTrace(path);
  EXPECT_EQ(trace.sequences[0].weights, (std::vector<float>{1.0f, 0.49f}));
}

TEST(TraceFilesTest, OneRecorderAtATime) {
  const TempDir dir;
  const RoutingTraceWriter first(dir.path() / "t.trace", Header(), {});
  const Error error = Caught([&] { RoutingTraceWriter(dir.path() / "t.trace", Header(), {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
}

TEST(TraceFilesTest, GoesOnBehindTheLastWholeBlock) {
  const TempDir dir;
  const fs::path path = dir.path() / "t.trace";
  const RoutingTrace trace = RandomTrace(5, false);
  WriteBinaryTrace(path, trace);
  // The beginning of a block, as a kill in the middle of a write leaves it.
  const std::string whole = ReadTextFile(path, kMostTextBytes);
  std::ofstream(path, std::ios::binary | std::ios::app) << "MBLK\xff\xff\1\0 and some";
  const RoutingTrace cut = ReadRoutingTrace(path);
  EXPECT_GT(cut.lost_bytes, 0u);
  ExpectEqual(cut, trace);
  {
    RoutingTraceWriter writer(path, Header(), {});
    const int64_t number = writer.BeginSequence("more", "", -1);
    EXPECT_EQ(number, 5);
    writer.Append(number, false, trace.sequences[1].experts, {}, {});
  }
  const RoutingTrace longer = ReadRoutingTrace(path);
  EXPECT_EQ(longer.lost_bytes, 0u);
  ASSERT_EQ(longer.sequences.size(), 6u);
  EXPECT_EQ(longer.sequences[5].experts, trace.sequences[1].experts);
  // Not over something else.
  EXPECT_THROW(RoutingTraceWriter(path, Header(38), {}), Error);
  const fs::path other = dir.path() / "other";
  std::ofstream(other) << "precious";
  EXPECT_THROW(RoutingTraceWriter(other, Header(), {}), Error);
  EXPECT_EQ(ReadTextFile(other, 100), "precious");
}

TEST(TraceFilesTest, AKilledRecorderLosesLessThanABlock) {
  const TempDir dir;
  constexpr size_t kBlockBytes = 4096;
  std::mt19937 random(2);
  for (int run = 0; run < 20; ++run) {
    const fs::path path = dir.path() / ("t" + std::to_string(run));
    int progress[2];
    ASSERT_EQ(pipe(progress), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      RoutingTraceWriter writer(path, Header(), {.block_bytes = kBlockBytes});
      const int64_t number = writer.BeginSequence("endless", "", 0);
      const std::vector<float> weights(6, 0.5f);
      for (uint32_t token = 0;; ++token) {
        const std::vector<uint16_t> experts(6, static_cast<uint16_t>(token % 37));
        writer.Append(number, false, experts, weights, {});
        const uint32_t done = token + 1;
        if (write(progress[1], &done, sizeof(done)) < 0) _exit(1);
      }
    }
    close(progress[1]);
    uint32_t recorded = 0;  // as told before the kill
    const uint32_t stop_at = 1 + random() % 4000;
    while (recorded < stop_at && read(progress[0], &recorded, sizeof(recorded)) > 0) continue;
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    close(progress[0]);
    const RoutingTrace trace = ReadRoutingTrace(path);
    const int64_t found = trace.sequences.empty() ? 0 : trace.tokens(trace.sequences[0]);
    // A token's record takes 4 bytes, 6 ids of 6 bits and 6 weights of 16.
    constexpr int64_t kTokensPerBlock = kBlockBytes / (4 + 5 + 12) + 1;
    EXPECT_GT(found + kTokensPerBlock, static_cast<int64_t>(recorded));
    for (int64_t t = 0; t < found; ++t) {
      ASSERT_EQ(trace.Experts(trace.sequences[0], t, 2)[1], t % 37);
    }
  }
}

}  // namespace
}  // namespace moesaic
