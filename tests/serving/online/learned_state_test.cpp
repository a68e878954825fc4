// What an engine learned, across engines: restored, saved while it serves and when it ends, and
// never at the cost of what lies at the file's name.
#include "serving/engine/learned_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "core/base/file.h"
#include "prefetch/predict/learned_section.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxBytes = uint64_t{1} << 26;

void Serve(Engine& engine, size_t first, size_t last, int32_t max_tokens = 16) {
  const auto prompts = ReferencePrompts();
  for (size_t p = first; p < last; ++p) {
    EXPECT_EQ(SubmitOne(engine, Greedy(prompts[p].prompt, max_tokens))->Wait().error, "");
  }
}

// The stored part of this name; a failure when there is none.
StoredSection Section(const fs::path& file, const std::string& name) {
  for (StoredSection& section : ReadStateFile(file).sections) {
    if (section.name == name) return section;
  }
  ADD_FAILURE() << file << " has no section " << name;
  return {};
}

// The experts that the engine held whose state this is.
std::vector<ResidentExpert> Held(const fs::path& file) {
  ResidencyList held;
  ResidencyListSection(held, 8, 32).Load(1, Section(file, "residency").bytes);
  return held.experts;
}

TEST(LearnedStateTest, ARestartedEngineHoldsWhatTheLastOneHeld) {
  const TempDir dir;
  EngineOptions options = SmallOptions();
  options.state_file = dir.path() / "s";
  options.predictor = "none";
  const auto serve_one_token = [](Engine& engine) {
    EXPECT_EQ(SubmitOne(engine, Greedy({5}, 1))->Wait().error, "");
    return engine.Stats().experts;
  };
  {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    Serve(*engine, 0, 3);
    serve_one_token(*engine);
    EXPECT_FALSE(fs::exists(options.state_file));  // 300 s are not over
  }
  EXPECT_EQ(Held(options.state_file).size(), 64u);
  {
    MetricsRegistry metrics;
    EXPECT_EQ(serve_one_token(*CreateEngine(options, metrics)).hits, 8u * 4u);
  }
  options.state_file = dir.path() / "another";
  MetricsRegistry metrics;
  EXPECT_EQ(serve_one_token(*CreateEngine(options, metrics)).hits, 2u * 4u);  // of two layers
  // To the policy the first layer is the youngest, so what came later took the other one's place.
  const std::vector<ResidentExpert> held = Held(options.state_file);
  EXPECT_EQ(std::count_if(held.begin(), held.end(),
                          [](const ResidentExpert& expert) { return expert.id.layer == 0; }),
            32);
}

TEST(LearnedStateTest, IsSavedWhileTheEngineServesAndIdles) {
  const TempDir dir;
  EngineOptions options = SmallOptions();
  options.state_file = dir.path() / "s";
  options.state_interval_s = 0.02;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  const auto has = [&](const char* line) {
    return metrics.Serialize().find(line) != std::string::npos;
  };
  EXPECT_TRUE(has("moe_state_saves_total{result=\"ok\"} 0\n"));
  Serve(*engine, 0, 1);
  while (has("moe_state_saves_total{result=\"ok\"} 0\n")) std::this_thread::yield();
  // The first save may have come before the request's end; one with all that it taught comes.
  while (Section(options.state_file, "blend").bytes.size() <= 100'000u) std::this_thread::yield();
  Section(options.state_file, "residency");
  EXPECT_FALSE(has("moe_state_file_bytes 0\n"));
  EXPECT_FALSE(has("moe_state_saved_timestamp_seconds 0\n"));
}

// A state file that cannot be used is kept, and nothing is written over it.
TEST(LearnedStateTest, ARefusedFileIsSetAside) {
  const TempDir dir;
  EngineOptions options = SmallOptions();
  options.state_file = dir.path() / "s";
  const auto serve = [&] {
    MetricsRegistry metrics;
    Serve(*CreateEngine(options, metrics), 0, 1);
  };
  serve();
  std::string damaged = ReadTextFile(options.state_file, kMaxBytes);
  damaged[damaged.size() / 2] = static_cast<char>(damaged[damaged.size() / 2] ^ 1);
  std::ofstream(options.state_file, std::ios::binary) << damaged;
  {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
  }
  EXPECT_EQ(ReadTextFile(options.state_file, kMaxBytes), damaged);  // nothing was learned
  serve();
  EXPECT_EQ(ReadTextFile(options.state_file.string() + ".rejected-1", kMaxBytes), damaged);
  EXPECT_TRUE(IsStateFile(options.state_file));
}

// The engine does not start, and the file is as it was.
TEST(LearnedStateTest, AFileThatIsNoStateFileIsLeftAlone) {
  const TempDir dir;
  EngineOptions options = SmallOptions();
  options.state_file = dir.path() / "config.json";
  std::ofstream(options.state_file) << "precious";
  MetricsRegistry metrics;
  try {
    CreateEngine(options, metrics);
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_EQ(ExitCode(error.kind()), 2);
    EXPECT_NE(std::string(error.what()).find("--state-file"), std::string::npos);
  }
  EXPECT_EQ(ReadTextFile(options.state_file, kMaxBytes), "precious");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), {}), 1);
}

