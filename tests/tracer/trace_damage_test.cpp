// Binary traces: damage, weights that are no whole steps, writes that fail.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
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
#include "tracer/trace_format.h"
#include "tracer/trace_writer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> BytesOf(const fs::path& path) {
  const std::string text = ReadTextFile(path, uint64_t{1} << 26);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Where blocks begin, and the end of the file.
std::vector<size_t> BlockBounds(std::span<const std::byte> bytes) {
  std::vector<size_t> bounds;
  ByteUnpacker start(bytes.subspan(kTraceMagic.size() + 4));
  for (size_t at = kTraceMagic.size() + 8 + start.Fixed(4) + 8; at < bytes.size();) {
    bounds.push_back(at);
    ByteUnpacker head(bytes.subspan(at));
    EXPECT_EQ(head.Fixed(4), kBlockMagic);
    at += kBlockHeaderBytes + head.Fixed(4);
  }
  bounds.push_back(bytes.size());
  return bounds;
}

// Of five sequences, each in a block of its own.
std::vector<std::byte> SeveralBlocks(const fs::path& path) {
  RoutingTraceHeader header = Header();
  header.weight_scale = 0;
  RoutingTraceWriter writer(path, header, {.weights = false});
  for (uint16_t i = 0; i < 5; ++i) {
    const int64_t number = writer.BeginSequence("id" + std::to_string(i), "", -1);
    writer.Append(number, false, std::vector<uint16_t>(6, i), {}, {});
    writer.EndSequence();
  }
  writer.Close();
  return BytesOf(path);
}

// Any bit before the last block, be it of a block's length, which then hides the blocks behind it.
TEST(TraceDamageTest, DamageBeforeTheLastBlockIsAnError) {
  const TempDir dir;
  const std::vector<std::byte> good = SeveralBlocks(dir.path() / "t.trace");
  const std::vector<size_t> bounds = BlockBounds(good);
  ASSERT_EQ(bounds.size(), 6u);
  ASSERT_EQ(ParseBinaryTrace(good, "t").sequences.size(), 5u);
  std::vector<std::byte> bad = good;
  const auto expect_refused = [&](size_t at) {
    try {
      const RoutingTrace trace = ParseBinaryTrace(bad, "t");
      FAIL() << "byte " << at << ": " << trace.sequences.size() << " sequences were taken, "
             << trace.lost_bytes << " bytes left out";
    } catch (const Error& error) {
      EXPECT_NE(error.kind(), ErrorKind::kInternal);
    }
  };
  for (size_t at = 0; at < bounds[4]; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      bad[at] = good[at] ^ std::byte{static_cast<uint8_t>(1u << bit)};
      expect_refused(at);
    }
    bad[at] = good[at];
  }
  for (size_t block = 0; block < 4; ++block) {
    // It claims all that follows: just to the end, and beyond it.
    for (const size_t more : {size_t{0}, size_t{1}, size_t{1000}}) {
      const size_t claimed = good.size() - bounds[block] - kBlockHeaderBytes + more;
      for (size_t i = 0; i < 4; ++i) {
        bad[bounds[block] + 4 + i] = static_cast<std::byte>(claimed >> (8 * i));
      }
      expect_refused(bounds[block]);
    }
    bad = good;
    // A page that never reached the disk.
    std::fill(bad.begin() + static_cast<ptrdiff_t>(bounds[block]),
              bad.begin() + static_cast<ptrdiff_t>(bounds[block + 1]), std::byte{0});
    expect_refused(bounds[block]);
    bad = good;
  }
}

// The last block was cut, too: no whole one follows the damage, but it is not the end of the file.
TEST(TraceDamageTest, DamageBeforeACutBlockIsAnError) {
  const TempDir dir;
  std::vector<std::byte> bytes = SeveralBlocks(dir.path() / "t.trace");
  const std::vector<size_t> bounds = BlockBounds(bytes);
  bytes[bounds[3] + kBlockHeaderBytes] ^= std::byte{1};
  for (const size_t cut : {size_t{1}, bounds[5] - bounds[4] - 1}) {
    const auto left = std::span(bytes).first(bytes.size() - cut);
    EXPECT_EQ(Caught([&] { ParseBinaryTrace(left, "t"); }).kind(), ErrorKind::kCorrupt) << cut;
  }
}

