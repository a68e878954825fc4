#include "serving/model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "serving/model/sampling_params.h"

namespace moesaic {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 0.5f, -1.0f, 2.5f};

// How often each token is drawn over many token numbers.
std::map<int32_t, double> Frequencies(const SamplingParams& params,
                                      const std::vector<float>& logits) {
  Sampler sampler(KernelsFor(Isa::kScalar), static_cast<int64_t>(logits.size()));
  std::map<int32_t, double> counts;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    std::vector<float> copy = logits;
    counts[sampler.Sample(params, 7, i, {}, copy)] += 1.0 / kDraws;
  }
  return counts;
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  double sum = 0;
  p.reserve(logits.size());
  for (const float logit : logits) p.push_back(std::exp(static_cast<double>(logit) / temperature));
  for (const double value : p) sum += value;
  for (double& value : p) value /= sum;
  return p;
}

TEST(SamplerTest, GreedyTakesTheBestAndTheLowerOnATie) {
  Sampler sampler(KernelsFor(Isa::kScalar), 4);
  SamplingParams params;
  params.temperature = 0;
  std::vector<float> logits = {1, 5, 5, 2};
  EXPECT_EQ(sampler.Sample(params, 0, 0, {}, logits), 1);
  EXPECT_EQ(ArgMax(std::vector<float>{std::nanf(""), 1, 2}), 2);
}

// Wherever it is: in a whole block of logits, in what is left behind blocks, at their borders.
TEST(SamplerTest, ArgMaxOfManyLogits) {
  std::vector<float> logits(2085);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i * 7919 % 2085) - 3000;
  for (const size_t at : {0, 31, 32, 1023, 1024, 2047, 2048, 2079, 2080, 2084}) {
    std::vector<float> changed = logits;
    changed[at] = 1;
    EXPECT_EQ(ArgMax(changed), static_cast<int32_t>(at));
    changed.back() = 1;  // a tie
    EXPECT_EQ(ArgMax(changed), static_cast<int32_t>(at));
  }
  EXPECT_EQ(ArgMax(std::vector<float>(40, -std::numeric_limits<float>::infinity())), 0);
  EXPECT_EQ(ArgMax(std::vector<float>(40, std::nanf(""))), 0);
}

// Exactly when the logits as they are decide.
TEST(SamplerTest, WhoTakesTheLargestLogit) {
  SamplingParams params;
  EXPECT_FALSE(TakesLargestLogit(params));
  params.top_k = 1;
  EXPECT_TRUE(TakesLargestLogit(params));
  params.top_k = 0;
  params.temperature = 0;
  EXPECT_TRUE(TakesLargestLogit(params));
  for (const auto& change : {+[](SamplingParams& p) {
                               p.logit_bias = {{1, 2.0f}};
                             },
                             +[](SamplingParams& p) { p.repetition_penalty = 1.1; },
                             +[](SamplingParams& p) { p.presence_penalty = 0.1; },
                             +[](SamplingParams& p) { p.frequency_penalty = -0.1; }}) {
    SamplingParams other = params;
    change(other);
    EXPECT_FALSE(TakesLargestLogit(other));
  }
}

TEST(SamplerTest, PlainSamplingFollowsTheSoftmax) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    SamplingParams params;
    params.temperature = temperature;
    const auto frequencies = Frequencies(params, kLogits);
    const std::vector<double> expected = Softmax(kLogits, temperature);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto it = frequencies.find(static_cast<int32_t>(i));
      EXPECT_NEAR(it == frequencies.end() ? 0 : it->second, expected[i], 0.012) << i;
    }
  }
}

TEST(SamplerTest, TopKKeepsTheBestK) {
  SamplingParams params;
  params.top_k = 2;
  const auto frequencies = Frequencies(params, kLogits);
  ASSERT_EQ(frequencies.size(), 2u);
  const double p1 = 1.0 / (1.0 + std::exp(-0.5));
  EXPECT_NEAR(frequencies.at(1), p1, 0.012);
  EXPECT_NEAR(frequencies.at(5), 1 - p1, 0.012);
}

