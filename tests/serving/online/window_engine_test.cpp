// Engines with models that have sliding windows: what they hold of keys and values, and that little
// memory for them, preemption and prefixes change no token and no bit of its probability.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/metrics.h"
#include "serving/model/model.h"
#include "serving/online/kv_plan.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

// Of gpt-oss: windows in every other layer, and in two layers of three.
constexpr const char* kWindowModels[] = {"gpt_oss_bf16_window", "gpt_oss_fp32_odd"};
constexpr int kWindowPrompts = 4;
constexpr int32_t kWindowAnswer = 20;

EngineOptions WindowOptions(const std::string& model) {
  EngineOptions options = SmallOptions();
  options.model_dir = std::string(MOESAIC_TEST_DATA_DIR "/models/") + model;
  options.tokenizer = MOESAIC_SAMPLE_MODEL_DIR;
  options.expert_memory = "100%";
  options.prefix_cache = false;
  return options;
}

// The first half is that of another prompt.
std::vector<int32_t> WindowPrompt(int number) {
  std::vector<int32_t> tokens;
  const int length = 330 + 60 * number;
  for (int i = 0; i < length; ++i) {
    const auto seed = static_cast<uint32_t>(i < length / 2 ? number / 2 : number + 10);
    const uint32_t value = (seed * 7919u + static_cast<uint32_t>(i)) * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((value >> 8) % 120));
  }
  return tokens;
}

std::shared_ptr<Collector> AskWindow(Engine& engine, std::vector<int32_t> prompt) {
  EngineRequest request = Greedy(std::move(prompt), kWindowAnswer);
  request.ignore_eos = true;
  request.logprobs = 0;
  return SubmitOne(engine, request);
}

// Tokens and their log-probabilities.
std::vector<float> WindowBits(Collector& collector) {
  std::vector<float> bits;
  EXPECT_EQ(collector.Wait().error, "");
  for (const GeneratedToken& token : collector.tokens) {
    bits.push_back(static_cast<float>(token.token));
    bits.push_back(token.logprob);
  }
  return bits;
}

TEST(WindowEngineTest, LittleMemoryOfKeysAndValuesChangesNoBit) {
  for (const char* const model : kWindowModels) {
    SCOPED_TRACE(model);
    EngineOptions options = WindowOptions(model);
    std::vector<std::vector<float>> alone;
    alone.reserve(kWindowPrompts);
    {
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      for (int p = 0; p < kWindowPrompts; ++p) {
        alone.push_back(WindowBits(*AskWindow(*engine, WindowPrompt(p))));
      }
    }
    // One sequence fits, and the beginning of another.
    const ModelConfig config = LoadModelConfig(options.model_dir);
    options.max_num_batched_tokens = 32;
    options.max_model_len = 700;
    const int64_t blocks = KvNeedsOf(config).Most(700, 32) + 20;
    options.kv_memory = std::to_string(static_cast<uint64_t>(blocks) *
                                       Model::KvBlockBytes(config, WeightType::kBf16)) +
                        "B";
    for (const bool by_layers : {false, true}) {
      options.prefix_cache = by_layers;
      options.prefill_order = by_layers ? PrefillOrder::kLayers : PrefillOrder::kChunks;
      options.prefill_turn_ms = 0;
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      std::vector<std::shared_ptr<Collector>> together;
      together.reserve(kWindowPrompts);
      for (int p = 0; p < kWindowPrompts; ++p) {
        together.push_back(AskWindow(*engine, WindowPrompt(p)));
      }
      for (size_t p = 0; p < together.size(); ++p) {
        EXPECT_EQ(WindowBits(*together[p]), alone[p]) << p << " by layers " << by_layers;
      }
      if (!by_layers) continue;
      // Again, alone: what is left of its prefix is found, with the same bits.
      const auto again = AskWindow(*engine, WindowPrompt(kWindowPrompts - 1));
      EXPECT_EQ(WindowBits(*again), alone.back());
      EXPECT_GT(again->usage.cached_tokens, 0);
    }
  }
}

// Keys and values of gpt-oss-20b, 48 KiB a token in all layers, half of them in those with a
// window.
TEST(WindowEngineTest, TheSameMemoryHoldsNearlyTwiceTheTokens) {
  const ModelConfig config = LoadModelConfig(MOESAIC_TEST_DATA_DIR "/published/gpt-oss-20b");
  constexpr uint64_t kBytes = uint64_t{1} << 30;
  EngineOptions options;
  options.kv_memory = "1GiB";
  const uint64_t token_bytes =
      Model::KvBytesOfAllLayers(config, WeightType::kBf16) / kKvBlockTokens;
  EXPECT_EQ(token_bytes, uint64_t{48} << 10);
  const auto in_all_layers = static_cast<int64_t>(kBytes / token_bytes);
  EXPECT_EQ(in_all_layers, 21845);
  // One request.
  const KvPlan one = PlanKv(options, config, config.max_position, kBytes * 4, kBytes * 4);
  EXPECT_EQ(one.max_context_tokens, 42784);
  EXPECT_EQ(one.bytes, kBytes - kBytes % Model::KvBlockBytes(config, WeightType::kBf16));
  // Requests of 8,192 tokens beside each other: there was room for two.
  const KvNeeds needs = KvNeedsOf(config);
  EXPECT_EQ(in_all_layers / 8192, 2);
  EXPECT_LE(needs.MostTogether(5, 8192, options.max_num_batched_tokens), one.num_blocks);
  EXPECT_GT(needs.MostTogether(6, 8192, options.max_num_batched_tokens), one.num_blocks);
  // Short ones need as much as ever: a window longer than they are bounds nothing.
  EXPECT_EQ(needs.MostTogether(50, 256, options.max_num_batched_tokens), 50 * 2 * 16);
  // What is chosen for many requests is what they can use.
  options.kv_memory = "auto";
  options.max_num_seqs = 4;
  const KvPlan chosen = PlanKv(options, config, 32768, UINT64_MAX / 2, UINT64_MAX / 2);
  EXPECT_EQ(chosen.num_blocks, needs.MostTogether(4, 32768, options.max_num_batched_tokens));
  EXPECT_LT(chosen.bytes, uint64_t{4} * 32768 * token_bytes * 11 / 20);
}

}  // namespace
}  // namespace moesaic
