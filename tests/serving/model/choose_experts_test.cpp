// The choice of experts against a straightforward one in double precision, and its rules one by
// one: bits of the softmax routers, ties, groups, NaN.
#include "serving/model/choose_experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/serving/model/choice_in_double.h"
#include "tests/serving/model/model_harness.h"

namespace moesaic {
namespace {

struct Chosen {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Chosen Choose(const RouterSpec& spec, std::vector<float> logits,
              const std::vector<float>& correction = {}, Isa isa = Isa::kScalar) {
  Chosen chosen;
  chosen.ids.assign(static_cast<size_t>(spec.top_k), -1);
  chosen.weights.assign(static_cast<size_t>(spec.top_k), 0);
  ChooseExperts(spec, KernelsFor(isa), logits.data(),
                correction.empty() ? nullptr : correction.data(), chosen.ids.data(),
                chosen.weights.data());
  return chosen;
}

std::vector<float> Uniform(std::mt19937& random, int64_t count, float span) {
  std::uniform_real_distribution<float> uniform(-span / 2, span / 2);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

TEST(ChooseExpertsTest, AgreesWithDoublePrecision) {
  std::mt19937 random(7);
  int64_t compared = 0;
  for (const ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid,
                                    ScoreFunction::kSqrtSoftplus, ScoreFunction::kLogit}) {
    for (const RouterNorm norm : {RouterNorm::kNone, RouterNorm::kSum, RouterNorm::kSumPlusEps,
                                  RouterNorm::kSumAtLeastEps, RouterNorm::kSoftmax}) {
      for (const GroupRule rule : {GroupRule::kMax, GroupRule::kTopTwoSum}) {
        for (const auto& [experts, groups, kept, top_k] : {std::array<int64_t, 4>{5, 1, 1, 2},
                                                           {48, 1, 1, 6},
                                                           {48, 8, 3, 6},
                                                           {16, 16, 5, 5},
                                                           {24, 4, 1, 6},
                                                           {6, 1, 1, 6}}) {
          for (const bool biased : {false, true}) {
            RouterSpec spec;
            spec.experts = experts;
            spec.top_k = top_k;
            spec.score = score;
            spec.correction_bias = biased;
            spec.num_groups = groups;
            spec.groups_kept = kept;
            spec.group_rule = rule;
            spec.norm = norm;
            spec.norm_eps = 0.7;
            spec.scale = biased ? 2.5 : 1.0;
            // So far apart that float and double agree on the order. Choices with the bias are
            // negative too, and in another order than the scores.
            std::vector<float> logits;
            std::vector<float> correction;
            ExpertChoice expected;
            while (expected.gap < 1e-5) {
              logits = Uniform(random, experts, 6);
              correction = Uniform(random, experts, 3);
              expected = ChoiceInDouble(spec, {logits.begin(), logits.end()}, correction);
            }
            const Chosen got = Choose(spec, logits, correction);
            SCOPED_TRACE(testing::Message()
                         << "score " << static_cast<int>(score) << " norm "
                         << static_cast<int>(norm) << " rule " << static_cast<int>(rule) << ", "
                         << experts << " experts, " << groups << " groups, bias " << biased);
            ASSERT_EQ(got.ids, expected.ids);
            for (size_t slot = 0; slot < got.weights.size(); ++slot) {
              ASSERT_NEAR(got.weights[slot], expected.weights[slot],
                          2e-6 * std::abs(expected.weights[slot]) + 1e-7);
            }
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_EQ(compared, 4 * 5 * 2 * 6 * 2);
}

// Far out, where a softplus in float would be 0 or infinite.
TEST(ChooseExpertsTest, SqrtSoftplusIsExactFarFromZero) {
  RouterSpec spec;
  spec.experts = spec.top_k = 4;
  spec.score = ScoreFunction::kSqrtSoftplus;
  const Chosen got = Choose(spec, {-60.0f, 90.0f, -20.0f, 1000.0f});
  EXPECT_EQ(got.ids, (std::vector<int32_t>{3, 1, 2, 0}));
  EXPECT_FLOAT_EQ(got.weights[0], std::sqrt(1000.0f));
  EXPECT_FLOAT_EQ(got.weights[1], std::sqrt(90.0f));
  EXPECT_FLOAT_EQ(got.weights[2], static_cast<float>(std::exp(-10.0)));
  EXPECT_FLOAT_EQ(got.weights[3], static_cast<float>(std::exp(-30.0)));
}

// The softmax routers' bits are those of taking the largest k times, whatever the instruction set.
TEST(ChooseExpertsTest, SoftmaxRoutersHaveTheBitsOfTheirFormula) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  for (const int64_t experts : {4, 60, 128}) {
    for (const RouterNorm norm : {RouterNorm::kNone, RouterNorm::kSum}) {
      RouterSpec spec;
      spec.experts = experts;
      spec.top_k = experts == 4 ? 2 : 8;
      spec.norm = norm;
      std::vector<float> logits(static_cast<size_t>(experts));
      for (float& x : logits) x = normal(random);
      logits[3] = logits[1];
      std::vector<float> left(logits.size());
      KernelsFor(Isa::kScalar).softmax(logits.data(), experts, left.data());
      Chosen expected;
      float sum = 0.0f;
      for (int64_t slot = 0; slot < spec.top_k; ++slot) {
        const auto best = std::max_element(left.begin(), left.end());
        expected.ids.push_back(static_cast<int32_t>(best - left.begin()));
        expected.weights.push_back(*best);
        sum += *best;
        *best = -1.0f;
      }
      if (norm == RouterNorm::kSum) {
        for (float& w : expected.weights) w /= sum;
      }
      for (const Isa isa : SupportedIsas()) {
        const Chosen got = Choose(spec, logits, {}, isa);
        EXPECT_EQ(got.ids, expected.ids);
        EXPECT_EQ(got.weights, expected.weights);
      }
    }
  }
}

TEST(ChooseExpertsTest, OfEqualChoicesTheLowerExpert) {
  RouterSpec spec;
  spec.experts = 6;
  spec.top_k = 3;
  spec.score = ScoreFunction::kLogit;
  EXPECT_EQ(Choose(spec, {1, 2, 2, 1, 2, 2}).ids, (std::vector<int32_t>{1, 2, 4}));
  EXPECT_EQ(Choose(spec, {0, 0, 0, 0, 0, 0}).ids, (std::vector<int32_t>{0, 1, 2}));
  // Below -1, which marked the experts that were taken once; and -inf, which is a choice as well.
  EXPECT_EQ(Choose(spec, {-5, -3, -1, -4, -1, -2}).ids, (std::vector<int32_t>{2, 4, 5}));
  const float least = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(Choose(spec, {least, 3, least, least, least, least}).ids,
            (std::vector<int32_t>{1, 0, 2}));
  // Of equal groups the first, and of their equal experts the lower one, whichever group is better.
  spec.num_groups = 3;
  spec.groups_kept = 2;
  EXPECT_EQ(Choose(spec, {1, 4, 1, 4, 1, 4}).ids, (std::vector<int32_t>{1, 3, 0}));
  EXPECT_EQ(Choose(spec, {1, 2, 9, 9, 1, 4}).ids, (std::vector<int32_t>{2, 3, 5}));
  EXPECT_EQ(Choose(spec, {1, 4, 1, 2, 1, 5}).ids, (std::vector<int32_t>{5, 1, 0}));
}

// Kept groups have the experts, even where their choices are below those of other groups or below
// zero, and the best group is not the one with the best expert.
TEST(ChooseExpertsTest, OnlyExpertsOfTheKeptGroups) {
  RouterSpec spec;
  spec.experts = 9;
  spec.top_k = 3;
  spec.score = ScoreFunction::kLogit;
  spec.correction_bias = true;
  spec.num_groups = 3;
  spec.groups_kept = 1;
  const std::vector<float> logits = {5, -4, -4, 2, 3, -9, 1, 1, 1};
  const std::vector<float> none(9, 0.0f);
  EXPECT_EQ(Choose(spec, logits, none).ids, (std::vector<int32_t>{0, 1, 2}));
  spec.group_rule = GroupRule::kTopTwoSum;
  EXPECT_EQ(Choose(spec, logits, none).ids, (std::vector<int32_t>{4, 3, 5}));
  // The bias decides for the third group, the weights do not have it.
  const Chosen biased = Choose(spec, logits, {0, 0, 0, 0, 0, 0, 3, 4, 2});
  EXPECT_EQ(biased.ids, (std::vector<int32_t>{7, 6, 8}));
  EXPECT_EQ(biased.weights, (std::vector<float>{1, 1, 1}));
}

TEST(ChooseExpertsTest, PoisonedRowsGetDistinctExpertsAndShowIt) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ScoreFunction score : {ScoreFunction::kSoftmax, ScoreFunction::kSigmoid,
                                    ScoreFunction::kSqrtSoftplus, ScoreFunction::kLogit}) {
    for (const int64_t kept : {1, 2}) {
      RouterSpec spec;
      spec.experts = 8;
      spec.top_k = 4;
      spec.score = score;
      spec.norm = RouterNorm::kSum;
      spec.num_groups = 2;
      spec.groups_kept = kept;
      const Chosen got = Choose(spec, std::vector<float>(8, nan));
      EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 3}));
      for (const float w : got.weights) EXPECT_TRUE(std::isnan(w));
    }
  }
  // Among numbers it is the least.
  RouterSpec spec;
  spec.experts = 4;
  spec.top_k = 3;
  spec.score = ScoreFunction::kLogit;
  EXPECT_EQ(Choose(spec, {nan, -7, 2, -9}).ids, (std::vector<int32_t>{2, 1, 3}));
}

}  // namespace
}  // namespace moesaic