TEST(SamplerTest, TopPKeepsTheSmallestNucleus) {
  // Softmax: token 1 has .44, token 5 .27, token 2 .16: 0.6 needs the first two.
  SamplingParams params;
  params.top_p = 0.6;
  EXPECT_EQ(Frequencies(params, kLogits).size(), 2u);
  params.top_p = 0.1;
  EXPECT_EQ(Frequencies(params, kLogits).size(), 1u);
  params.top_p = 0.0;
  EXPECT_EQ(Frequencies(params, kLogits).size(), 1u);
}

TEST(SamplerTest, TopPIsAShareOfWhatTopKLeft) {
  // Of the best three (.44 .27 .16 -> .51 .31 .18) 0.6 needs two, although .44 + .27 of the whole
  // is 0.71.
  SamplingParams params;
  params.top_k = 3;
  params.top_p = 0.85;
  EXPECT_EQ(Frequencies(params, kLogits).size(), 3u);
  params.top_p = 0.8;
  EXPECT_EQ(Frequencies(params, kLogits).size(), 2u);
}

TEST(SamplerTest, MinPIsRelativeToTheBest) {
  SamplingParams params;
  params.min_p = 0.5;  // exp(-0.5) = .61 stays, exp(-1) = .37 goes
  const auto frequencies = Frequencies(params, kLogits);
  EXPECT_EQ(frequencies.size(), 2u);
  EXPECT_TRUE(frequencies.count(1) && frequencies.count(5));
}

// Where probabilities are equal the lower ids stay.
TEST(SamplerTest, TiesAtTopK) {
  SamplingParams params;
  const std::vector<float> logits = {1, 3, 1, 3, 1, 3, 1};
  for (const auto& [k, kept] : std::vector<std::pair<int32_t, std::vector<int32_t>>>{
           {2, {1, 3}}, {3, {1, 3, 5}}, {4, {0, 1, 3, 5}}, {5, {0, 1, 2, 3, 5}}}) {
    params.top_k = k;
    std::vector<int32_t> drawn;
    for (const auto& [token, share] : Frequencies(params, logits)) drawn.push_back(token);
    EXPECT_EQ(drawn, kept) << k;
  }
}

// As many equal tokens as there are do not differ from no limit.
TEST(SamplerTest, TopKOfAllIsNoLimit) {
  const std::vector<float> logits(5, 0.5f);
  SamplingParams params;
  for (const int32_t k : {4, 5, 6}) {
    params.top_k = k;
    EXPECT_EQ(Frequencies(params, logits).size(), static_cast<size_t>(std::min(k, 5)));
  }
}

// A nucleus ends with the token that meets top_p, be it exactly: four equal tokens have 1/4 each.
TEST(SamplerTest, TopPMetExactly) {
  const std::vector<float> logits(4, 2.0f);
  SamplingParams params;
  for (const auto& [top_p, kept] :
       {std::pair{0.25, 1u}, {0.26, 2u}, {0.5, 2u}, {0.75, 3u}, {0.76, 4u}}) {
    params.top_p = top_p;
    const auto frequencies = Frequencies(params, logits);
    EXPECT_EQ(frequencies.size(), kept) << top_p;
    EXPECT_EQ(frequencies.rbegin()->first, static_cast<int32_t>(kept) - 1) << top_p;
    for (const auto& [token, share] : frequencies) EXPECT_NEAR(share, 1.0 / kept, 0.012) << top_p;
  }
}

// What is as likely as the floor stays: with min_p 1 all that are as good as the best.
TEST(SamplerTest, MinPAtTheFloor) {
  const std::vector<float> logits = {2, 1, 2, 2, 1.99f};
  SamplingParams params;
  params.min_p = 1;
  const auto frequencies = Frequencies(params, logits);
  EXPECT_EQ(frequencies.size(), 3u);
  for (const int32_t token : {0, 2, 3}) EXPECT_NEAR(frequencies.at(token), 1.0 / 3, 0.012);
  // The floor is a share of the best, not of one.
  params.min_p = 0.9;
  EXPECT_EQ(Frequencies(params, logits).size(), 4u);
}

