// Engines that have the memory of experts together (--share-experts): no bit of an answer tells,
// whoever fills it and whoever has ended; what does not hold the same experts is refused.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/metrics.h"
#include "core/io/shared_memory.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

EngineOptions SharingOptions(const TempDir& dir, const char* expert_memory) {
  EngineOptions options = SmallOptions();
  options.expert_memory = expert_memory;
  options.share_experts = (dir.path() / "pool").string();
  return options;
}

struct SharingEngine {
  explicit SharingEngine(const EngineOptions& options) : engine(CreateEngine(options, metrics)) {}

  // Tokens and their log-probabilities.
  std::vector<float> Ask(const std::vector<int32_t>& prompt) const {
    EngineRequest request = Greedy(prompt, 12);
    request.ignore_eos = true;
    request.logprobs = 0;
    const auto collector = SubmitOne(*engine, request);
    EXPECT_EQ(collector->Wait().error, "");
    std::vector<float> bits;
    for (const GeneratedToken& token : collector->tokens) {
      bits.push_back(static_cast<float>(token.token));
      bits.push_back(token.logprob);
    }
    return bits;
  }

  MetricsRegistry metrics;
  std::unique_ptr<Engine> engine;
};

std::vector<std::vector<int32_t>> SharingPrompts() {
  std::vector<std::vector<int32_t>> prompts;
  for (const ReferencePrompt& prompt : ReferencePrompts()) {
    if (prompts.size() == 3) break;
    prompts.push_back(prompt.prompt);
  }
  return prompts;
}

// With all experts in the memory, and with a fifth of them, among which the first engine evicts
// while the others compute.
TEST(SharedExpertsEngineTest, NoBitTellsWhoFillsTheMemory) {
  const auto prompts = SharingPrompts();
  std::vector<std::vector<float>> expected;
  {
    const SharingEngine alone(SmallOptions());
    for (const auto& prompt : prompts) expected.push_back(alone.Ask(prompt));
  }
  for (const char* expert_memory : {"100%", "20%"}) {
    SCOPED_TRACE(expert_memory);
    const TempDir dir;
    const EngineOptions options = SharingOptions(dir, expert_memory);
    auto first = std::make_unique<SharingEngine>(options);
    const SharingEngine second(options);
    const SharingEngine third(options);
    for (int turn = 0; turn < 2; ++turn) {
      for (size_t p = 0; p < prompts.size(); ++p) {
        EngineRequest request = Greedy(prompts[(p + 1) % prompts.size()], 40);
        const auto beside = SubmitOne(*first->engine, request);
        EXPECT_EQ(second.Ask(prompts[p]), expected[p]);
        EXPECT_EQ(third.Ask(prompts[p]), expected[p]);
        beside->Wait();
        EXPECT_EQ(first->Ask(prompts[p]), expected[p]);
      }
    }
    // What it leaves is used on; another one fills new memory.
    first.reset();
    for (size_t p = 0; p < prompts.size(); ++p) EXPECT_EQ(second.Ask(prompts[p]), expected[p]);
    EXPECT_TRUE(ShareClaim::Look(options.share_experts).fills());
    const SharingEngine next(options);
    EXPECT_EQ(next.Ask(prompts[0]), expected[0]);
    EXPECT_EQ(third.Ask(prompts[0]), expected[0]);
  }
}

// A process of its own that runs `body` each time that it is told to, and says how that went.
class SharingChild {
 public:
  explicit SharingChild(const std::function<bool()>& body) {
    int to[2];
    int from[2];
    EXPECT_EQ(pipe(to), 0);
    EXPECT_EQ(pipe(from), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(to[1]);  // so that it ends with its parent
      char word = 0;
      while (read(to[0], &word, 1) == 1) {
        word = body() ? 'y' : 'n';
        if (write(from[1], &word, 1) != 1) break;
      }
      _exit(0);
    }
    close(to[0]);
    close(from[1]);
    to_ = to[1];
    from_ = from[0];
  }
  ~SharingChild() {
    Kill();
    close(to_);
    close(from_);
  }
  SharingChild(const SharingChild&) = delete;
  SharingChild& operator=(const SharingChild&) = delete;

  void Begin() const { EXPECT_EQ(write(to_, "g", 1), 1); }
  bool Run() const {
    Begin();
    char answer = 0;
    return read(from_, &answer, 1) == 1 && answer == 'y';
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    EXPECT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int to_ = -1;
  int from_ = -1;
};

// Of a process's memory of shared experts, in KiB: what is resident, and its proportional share.
struct SharedKib {
  int64_t resident = 0;
  int64_t proportional = 0;
};
SharedKib SharedMemoryOf(pid_t process) {
  std::ifstream maps("/proc/" + std::to_string(process) + "/smaps");
  SharedKib sum;
  bool of_experts = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t kib = 0;
    words >> name >> kib;
    if (name.empty() || name.back() != ':') {
      of_experts = line.find("moesaic-experts") != std::string::npos;
    } else if (of_experts) {
      if (name == "Rss:") sum.resident += kib;
      if (name == "Pss:") sum.proportional += kib;
    }
  }
  return sum;
}

