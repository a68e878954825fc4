// Throughput mode with models that have recurrent layers, or layers that attend to what an earlier
// one has chosen: the answers of latency mode in every bit that can be seen from outside, over
// schedules, devices, preemption and shared prefixes.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/base/metrics.h"
#include "serving/batch/batch_engine.h"
#include "serving/model/model.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

// Some begin with the same 40 tokens.
std::vector<EngineRequest> RecurrentRequests() {
  std::vector<EngineRequest> requests;
  for (uint32_t i = 0; i < 12; ++i) {
    std::vector<int32_t> prompt;
    uint32_t x = 7;
    for (uint32_t t = 0; t < 20 + 6 * i; ++t) {
      if (t == 40 || (t == 0 && i % 4 == 3)) x += i;
      x = x * 1664525u + 1013904223u;
      prompt.push_back(static_cast<int32_t>((x >> 8) % 150));
    }
    EngineRequest request = Greedy(std::move(prompt), 20);
    request.ignore_eos = true;
    request.logprobs = 0;
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<std::vector<float>> AnswersOf(Engine& engine) {
  std::vector<std::shared_ptr<Collector>> collectors;
  for (EngineRequest& request : RecurrentRequests()) {
    collectors.push_back(SubmitOne(engine, std::move(request)));
  }
  std::vector<std::vector<float>> answers;
  for (const auto& collector : collectors) {
    EXPECT_EQ(collector->Wait().error, "");
    std::vector<float>& answer = answers.emplace_back();
    for (const GeneratedToken& token : collector->tokens) {
      answer.push_back(static_cast<float>(token.token));
      answer.push_back(token.logprob);
    }
  }
  return answers;
}

class RecurrentBatchTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RecurrentBatchTest, AnswersOfLatencyMode) {
  EngineOptions options = SmallOptions();
  options.model_dir = std::string(MOESAIC_TEST_DATA_DIR "/models/") + GetParam();
  options.tokenizer = MOESAIC_SAMPLE_MODEL_DIR;
  options.prefix_cache = false;
  const ModelConfig model = LoadModelConfig(options.model_dir);
  std::vector<std::vector<float>> expected;
  {
    MetricsRegistry metrics;
    expected = AnswersOf(*CreateEngine(options, metrics));
  }
  options.kv_memory = "auto";
  options.max_num_batched_tokens = 0;
  for (const ScheduleKind schedule :
       {ScheduleKind::kModuleBatching, ScheduleKind::kOverlapped, ScheduleKind::kPagedWeights}) {
    for (const int devices : {0, 2}) {
      for (const bool prefix_cache : {false, true}) {
        EngineOptions batch = options;
        batch.schedule = schedule;
        batch.devices.count = devices;
        batch.prefix_cache = prefix_cache;
        if (devices > 0) batch.expert_memory = "auto";
        BatchEngine engine(SetUpBatch(batch, BatchWorkload{12, 50, 20}));
        EXPECT_EQ(AnswersOf(engine), expected) << ScheduleKindName(schedule) << ", " << devices
                                               << " devices, prefixes " << prefix_cache;
        if (model.FindMixer<DeltaNetSpec>() != nullptr) {
          EXPECT_GT(engine.plan().ledger.bytes("recurrent state"), 0u);
        }
      }
    }
  }
  // So little room that some are computed anew.
  options.kv_memory = std::to_string(10 * Model::KvBlockBytes(model, WeightType::kBf16)) + "B";
  options.max_model_len = 0;
  options.prefix_cache = true;
  BatchEngine tight(SetUpBatch(options, BatchWorkload{12, 50, 20}));
  EXPECT_EQ(AnswersOf(tight), expected);
  EXPECT_GT(tight.preemptions(), 0);
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentBatchTest,
                         ::testing::Values("qwen3_next_bf16", "qwen3_5_moe_bf16",
                                           "glm_moe_dsa_bf16_shared"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace moesaic