TEST(SamplerTest, PenaltiesAndBias) {
  Sampler sampler(KernelsFor(Isa::kScalar), 6);
  SamplingParams params;
  params.temperature = 0;
  PenaltyState state;
  state.seen = {1};
  params.repetition_penalty = 1.5;  // 3 / 1.5 = 2 < 2.5
  std::vector<float> logits = kLogits;
  EXPECT_EQ(sampler.Sample(params, 0, 0, state, logits), 5);
  EXPECT_FLOAT_EQ(logits[1], 2.0f);

  params = {};
  params.temperature = 0;
  params.frequency_penalty = 0.3;
  params.presence_penalty = 0.1;
  state = {};
  state.output_counts = {{1, 2}};
  logits = kLogits;
  sampler.Sample(params, 0, 0, state, logits);
  EXPECT_NEAR(logits[1], 3.0 - 0.6 - 0.1, 1e-6);

  params = {};
  params.temperature = 0;
  params.logit_bias = {{4, 100.0f}};
  logits = kLogits;
  EXPECT_EQ(sampler.Sample(params, 0, 0, {}, logits), 4);

  // A negative logit of a repeated token moves away from zero.
  params = {};
  params.temperature = 0;
  params.repetition_penalty = 2;
  state = {};
  state.seen = {4};
  logits = kLogits;
  sampler.Sample(params, 0, 0, state, logits);
  EXPECT_FLOAT_EQ(logits[4], -2.0f);
}

TEST(SamplerTest, ADrawDependsOnSeedAndNumberAlone) {
  Sampler a(KernelsFor(Isa::kScalar), 6);
  Sampler b(KernelsFor(Isa::kScalar), 6);
  SamplingParams params;
  std::vector<int32_t> first;
  std::vector<int32_t> second;
  for (int i = 0; i < 50; ++i) {
    std::vector<float> logits = kLogits;
    first.push_back(a.Sample(params, 11, i, {}, logits));
  }
  for (int i = 49; i >= 0; --i) {
    std::vector<float> logits = kLogits;
    second.push_back(b.Sample(params, 11, i, {}, logits));
  }
  std::reverse(second.begin(), second.end());
  EXPECT_EQ(first, second);
}

TEST(SamplerTest, ExtremeTemperaturesDoNotOverflow) {
  SamplingParams params;
  params.temperature = 1e-30;
  EXPECT_EQ(Frequencies(params, kLogits).size(), 1u);
  params.temperature = 1e30;
  EXPECT_EQ(Frequencies(params, kLogits).size(), kLogits.size());
}

TEST(SamplerTest, LogprobsAreThoseOfTheRawSoftmax) {
  Sampler sampler(KernelsFor(Isa::kScalar), 6);
  const std::vector<double> p = Softmax(kLogits, 1.0);
  const GeneratedToken token = sampler.Logprobs(kLogits, 3, 3);
  EXPECT_EQ(token.token, 3);
  EXPECT_NEAR(token.logprob, std::log(p[3]), 1e-5);
  ASSERT_EQ(token.top.size(), 3u);
  EXPECT_EQ(token.top[0].token, 1);
  EXPECT_EQ(token.top[1].token, 5);
  EXPECT_EQ(token.top[2].token, 2);
  EXPECT_NEAR(token.top[0].logprob, std::log(p[1]), 1e-5);
  EXPECT_EQ(sampler.Logprobs(kLogits, 0, 100).top.size(), kLogits.size());
  // The lower id first on a tie.
  const std::vector<float> ties = {1, 2, 1, 2, 1, 2};
  const GeneratedToken tied = sampler.Logprobs(ties, 0, 4);
  ASSERT_EQ(tied.top.size(), 4u);
  for (const auto& [at, id] : {std::pair{0, 1}, {1, 3}, {2, 5}, {3, 0}}) {
    EXPECT_EQ(tied.top[static_cast<size_t>(at)].token, id);
  }
}

}  // namespace
}  // namespace moesaic