TEST(LearnedStateTest, PlacesThatCanHoldNoFileAreRefusedAtStart) {
  const TempDir dir;
  for (const fs::path& file : {dir.path(), dir.path() / "nowhere" / "s"}) {
    EngineOptions options = SmallOptions();
    options.state_file = file;
    MetricsRegistry metrics;
    try {
      CreateEngine(options, metrics);
      FAIL() << file;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("--state-file"), std::string::npos);
    }
  }
}

TEST(LearnedStateTest, AFileThatCannotBeWrittenEndsNothing) {
  const TempDir dir;
  EngineOptions options = SmallOptions();
  fs::create_directory(dir.path() / "d");
  options.state_file = dir.path() / "d" / "s";
  options.state_interval_s = 0.02;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  fs::remove(dir.path() / "d");
  Serve(*engine, 0, 1);
  while (metrics.Serialize().find("moe_state_saves_total{result=\"failed\"} 0\n") !=
         std::string::npos) {
    std::this_thread::yield();
  }
  Serve(*engine, 1, 2);
}

// Requests are preempted and compute tokens again: nothing is counted or learned twice.
TEST(LearnedStateTest, RecomputedTokensAreLearnedOnce) {
  const TempDir dir;
  EngineOptions options = SmallOptions();
  options.prefix_cache = false;
  options.max_num_batched_tokens = 512;
  const auto prompts = ReferencePrompts();
  std::vector<size_t> short_enough;
  for (size_t p = 0; p < 8; ++p) {
    if (prompts[p].prompt.size() + 60 <= 200) short_enough.push_back(p);
  }
  std::vector<std::shared_ptr<const RequestTrace>> alone;
  {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    for (const size_t p : short_enough) {
      alone.push_back(SubmitOne(*engine, Greedy(prompts[p].prompt, 60))->Wait().trace);
    }
  }
  options.max_model_len = 0;
  options.kv_memory = "416KiB";  // two of the requests
  options.predictor = "frequency";
  options.state_file = dir.path() / "s";
  double iterations = 0;  // of all requests: the predictor counts each in every layer
  {
    MetricsRegistry metrics;
    const auto engine = CreateEngine(options, metrics);
    std::vector<std::shared_ptr<Collector>> together;
    together.reserve(short_enough.size());
    for (const size_t p : short_enough) {
      together.push_back(SubmitOne(*engine, Greedy(prompts[p].prompt, 60)));
    }
    for (size_t i = 0; i < together.size(); ++i) {
      const RequestTrace& trace = *together[i]->Wait().trace;
      EXPECT_EQ(trace.prefill_tokens, alone[i]->prefill_tokens);
      EXPECT_EQ(trace.decode_tokens, alone[i]->decode_tokens);
      EXPECT_EQ(trace.prefill, alone[i]->prefill) << i;
      EXPECT_EQ(trace.decode, alone[i]->decode) << i;
      iterations += static_cast<double>(trace.iterations);
      EXPECT_LE(trace.iterations, trace.decode_tokens + trace.prefill_tokens);
    }
    EXPECT_EQ(metrics.Serialize().find("moe_preemptions_total 0\n"), std::string::npos);
  }
  std::vector<float> used(8 * 32);
  std::vector<float> seen(8);
  LearnedSection("frequency", 1, {{std::span(used)}, {std::span(seen)}})
      .Load(1, Section(options.state_file, "frequency").bytes);
  for (const float layer : seen) EXPECT_EQ(static_cast<double>(layer), iterations);
}

}  // namespace
}  // namespace moesaic