// What a kill or a power cut leaves of the last block: the others are taken, and what is lost told.
TEST(TraceDamageTest, ADamagedLastBlockIsLeftOut) {
  const TempDir dir;
  const std::vector<std::byte> good = SeveralBlocks(dir.path() / "t.trace");
  const std::vector<size_t> bounds = BlockBounds(good);
  const auto expect_left_out = [&](std::span<const std::byte> bytes) {
    const RoutingTrace trace = ParseBinaryTrace(bytes, "t");
    EXPECT_EQ(trace.sequences.size(), 4u);
    EXPECT_EQ(trace.lost_bytes, bytes.size() - bounds[4]);
  };
  for (size_t bytes = bounds[4] + 1; bytes < good.size(); ++bytes) {
    expect_left_out(std::span(good).first(bytes));
  }
  for (size_t at = bounds[4] + 8; at < good.size(); ++at) {  // its hash and its payload
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{1};
    expect_left_out(bad);
  }
}

// Blocks that are whole, with records that no model can have made.
TEST(TraceDamageTest, RecordsThatCannotBeAreRefused) {
  const TempDir dir;
  RoutingTraceHeader header = Header();  // 37 experts, which take six bits
  header.phase = "mixed";
  header.weight_scale = 0;
  struct Part {
    bool prefill;
    uint16_t expert;
  };
  const auto prefill_tokens = [&](const std::vector<Part>& parts) {
    const fs::path path = dir.path() / "t.trace";
    fs::remove(path);
    {
      RoutingTraceWriter writer(path, header, {.weights = false});
      const int64_t number = writer.BeginSequence("a", "", 0);
      for (const Part& part : parts) {
        writer.Append(number, part.prefill, std::vector<uint16_t>(2 * 6, part.expert), {}, {});
      }
    }
    return ReadBinaryTrace(path).sequences[0].prefill_tokens;
  };
  EXPECT_EQ(prefill_tokens({{true, 36}, {false, 0}}), 2);
  EXPECT_EQ(prefill_tokens({{true, 0}, {true, 0}, {true, 0}, {false, 0}}), 6);  // in chunks
  EXPECT_EQ(Caught([&] { prefill_tokens({{true, 37}}); }).kind(), ErrorKind::kCorrupt);
  EXPECT_EQ(Caught([&] { prefill_tokens({{false, 63}}); }).kind(), ErrorKind::kCorrupt);
  const Error error = Caught([&] { prefill_tokens({{true, 0}, {false, 0}, {true, 0}}); });
  EXPECT_EQ(error.kind(), ErrorKind::kCorrupt);
  EXPECT_TRUE(Contains(error, "follow those of an answer")) << error.what();
}

TEST(TraceWeightsTest, WeightsAreRoundedToTheNearestStep) {
  const TempDir dir;
  const fs::path path = dir.path() / "t.trace";
  RoutingTrace trace;
  trace.header = Header();
  trace.header.weight_scale = 1000;
  TraceSequence sequence;
  sequence.id = "a";
  sequence.experts.assign(6, 1);
  sequence.weights = {0.0004f, 0.0006f, 0.3333f, 0.6667f, 1.0236f, 0.9999f};
  trace.sequences.push_back(sequence);
  WriteBinaryTrace(path, trace);
  const RoutingTrace back = ReadBinaryTrace(path);
  ASSERT_EQ(back.sequences[0].weights.size(), 6u);
  const double expected[] = {0, 0.001, 0.333, 0.667, 1.024, 1};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_FLOAT_EQ(back.sequences[0].weights[i], static_cast<float>(expected[i])) << i;
  }
  // 1.0236 is 1023.6 steps, which are 1024: eleven bits, where 1023 takes ten.
  EXPECT_EQ(back.header.weight_bits, 11);
}

