// Attention across the borders of its chunks against Hugging Face transformers
// (tests/reference/make_long_fixtures.py): prompts of more than three chunks, with and without a
// window that is longer than a chunk. Exactness tests compare the program with itself, so a chunk
// that is left out everywhere shows here only.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/serving/model/model_harness.h"
#include "tests/serving/model/reference_util.h"

namespace moesaic {
namespace {

// Noise of f32 is below 5e-5; each defect that the fixtures know moves a logit by 0.01 at least.
constexpr double kTolerance = 3e-4;

std::vector<std::string> LongModelDirs() {
  std::vector<std::string> dirs;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(MOESAIC_TEST_DATA_DIR) / "long_models")) {
    dirs.push_back(entry.path().string());
  }
  std::sort(dirs.begin(), dirs.end());
  return dirs;
}

HarnessOptions LongOptions(Isa isa, WeightType kv_type, int threads, int64_t tokens) {
  HarnessOptions options;
  options.isa = isa;
  options.kv_type = kv_type;
  options.threads = threads;
  options.max_context_tokens = tokens;
  options.max_batch_tokens = tokens;
  options.kv_blocks = tokens / kKvBlockTokens + 1;
  return options;
}

// Runs the prompt in calls of these many tokens. Returns the logits of `positions`, in order.
std::vector<float> LogitsAt(ModelHarness& model, const std::vector<int32_t>& tokens,
                            const std::vector<int64_t>& calls,
                            const std::vector<int32_t>& positions, RoutingHook* hook) {
  auto sequence = model.NewSequence(static_cast<int64_t>(tokens.size()));
  const int64_t vocab = model.config().vocab_size;
  std::vector<float> result;
  auto position = positions.begin();
  int64_t first = 0;
  for (const int64_t count : calls) {
    const ModelHarness::Piece piece = {&sequence,
                                       {tokens.begin() + first, tokens.begin() + first + count}};
    const std::vector<float> logits = model.Run({&piece, 1}, hook);
    for (; position != positions.end() && *position < first + count; ++position) {
      const auto row = logits.begin() + (*position - first) * vocab;
      result.insert(result.end(), row, row + vocab);
    }
    first += count;
  }
  EXPECT_EQ(first, static_cast<int64_t>(tokens.size()));
  return result;
}

std::vector<int64_t> CallsOf(int64_t tokens, int64_t most) {
  std::vector<int64_t> calls;
  for (; tokens > 0; tokens -= calls.back()) calls.push_back(std::min(tokens, most));
  return calls;
}

// The recorded positions one by one, as decode steps are, the others between them together.
std::vector<int64_t> SingleCalls(int64_t tokens, const std::vector<int32_t>& positions) {
  std::vector<int64_t> calls;
  int64_t first = 0;
  for (const int32_t position : positions) {
    if (position > first) calls.push_back(position - first);
    calls.push_back(1);
    first = position + 1;
  }
  if (first < tokens) calls.push_back(tokens - first);
  return calls;
}

class LongReferenceTest : public ::testing::TestWithParam<std::string> {
 protected:
  LongReferenceTest()
      : reference_(GetParam()),
        tokens_(reference_.prompts().at(0).tokens),
        positions_(reference_.Ints(Key(0, "positions"))),
        expected_(reference_.Floats(Key(0, "logits"))) {}

  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }

  const Reference reference_;
  const std::vector<int32_t> tokens_;
  const std::vector<int32_t> positions_;
  const std::vector<float> expected_;  // [positions, vocab]
};

TEST_P(LongReferenceTest, PromptsAndWindowsAreLongerThanChunks) {
  EXPECT_GT(num_tokens(), 3 * kAttentionChunkTokens);
  for (const int32_t border : {256, 512, 768}) {
    for (const int32_t position : {border - 1, border, border + 1}) {
      EXPECT_NE(std::find(positions_.begin(), positions_.end(), position), positions_.end());
    }
  }
  const ModelConfig config = LoadModelConfig(GetParam());
  for (const LayerSpec& layer : config.layers) {
    const int64_t window = layer.attention().window;
    EXPECT_TRUE(window == 0 || window > kAttentionChunkTokens) << window;
  }
}

