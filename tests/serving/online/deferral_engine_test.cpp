// Expert deferral in the engine: a request's tokens depend on the number and on nothing that the
// engine does: batch mates, preemption, prefix reuse, budgets, predictors.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/base/metrics.h"
#include "serving/online/create_engine.h"
#include "tests/serving/online/engine_harness.h"

namespace moesaic {
namespace {

EngineOptions Deferring(int64_t experts) {
  EngineOptions options = SmallOptions();
  options.defer_experts = experts;
  return options;
}

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logprobs;
  bool operator==(const Answer&) const = default;
};

Answer AnswerOf(const Collector& got) {
  EXPECT_EQ(got.error, "");
  Answer answer;
  for (const GeneratedToken& token : got.tokens) {
    answer.ids.push_back(token.token);
    answer.logprobs.push_back(token.logprob);
  }
  return answer;
}

EngineRequest Ask(std::vector<int32_t> prompt, int32_t tokens) {
  EngineRequest request = Greedy(std::move(prompt), tokens);
  request.ignore_eos = true;
  request.logprobs = 0;
  return request;
}

std::vector<Answer> AloneAnswers(const EngineOptions& options, size_t prompts, int32_t tokens) {
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  std::vector<Answer> answers;
  for (size_t p = 0; p < prompts; ++p) {
    answers.push_back(
        AnswerOf(SubmitOne(*engine, Ask(ReferencePrompts()[p].prompt, tokens))->Wait()));
  }
  EXPECT_EQ(engine->Stats().experts.deferred > 0, options.defer_experts > 0);
  return answers;
}

TEST(DeferralEngineTest, TokensDependOnTheNumberOnly) {
  const auto prompts = ReferencePrompts();
  std::vector<std::vector<Answer>> by_number;
  for (const int64_t defer : {0, 1, 2}) {
    SCOPED_TRACE(defer);
    by_number.push_back(AloneAnswers(Deferring(defer), 6, 12));
    const std::vector<Answer>& expected = by_number.back();
    struct Setting {
      const char* predictor;
      const char* expert_memory;
      int64_t batch_tokens;
      int devices;
    };
    for (const Setting& setting :
         {Setting{"none", "100%", 128, 0}, Setting{"blend", "25%", 16, 0},
          Setting{"blend", "80KiB", 128, 0}, Setting{"blend", "auto", 128, 2}}) {
      SCOPED_TRACE(setting.expert_memory);
      EngineOptions options = Deferring(defer);
      options.predictor = setting.predictor;
      options.expert_memory = setting.expert_memory;
      options.max_num_batched_tokens = setting.batch_tokens;
      options.max_num_seqs = 8;
      options.devices.count = setting.devices;
      MetricsRegistry metrics;
      const auto engine = CreateEngine(options, metrics);
      std::vector<std::shared_ptr<Collector>> together;
      for (size_t p = 0; p < expected.size(); ++p) {
        together.push_back(SubmitOne(*engine, Ask(prompts[p].prompt, 12)));
      }
      for (size_t p = 0; p < expected.size(); ++p) {
        EXPECT_EQ(AnswerOf(together[p]->Wait()), expected[p]) << p;
      }
    }
  }
  EXPECT_NE(by_number[0], by_number[1]);
  EXPECT_NE(by_number[1], by_number[2]);
}

// What is computed again after a preemption was decoded, and is deferred again.
TEST(DeferralEngineTest, PreemptionChangesNothing) {
  const auto prompts = ReferencePrompts();
  const std::vector<Answer> expected = AloneAnswers(Deferring(2), 8, 60);
  EngineOptions options = Deferring(2);
  options.max_model_len = 0;
  options.kv_memory = "416KiB";  // as in EngineTest.PreemptionChangesNoToken
  MetricsRegistry metrics;
  const auto engine = CreateEngine(options, metrics);
  std::vector<std::shared_ptr<Collector>> together(8);
  for (size_t p = 0; p < 8; ++p) {
    if (prompts[p].prompt.size() + 60 > 200) continue;
    together[p] = SubmitOne(*engine, Ask(prompts[p].prompt, 60));
  }
  for (size_t p = 0; p < 8; ++p) {
    if (together[p] == nullptr) continue;
    EXPECT_EQ(AnswerOf(together[p]->Wait()), expected[p]) << p;
  }
  EXPECT_EQ(metrics.Serialize().find("moe_preemptions_total 0\n"), std::string::npos);
}

// A conversation: the second prompt has the first answer in it, as prompt and not as decoded.
TEST(DeferralEngineTest, AnswersAreNoPrefixOfPrompts) {
  const std::vector<int32_t> prompt = ReferencePrompts()[6].prompt;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(Deferring(2), metrics);
  const auto first = SubmitOne(*engine, Ask(prompt, 70));
  std::vector<int32_t> conversation = prompt;
  for (const int32_t token : first->Wait().Ids()) conversation.push_back(token);
  const auto second = SubmitOne(*engine, Ask(conversation, 20));
  second->Wait();
  // The prompt's blocks are shared, the answer's are not.
  EXPECT_GE(second->usage.cached_tokens, 112);
  EXPECT_LE(second->usage.cached_tokens, static_cast<int64_t>(prompt.size()));
  EngineOptions apart = Deferring(2);
  apart.prefix_cache = false;
  MetricsRegistry other_metrics;
  const auto other = CreateEngine(apart, other_metrics);
  EXPECT_EQ(AnswerOf(*second), AnswerOf(SubmitOne(*other, Ask(conversation, 20))->Wait()));
}

// Log-probabilities of a text as if it had been generated are those of generating it.
TEST(DeferralEngineTest, ATextCanBeMeasuredAsDecoded) {
  const std::vector<int32_t> prompt = ReferencePrompts()[3].prompt;
  MetricsRegistry metrics;
  const auto engine = CreateEngine(Deferring(2), metrics);
  const auto generated = SubmitOne(*engine, Ask(prompt, 24));
  std::vector<int32_t> text = prompt;
  for (const int32_t token : generated->Wait().Ids()) text.push_back(token);
  const auto measure = [&](int64_t decode_from) {
    EngineRequest request = Ask(text, 0);
    request.prompt_logprobs = 0;
    request.decode_from = decode_from;
    std::vector<float> logprobs;
    const auto collector = SubmitOne(*engine, std::move(request));
    for (const GeneratedToken& token : collector->Wait().prompt_tokens) {
      logprobs.push_back(token.logprob);
    }
    logprobs.erase(logprobs.begin(), logprobs.end() - 24);
    return logprobs;
  };
  EXPECT_EQ(measure(static_cast<int64_t>(prompt.size())), AnswerOf(*generated).logprobs);
  EXPECT_NE(measure(-1), AnswerOf(*generated).logprobs);
}

std::string DeferralRefusal(const EngineOptions& options) {
  try {
    PlanEngine(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

TEST(DeferralEngineTest, RefusesWhatItIsNotFor) {
  EngineOptions options = Deferring(1);
  EXPECT_EQ(DeferralRefusal(options), "accepted");
  options.exact_numerics = false;
  EXPECT_NE(DeferralRefusal(options).find("--numerics fast"), std::string::npos);
  options = Deferring(1);
  options.model_dir = std::string(MOESAIC_TEST_DATA_DIR) + "/models/mixtral_bf16_window";
  options.load_format = LoadFormat::kAuto;
  options.max_model_len = 0;
  EXPECT_NE(DeferralRefusal(options).find("2 experts for each token"), std::string::npos);
  // Its memory is in the ledger.
  EngineOptions without = SmallOptions();
  without.prefill_order = PrefillOrder::kChunks;
  EXPECT_GT(PlanEngine(Deferring(1)).ledger.total_bytes(),
            PlanEngine(without).ledger.total_bytes());
}

}  // namespace
}  // namespace moesaic
