#include "serving/api/engine_requests.h"

#include <gtest/gtest.h>

#include "serving/api/api_error.h"

namespace moesaic {
namespace {

class EngineRequestsTest : public ::testing::Test {
 protected:
  std::vector<EngineRequest> Build(std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}}) {
    RequestLimits context{defaults_};
    context.max_context_tokens = 10;
    context.vocab_size = 100;
    context.max_sequences = 8;
    context.max_prompt_logprobs = 24;
    context.routed_per_token = 4;
    context.max_routed_lists = 40;
    context.max_routed_base64 = 80;
    context.default_max_tokens = default_max_tokens_;
    context.request_id = "r";
    return BuildEngineRequests(fields_, prompts, context);
  }
  std::string ParamOf(std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}}) {
    try {
      Build(std::move(prompts));
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status(), 400);
      return error.param() + "/" + error.code();
    }
    return "accepted";
  }

  GenerationDefaults defaults_;
  ApiRequest fields_;
  std::optional<int32_t> default_max_tokens_ = 16;
};

TEST_F(EngineRequestsTest, OpenAiDefaults) {
  const auto requests = Build();
  ASSERT_EQ(requests.size(), 1u);
  const SamplingParams& sampling = requests[0].sampling;
  EXPECT_EQ(sampling.temperature, 1.0);
  EXPECT_EQ(sampling.top_p, 1.0);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.min_p, 0.0);
  EXPECT_EQ(sampling.repetition_penalty, 1.0);
  EXPECT_FALSE(sampling.seed.has_value());
  EXPECT_EQ(requests[0].id, "r");
  EXPECT_EQ(requests[0].max_tokens, 7);  // 16, but the context has room for 7
}

TEST_F(EngineRequestsTest, TheModelsDefaultsAndTheRequestsFields) {
  defaults_.temperature = 0.7;
  defaults_.top_p = 0.9;
  defaults_.top_k = 40;
  defaults_.min_p = 0.05;
  defaults_.repetition_penalty = 1.05;
  SamplingParams sampling = Build()[0].sampling;
  EXPECT_EQ(sampling.temperature, 0.7);
  EXPECT_EQ(sampling.top_p, 0.9);
  EXPECT_EQ(sampling.top_k, 40);
  EXPECT_EQ(sampling.min_p, 0.05);
  EXPECT_EQ(sampling.repetition_penalty, 1.05);
  fields_.sampling.temperature = 0;
  fields_.sampling.top_k = -1;
  fields_.sampling.top_p = 1;
  fields_.sampling.repetition_penalty = 1;
  sampling = Build()[0].sampling;
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.top_p, 1);
  EXPECT_EQ(sampling.repetition_penalty, 1);
}

TEST_F(EngineRequestsTest, ChoicesDifferInSeedAndId) {
  fields_.n = 2;
  fields_.sampling.seed = 40;
  const auto requests = Build({{1}, {2}});
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[1].prompt, (std::vector<int32_t>{1}));
  EXPECT_EQ(requests[2].prompt, (std::vector<int32_t>{2}));
  EXPECT_EQ(requests[0].sampling.seed, 40u);
  EXPECT_EQ(requests[1].sampling.seed, 41u);
  EXPECT_EQ(requests[2].sampling.seed, 40u);  // a prompt's answer does not depend on its neighbours
  EXPECT_EQ(requests[3].id, "r-3");
}

TEST_F(EngineRequestsTest, Lengths) {
  fields_.max_tokens = 7;
  EXPECT_EQ(ParamOf(), "accepted");
  fields_.max_tokens = 8;
  EXPECT_EQ(ParamOf(), "max_tokens/context_length_exceeded");
  fields_.max_tokens = 0;
  EXPECT_EQ(ParamOf({std::vector<int32_t>(10, 1)}), "accepted");
  EXPECT_EQ(ParamOf({std::vector<int32_t>(11, 1)}), "prompt/context_length_exceeded");
  fields_.max_tokens.reset();
  EXPECT_EQ(ParamOf({std::vector<int32_t>(10, 1)}), "prompt/context_length_exceeded");
  default_max_tokens_.reset();  // chat: up to the context
  EXPECT_EQ(Build()[0].max_tokens, 7);
  EXPECT_EQ(ParamOf({std::vector<int32_t>(10, 1)}), "messages/context_length_exceeded");
}

TEST_F(EngineRequestsTest, RefusesWhatTheModelCannotDo) {
  EXPECT_EQ(ParamOf({{}}), "prompt/invalid_value");
  EXPECT_EQ(ParamOf({{1}, {100}}), "prompt/invalid_value");
  EXPECT_EQ(ParamOf({{1}, {-1}}), "prompt/invalid_value");
  fields_.stop_token_ids = {100};
  EXPECT_EQ(ParamOf(), "stop_token_ids/invalid_value");
  fields_.stop_token_ids.clear();
  fields_.sampling.logit_bias = {{100, 1.f}};
  EXPECT_EQ(ParamOf(), "logit_bias/invalid_value");
  fields_.sampling.logit_bias.clear();
  fields_.n = 3;
  EXPECT_EQ(ParamOf({{1}, {1}, {1}}), "prompt/invalid_value");
  EXPECT_EQ(ParamOf({{1}, {1}}), "accepted");
}

TEST_F(EngineRequestsTest, BoundsThePromptsLogprobs) {
  fields_.prompt_logprobs = 3;
  EXPECT_EQ(ParamOf({{1, 2, 3}, {1, 2, 3}}), "accepted");  // 2 prompts of 3 tokens with 4 each
  EXPECT_EQ(ParamOf({{1, 2, 3}, {1, 2, 3, 4}}), "logprobs/invalid_value");
  fields_.n = 2;
  EXPECT_EQ(ParamOf({{1, 2, 3, 4}}), "logprobs/invalid_value");
  fields_.prompt_logprobs = -1;
  EXPECT_EQ(ParamOf({{1, 2, 3, 4}}), "accepted");
}

TEST_F(EngineRequestsTest, RoutedExpertsAreToldWithinBounds) {
  using Form = RoutedOutput::Form;
  EXPECT_FALSE(Build()[0].return_routed_experts);
  EXPECT_EQ(Build()[0].routed_from, -1);
  fields_.routed_experts = Form::kLists;
  fields_.routed_experts_start = 1;
  fields_.max_tokens = 7;
  EXPECT_TRUE(Build()[0].return_routed_experts);
  EXPECT_EQ(Build()[0].routed_from, 1);
  EXPECT_EQ(ParamOf(), "accepted");  // 2 + 7 tokens of 4
  EXPECT_EQ(ParamOf({{1, 2, 3}, {1, 2, 3}}), "return_routed_experts/invalid_value");
  fields_.routed_experts = Form::kBase64;
  EXPECT_EQ(ParamOf({{1, 2, 3}, {1, 2, 3}}), "accepted");
  EXPECT_EQ(ParamOf({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}), "return_routed_experts/invalid_value");
  fields_.routed_experts_start = 4;
  EXPECT_EQ(ParamOf(), "routed_experts_start_len/invalid_value");
}

}  // namespace
}  // namespace moesaic
