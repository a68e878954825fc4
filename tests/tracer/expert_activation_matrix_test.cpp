#include "tracer/expert_activation_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace moesaic {
namespace {

TEST(ExpertActivationMatrixTest, CountsTokens) {
  ExpertActivationMatrix m(3, 4);
  m.Add(1, 2, 5);
  m.Add(1, 2);
  m.Add(1, 0, 2);
  EXPECT_EQ(m.count(1, 2), 6u);
  EXPECT_EQ(m.row_sum(1), 8u);
  EXPECT_EQ(m.row_sum(0), 0u);
  EXPECT_EQ(m.total(), 8u);
  EXPECT_EQ(m.distinct(1), 2);
  EXPECT_EQ(m.Row(1).size(), 4u);
  EXPECT_EQ(m.Row(1)[2], 6u);
  m.Clear();
  EXPECT_EQ(m, ExpertActivationMatrix(3, 4));
}

TEST(ExpertActivationMatrixTest, SumsElementwise) {
  ExpertActivationMatrix a(2, 3);
  ExpertActivationMatrix b(2, 3);
  a.Add(0, 1, 3);
  b.Add(0, 1, 4);
  b.Add(1, 2, 7);
  a += b;
  EXPECT_EQ(a.count(0, 1), 7u);
  EXPECT_EQ(a.count(1, 2), 7u);
  EXPECT_EQ(a.row_sum(0), 7u);
  EXPECT_EQ(a.row_sum(1), 7u);
}

TEST(ExpertActivationMatrixTest, CountsSaturate) {
  constexpr uint32_t kMost = std::numeric_limits<uint32_t>::max();
  ExpertActivationMatrix a(1, 2);
  a.Add(0, 0, kMost - 1);
  a.Add(0, 0, 5);
  EXPECT_EQ(a.count(0, 0), kMost);
  EXPECT_EQ(a.row_sum(0), kMost);
  a += a;
  EXPECT_EQ(a.count(0, 0), kMost);
  EXPECT_EQ(a.row_sum(0), kMost);
}

TEST(ExpertActivationMatrixTest, Cosine) {
  ExpertActivationMatrix a(2, 2);
  ExpertActivationMatrix b(2, 2);
  EXPECT_EQ(CosineSimilarity(a, b), 0.0);
  a.Add(0, 0, 3);
  a.Add(1, 1, 4);
  EXPECT_EQ(CosineSimilarity(a, b), 0.0);
  EXPECT_NEAR(CosineSimilarity(a, a), 1.0, 1e-12);
  b.Add(0, 0, 4);
  b.Add(1, 0, 3);
  // (3, 0, 0, 4) and (4, 0, 3, 0): 12 / (5 * 5)
  EXPECT_NEAR(CosineSimilarity(a, b), 12.0 / 25.0, 1e-12);
  // Only the first layer: parallel.
  EXPECT_NEAR(CosineSimilarity(a, b, 1), 1.0, 1e-12);
  EXPECT_EQ(CosineSimilarity(a, b, 0), 0.0);
}

TEST(ExpertActivationMatrixDeathTest, MisuseIsABug) {
  ExpertActivationMatrix a(2, 3);
  EXPECT_DEATH(a.Add(2, 0), "");
  EXPECT_DEATH(a.Add(0, 3), "");
  EXPECT_DEATH(a.Add(0, -1), "");
  EXPECT_DEATH(a += ExpertActivationMatrix(3, 2), "");
  EXPECT_DEATH(CosineSimilarity(a, ExpertActivationMatrix(3, 2)), "");
}

}  // namespace
}  // namespace moesaic