// As one prompt, in calls that end inside chunks, and with the positions at the borders alone, by
// one thread and by enough for a call to be split over chunks. Instruction sets that are not the
// last of the class, which have the same bits, do the last of it only.
TEST_P(LongReferenceTest, F32LogitsAcrossChunks) {
  struct Way {
    int threads;
    std::vector<int64_t> calls;
  };
  const std::vector<int64_t> at_once = {num_tokens()};
  const std::vector<int64_t> single = SingleCalls(num_tokens(), positions_);
  const std::vector<int64_t> pieces = CallsOf(num_tokens(), 100);
  const std::vector<Isa> isas = IsasOf(NumericsClass::kF32);
  for (const Isa isa : isas) {
    std::vector<Way> ways = {{3, single}};
    if (isa == isas.back()) {
      ways = {{1, at_once}, {3, at_once}, {1, pieces}, {3, pieces}, {1, single}, {3, single}};
    }
    double worst = 0;
    for (const auto& [threads, calls] : ways) {
      ModelHarness model(GetParam(), LongOptions(isa, WeightType::kF32, threads, num_tokens()));
      const std::vector<float> logits = LogitsAt(model, tokens_, calls, positions_, nullptr);
      ASSERT_EQ(logits.size(), expected_.size());
      const size_t vocab = expected_.size() / positions_.size();
      for (size_t p = 0; p < positions_.size(); ++p) {
        double error = 0;
        for (size_t i = p * vocab; i < (p + 1) * vocab; ++i) {
          error = std::max(error, std::abs(static_cast<double>(logits[i]) - expected_[i]));
        }
        EXPECT_LE(error, kTolerance) << IsaName(isa) << " position " << positions_[p] << ", "
                                     << threads << " threads, " << calls.size() << " calls";
        worst = std::max(worst, error);
      }
    }
    std::printf("%-30s %-12s largest logit error %.2e\n",
                std::filesystem::path(GetParam()).filename().c_str(), IsaName(isa), worst);
  }
}

// With a cache that rounds, and in classes that round activations. The recorded routing keeps
// experts from flipping. Attention in these fixtures is sharp, so rounding shows more than in
// others; a window that begins a chunk late shows a hundred times as much.
TEST_P(LongReferenceTest, RoundedLogitsStayClose) {
  std::vector<Isa> isas = IsasOf(NumericsClass::kBf16);
  isas.push_back(IsasOf(NumericsClass::kF32).back());
  for (const Isa isa : isas) {
    for (const WeightType kv_type : {WeightType::kBf16, WeightType::kInt8}) {
      RecordedRouting routing(reference_, 0);
      ModelHarness model(GetParam(), LongOptions(isa, kv_type, 2, num_tokens()));
      const std::vector<float> logits =
          LogitsAt(model, tokens_, SingleCalls(num_tokens(), positions_), positions_, &routing);
      ASSERT_EQ(logits.size(), expected_.size());
      double error = 0;
      double norm = 0;
      for (size_t i = 0; i < expected_.size(); ++i) {
        const double difference = static_cast<double>(logits[i]) - expected_[i];
        error += difference * difference;
        norm += static_cast<double>(expected_[i]) * expected_[i];
      }
      const double relative = std::sqrt(error / norm);
      EXPECT_LE(relative, 5e-2) << IsaName(isa);
      std::printf("%-30s %-12s %s cache: relative L2 error %.2e\n",
                  std::filesystem::path(GetParam()).filename().c_str(), IsaName(isa),
                  WeightTypeName(kv_type), relative);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(LongModels, LongReferenceTest, ::testing::ValuesIn(LongModelDirs()),
                         DirName);

}  // namespace
}  // namespace moesaic
