// Engines with models that have recurrent layers: preemption, cancelling, prefixes whose state was
// kept, and little memory for states change no token and no bit of its probability.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/metrics.h"
#include "serving/model/model.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

constexpr const char* kRecurrentModels[] = {"qwen3_next_bf16", "qwen3_5_moe_bf16"};

EngineOptions RecurrentOptions(const std::string& model) {
  EngineOptions options = SmallOptions();
  options.model_dir = std::string(MOESAIC_TEST_DATA_DIR "/models/") + model;
  options.tokenizer = MOESAIC_SAMPLE_MODEL_DIR;
  return options;
}

std::vector<int32_t> RecurrentPrompt(uint32_t seed, int length) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>((seed >> 8) % 150));
  }
  return tokens;
}

EngineRequest RecurrentRequest(std::vector<int32_t> prompt, int32_t tokens) {
  EngineRequest request = Greedy(std::move(prompt), tokens);
  request.ignore_eos = true;
  request.logprobs = 0;
  return request;
}

// Tokens and their log-probabilities.
std::vector<float> TokensAndLogprobs(Collector& collector) {
  std::vector<float> answer;
  EXPECT_EQ(collector.Wait().error, "");
  for (const GeneratedToken& token : collector.tokens) {
    answer.push_back(static_cast<float>(token.token));
    answer.push_back(token.logprob);
  }
  return answer;
}

std::vector<float> AnswerAlone(Engine& engine, const std::vector<int32_t>& prompt, int32_t tokens) {
  return TokensAndLogprobs(*SubmitOne(engine, RecurrentRequest(prompt, tokens)));
}

TEST(RecurrentEngineTest, BatchesAndPreemptionChangeNoBit) {
  for (const char* const model : kRecurrentModels) {
    SCOPED_TRACE(model);
    EngineOptions options = RecurrentOptions(model);
    options.prefix_cache = false;
    std::vector<std::vector<float>> alone;
    {
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      for (uint32_t p = 0; p < 8; ++p) {
        alone.push_back(AnswerAlone(*engine, RecurrentPrompt(p, 5 + 9 * static_cast<int>(p)), 50));
      }
    }
    for (const bool prefix_cache : {false, true}) {
      options.prefix_cache = prefix_cache;
      options.prefill_order = prefix_cache ? PrefillOrder::kLayers : PrefillOrder::kAuto;
      options.prefill_turn_ms = 0;
      options.max_model_len = 0;
      options.max_num_batched_tokens = 24;
      options.kv_memory =
          std::to_string(
              12 * Model::KvBlockBytes(LoadModelConfig(options.model_dir), WeightType::kBf16)) +
          "B";
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      std::vector<std::shared_ptr<Collector>> together;
      for (uint32_t p = 0; p < 8; ++p) {
        together.push_back(SubmitOne(
            *engine, RecurrentRequest(RecurrentPrompt(p, 5 + 9 * static_cast<int>(p)), 50)));
      }
      // One more, which ends before it is done.
      RequestId id = 0;
      const auto cancelled = SubmitOne(*engine, RecurrentRequest(RecurrentPrompt(9, 30), 60), &id);
      engine->Cancel(id);
      for (size_t p = 0; p < together.size(); ++p)
        EXPECT_EQ(TokensAndLogprobs(*together[p]), alone[p]) << p;
      cancelled->Wait();
      EXPECT_GT(engine->Status().preemptions, 0);
    }
  }
}

// Lines whose module batches wait for others in the middle of the model: some layers have their new
// state by then and others the old one.
TEST(RecurrentEngineTest, ModuleBatchesThatWaitChangeNoBit) {
  for (const char* const model : kRecurrentModels) {
    SCOPED_TRACE(model);
    EngineOptions options = RecurrentOptions(model);
    options.max_num_batched_tokens = 24;
    options.serves_batches = true;
    std::vector<std::vector<float>> expected;
    for (const ModuleBatches choice : {ModuleBatches::kOff, ModuleBatches::kOn}) {
      options.module_batches = choice;
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      std::vector<std::shared_ptr<Collector>> lines;
      for (uint32_t p = 0; p < 8; ++p) {
        EngineRequest line = RecurrentRequest(RecurrentPrompt(p, 5 + 9 * static_cast<int>(p)), 12);
        line.background = true;
        lines.push_back(SubmitOne(*engine, std::move(line)));
      }
      std::vector<std::vector<float>> answers;
      for (uint32_t p = 0; p < 5; ++p) {
        answers.push_back(AnswerAlone(*engine, RecurrentPrompt(20 + p, 30), 2));
      }
      for (const auto& line : lines) answers.push_back(TokensAndLogprobs(*line));
      if (choice == ModuleBatches::kOff) {
        expected = answers;
        continue;
      }
      EXPECT_EQ(answers, expected);
      EXPECT_EQ(metrics.Serialize().find("moe_module_batches_total 0\n"), std::string::npos);
    }
  }
}