// A weight that is no number, below zero or too large is recorded as the nearest that can be.
TEST(TraceWeightsTest, WeightsOutOfRangeAreCut) {
  const TempDir dir;
  const fs::path path = dir.path() / "t.trace";
  RoutingTraceHeader header = Header();
  header.weight_scale = 0;
  {
    RoutingTraceWriter writer(path, header, {});
    const std::vector<float> weights = {NAN, -1, INFINITY, -INFINITY, 1e30f, 0.5f};
    writer.Append(writer.BeginSequence("a", "", 0), false, std::vector<uint16_t>(6, 1), weights,
                  {});
  }
  const std::vector<float> back = ReadBinaryTrace(path).sequences[0].weights;
  const float most = 65535.0f / 16384;
  EXPECT_EQ(back, (std::vector<float>{0, 0, most, 0, most, 0.5f}));
}

TEST(TraceDamageTest, WhatLiesAtTheTemporaryNameIsNotGoneOnWith) {
  const TempDir dir;
  const fs::path path = dir.path() / "t.trace";
  const RoutingTrace trace = RandomTrace(3, false);
  WriteBinaryTrace(path.string() + ".tmp", RandomTrace(5, false));
  WriteBinaryTrace(path, trace);
  ExpectEqual(ReadBinaryTrace(path), trace);
  std::ofstream(path.string() + ".tmp") << "no trace";
  WriteBinaryTrace(path, trace);
  ExpectEqual(ReadBinaryTrace(path), trace);
  EXPECT_FALSE(fs::exists(path.string() + ".tmp"));
}

TEST(TraceDamageTest, AFailureLeavesTheOldTraceAndNothingBeside) {
  const TempDir dir;
  // The name is a directory's: everything was written, and cannot be renamed.
  fs::create_directories(dir.path() / "taken" / "inside");
  EXPECT_THROW(WriteBinaryTrace(dir.path() / "taken", RandomTrace(3, false)), Error);
  EXPECT_FALSE(fs::exists(dir.path() / "taken.tmp"));
  EXPECT_TRUE(fs::exists(dir.path() / "taken" / "inside"));
  // The disk fills up while it is written. In a process of its own, whose limit that is.
  const fs::path path = dir.path() / "t.trace";
  const RoutingTrace old = RandomTrace(2, false);
  WriteBinaryTrace(path, old);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {3000, 3000};
    int code = 1;
    try {
      if (setrlimit(RLIMIT_FSIZE, &limit) == 0) WriteBinaryTrace(path, RandomTrace(40, false));
    } catch (const Error& error) {
      code = error.kind() == ErrorKind::kIo ? 0 : 2;
    }
    _exit(code);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_FALSE(fs::exists(path.string() + ".tmp"));
  ExpectEqual(ReadBinaryTrace(path), old);
}

TEST(TraceDamageTest, DamageIsFound) {
  const TempDir dir;
  const fs::path path = dir.path() / "t.trace";
  WriteBinaryTrace(path, RandomTrace(40, false));
  const std::vector<std::byte> good = BytesOf(path);
  ASSERT_EQ(ParseBinaryTrace(good, "t").sequences.size(), 40u);
  std::mt19937 random(5);
  int errors = 0;
  int shorter = 0;
  for (int i = 0; i < 300; ++i) {
    std::vector<std::byte> bad = good;
    bad[random() % bad.size()] ^= std::byte{static_cast<uint8_t>(1u << random() % 8)};
    try {
      const RoutingTrace trace = ParseBinaryTrace(bad, "t");
      EXPECT_GT(trace.lost_bytes, 0u);  // of the last block
      EXPECT_LT(trace.lost_bytes, good.size() / 2);
      ++shorter;
    } catch (const Error&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 0);
  EXPECT_GT(shorter, 0);
  for (int i = 0; i < 300; ++i) {
    const size_t bytes = random() % good.size();
    try {
      const RoutingTrace trace = ParseBinaryTrace(std::span(good).first(bytes), "t");
      EXPECT_LE(trace.sequences.size(), 40u);
    } catch (const Error& error) {
      EXPECT_LT(bytes, 250u) << error.what();  // only a cut header is an error
    }
  }
  std::vector<std::byte> zeros = good;  // a power cut leaves a longer file than was written
  zeros.resize(good.size() + 5000);
  EXPECT_EQ(ParseBinaryTrace(zeros, "t").lost_bytes, 5000u);
}

}  // namespace
}  // namespace moesaic