// The first process, one that reads and is killed in the middle of its work, and this one.
TEST(SharedExpertsEngineTest, ProcessesShareMemoryAndOutliveEachOther) {
  const TempDir dir;
  const EngineOptions options = SharingOptions(dir, "100%");
  const auto prompts = SharingPrompts();
  std::vector<float> expected;
  {
    const SharingEngine alone(SmallOptions());
    expected = alone.Ask(prompts[0]);
  }
  // In a process of its own: made at the first call, and asked at each.
  std::unique_ptr<SharingEngine> engine;
  const auto ask = [&] {
    if (engine == nullptr) engine = std::make_unique<SharingEngine>(options);
    return engine->Ask(prompts[0]) == expected;
  };
  SharingChild first(ask);
  SharingChild third([&] {
    while (ask()) {
    }
    return false;
  });
  ASSERT_TRUE(first.Run());
  ASSERT_TRUE(ask());  // here

  constexpr int64_t kAllKib = 256 * 72;
  const SharedKib filled = SharedMemoryOf(first.pid());
  const SharedKib here = SharedMemoryOf(getpid());
  EXPECT_EQ(filled.resident, kAllKib);
  EXPECT_GT(here.resident, kAllKib / 4);
  EXPECT_LE(filled.proportional + here.proportional, kAllKib + 8);

  third.Begin();
  usleep(400'000);  // somewhere between its start and its next thousand layers
  third.Kill();
  EXPECT_TRUE(first.Run());
  EXPECT_TRUE(ask());
  first.Kill();
  for (const auto& prompt : prompts) EXPECT_FALSE(engine->Ask(prompt).empty());
  EXPECT_TRUE(ask());
  EXPECT_TRUE(ShareClaim::Look(options.share_experts).fills());
}

TEST(SharedExpertsEngineTest, TheLedgerCountsSharedMemoryOnce) {
  const TempDir dir;
  const EngineOptions options = SharingOptions(dir, "50%");
  const EnginePlan fills = PlanEngine(options);
  EXPECT_EQ(fills.share, ShareRole::kFills);
  EXPECT_EQ(fills.ledger.bytes("shared expert cache"), 128u * 73728u);
  EXPECT_EQ(fills.ledger.bytes("own experts"), 0u);
  const ShareClaim another = ShareClaim::Take(options.share_experts);
  const EnginePlan reads = PlanEngine(options);
  EXPECT_EQ(reads.share, ShareRole::kReads);
  EXPECT_EQ(reads.ledger.bytes("shared expert cache"), 0u);
  EXPECT_EQ(reads.ledger.bytes("own experts"), 8u * 73728u);  // two tokens' of a layer
  EXPECT_EQ(reads.predictor_bytes, 0u);
  EXPECT_EQ(reads.ledger.bytes("KV cache"), fills.ledger.bytes("KV cache"));
}

TEST(SharedExpertsEngineTest, OtherExpertsAreRefused) {
  const TempDir dir;
  const EngineOptions options = SharingOptions(dir, "25%");
  const SharingEngine first(options);
  EngineOptions other = options;
  other.dtype = WeightType::kInt8;
  const Error layout = Caught([&] { SharingEngine(other).Ask({1, 2, 3}); });
  EXPECT_TRUE(Contains(layout, "gate bf16") && Contains(layout, "gate i8")) << layout.what();
  other = options;
  other.model_dir = MOESAIC_TEST_DATA_DIR "/models/gpt_oss_bf16_window";
  other.tokenizer = MOESAIC_SAMPLE_MODEL_DIR;
  EXPECT_TRUE(Contains(Caught([&] { SharingEngine(other).Ask({1, 2, 3}); }), "something else"));

  other = options;
  other.devices.count = 1;
  EXPECT_TRUE(Contains(Caught([&] { PlanEngine(other); }), "--devices"));
  other = options;
  other.most_expert_bytes = uint64_t{1} << 30;
  EXPECT_TRUE(Contains(Caught([&] { PlanEngine(other); }), "several models"));
  other = options;
  other.share_experts = "no name";
  EXPECT_TRUE(Contains(Caught([&] { PlanEngine(other); }), "no name"));
}

}  // namespace
}  // namespace moesaic
