#include "serving/http/rate_limiter.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

class RateLimiterTest : public testing::Test {
 protected:
  std::string HeaderOf(const ApiKey& key, std::string_view name) {
    HttpResponse response;
    limiter_.AddHeaders(key, response);
    for (const auto& [header, value] : response.headers) {
      if (header == name) return value;
    }
    return {};
  }

  double now_s_ = 1000;
  RateLimiter limiter_{[this] { return now_s_; }};
};

TEST_F(RateLimiterTest, AMinutesWorthMayComeAtOnceAndComesBackEvenly) {
  const ApiKey key{"k", "ann", {}, false, 6};
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(limiter_.Admit(key));
  const auto refused = limiter_.Admit(key);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status(), 429);
  EXPECT_EQ(refused->retry_after_s(), 10);
  EXPECT_NE(std::string(refused->what()).find("6 requests a minute"), std::string::npos);
  EXPECT_EQ(HeaderOf(key, "x-ratelimit-reset-requests"), "1m0s");
  now_s_ += 9.5;
  EXPECT_TRUE(limiter_.Admit(key));
  now_s_ += 0.5;
  EXPECT_FALSE(limiter_.Admit(key));
  EXPECT_TRUE(limiter_.Admit(key));
  now_s_ += 3600;  // no more than a minute's worth is kept
  EXPECT_EQ(HeaderOf(key, "x-ratelimit-remaining-requests"), "6");
  EXPECT_EQ(HeaderOf(key, "x-ratelimit-reset-requests"), "0ms");
  for (int i = 0; i < 6; ++i) EXPECT_FALSE(limiter_.Admit(key));
  EXPECT_TRUE(limiter_.Admit(key));
}

TEST_F(RateLimiterTest, TokensAreMadeUpForAfterwards) {
  const ApiKey key{"k", "", {}, false, 0, 600};
  EXPECT_FALSE(limiter_.Admit(key));
  limiter_.Spend(key, 1500);
  EXPECT_EQ(HeaderOf(key, "x-ratelimit-remaining-tokens"), "0");
  EXPECT_EQ(HeaderOf(key, "x-ratelimit-reset-tokens"), "2m30s");
  EXPECT_EQ(HeaderOf(key, "x-ratelimit-limit-requests"), "");
  const auto refused = limiter_.Admit(key);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->retry_after_s(), 91);  // 901 of 10 a second
  now_s_ += 91;
  EXPECT_FALSE(limiter_.Admit(key));
}

TEST_F(RateLimiterTest, HoldersAreApart) {
  const ApiKey ann{"k1", "ann", {}, false, 1};
  const ApiKey of_ann_too{"k2", "ann", {}, false, 1};
  const ApiKey nameless{"k3", "", {}, false, 1};
  const ApiKey other{"k4", "", {}, false, 1};
  EXPECT_FALSE(limiter_.Admit(ann));
  EXPECT_TRUE(limiter_.Admit(of_ann_too));
  EXPECT_FALSE(limiter_.Admit(nameless));
  EXPECT_FALSE(limiter_.Admit(other));
  EXPECT_TRUE(limiter_.Admit(nameless));
  const ApiKey unlimited{"k5", "ann"};
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(limiter_.Admit(unlimited));
}

// A request that is refused for its tokens has not used up a request.
TEST_F(RateLimiterTest, WhatIsRefusedCostsNothing) {
  const ApiKey key{"k", "ann", {}, false, 2, 60};
  limiter_.Spend(key, 70);
  EXPECT_TRUE(limiter_.Admit(key));
  EXPECT_EQ(HeaderOf(key, "x-ratelimit-remaining-requests"), "2");
}

}  // namespace
}  // namespace moesaic