TEST(RecurrentEngineTest, PrefixesAreReusedWithTheSameBits) {
  for (const char* const model : kRecurrentModels) {
    SCOPED_TRACE(model);
    EngineOptions options = RecurrentOptions(model);
    // Turns of one conversation, then prompts that leave it.
    std::vector<std::vector<int32_t>> prompts = {RecurrentPrompt(1, 70)};
    std::vector<std::vector<float>> expected;
    {
      options.prefix_cache = false;
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      for (int turn = 0; turn < 3; ++turn) {
        const auto answer = SubmitOne(*engine, RecurrentRequest(prompts.back(), 21));
        expected.push_back(TokensAndLogprobs(*answer));
        std::vector<int32_t> next = prompts.back();
        for (const int32_t token : answer->Ids()) next.push_back(token);
        for (const int32_t token : RecurrentPrompt(100, 7)) next.push_back(token);
        prompts.push_back(std::move(next));
      }
      prompts.pop_back();
      for (uint32_t other = 0; other < 3; ++other) {
        std::vector<int32_t> prompt(prompts.front().begin(), prompts.front().begin() + 40);
        for (const int32_t token : RecurrentPrompt(200 + other, 50)) prompt.push_back(token);
        expected.push_back(AnswerAlone(*engine, prompt, 21));
        prompts.push_back(std::move(prompt));
      }
    }
    options.prefix_cache = true;
    // In one step, and layer after layer in blocks: 24 and 32 end before and where a state is kept.
    for (const int64_t chunk : {128, 24, 32}) {
      options.max_num_batched_tokens = chunk;
      options.prefill_order = PrefillOrder::kLayers;
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      std::vector<int64_t> cached;
      for (size_t p = 0; p < prompts.size(); ++p) {
        const auto answer = SubmitOne(*engine, RecurrentRequest(prompts[p], 21));
        EXPECT_EQ(TokensAndLogprobs(*answer), expected[p]) << p << " chunk " << chunk;
        cached.push_back(answer->usage.cached_tokens);
      }
      // 90 of 91 tokens of the first turn were computed, 80 in whole blocks, 118 of the second,
      // 112. The first prompt that leaves the conversation has no state to begin with.
      EXPECT_EQ(cached, (std::vector<int64_t>{0, 80, 112, 0, 32, 32})) << chunk;
    }
  }
}

TEST(RecurrentEngineTest, LittleMemoryLowersTheRequestsThatRunAtATime) {
  EngineOptions options = RecurrentOptions(kRecurrentModels[0]);
  const EnginePlan roomy = PlanEngine(options);
  EXPECT_EQ(roomy.state.sequences, options.max_num_seqs);
  EXPECT_EQ(roomy.state.snapshots, options.state_snapshots);
  const uint64_t slot_bytes = Model::StateSlotBytes(LoadModelConfig(options.model_dir));
  EXPECT_GT(slot_bytes, 0u);
  EXPECT_EQ(roomy.ledger.bytes("recurrent state"),
            slot_bytes * static_cast<uint64_t>(roomy.state.slots()));

  const ModelConfig config = LoadModelConfig(options.model_dir);
  for (const uint64_t share : {uint64_t{3}, uint64_t{18}}) {
    const StatePlan plan = PlanState(options, config, 4 * share * slot_bytes);
    EXPECT_EQ(plan.sequences, share == 3 ? 3 : 16);
    EXPECT_EQ(plan.snapshots, share == 3 ? 0 : 2);
  }
  EXPECT_EQ(PlanState(options, config, 0).sequences, 1);
}

}  // namespace
}  // namespace moesaic
