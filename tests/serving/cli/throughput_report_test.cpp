#include "serving/cli/throughput_report.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/base/json.h"

namespace moesaic {
namespace {

// Reads 1 GB and computes 4 GFLOP for each token.
StepCost Cost() {
  StepCost cost;
  cost.dense_bytes = 1'000'000'000;
  cost.token_flop = 4e9;
  return cost;
}

ThroughputSample Sample(double seconds, int64_t steps, int64_t tokens) {
  ThroughputSample sample;
  sample.seconds = seconds;
  sample.work.steps = steps;
  sample.work.tokens = tokens;
  sample.stats.attention_us = static_cast<int64_t>(seconds * 0.25e6);
  sample.stats.moe_us = static_cast<int64_t>(seconds * 0.5e6);
  sample.stats.experts.hits = 3;
  sample.stats.experts.misses = 1;
  return sample;
}

TEST(ThroughputReportTest, MedianAndLimit) {
  // 8, 4 and 2 steps per second of one token.
  const ThroughputRow row = MakeThroughputRow({true, 1, 1, 128}, 2, "bf16",
                                              {Sample(2, 16, 16), Sample(4, 8, 8), Sample(2, 8, 8)},
                                              Cost(), {10e9, 100e9});
  EXPECT_EQ(row.tokens_per_s, (std::vector<double>{8, 2, 4}));
  EXPECT_DOUBLE_EQ(row.median(), 4);
  EXPECT_DOUBLE_EQ(row.bytes_per_s, 4e9);
  EXPECT_DOUBLE_EQ(row.flop_per_s, 16e9);
  EXPECT_TRUE(row.memory_bound());
  EXPECT_DOUBLE_EQ(row.peak_share(), 0.4);
  // 16 tokens in each of those steps: arithmetic is nearer to its limit.
  const ThroughputRow wide =
      MakeThroughputRow({false, 1, 16, 0}, 2, "bf16", {Sample(2, 4, 64)}, Cost(), {10e9, 200e9});
  EXPECT_FALSE(wide.memory_bound());
  EXPECT_DOUBLE_EQ(wide.peak_share(), 0.64);
}

TEST(ThroughputReportTest, JsonHasTheDocumentedKeys) {
  const std::vector<ThroughputRow> rows = {
      MakeThroughputRow({false, 1, 512, 0}, 1, "bf16", {Sample(1, 1, 512)}, Cost(), {10e9, 1e12}),
      MakeThroughputRow({true, 4, 1, 128}, 2, "bf16", {Sample(1, 2, 8)}, Cost(), {10e9, 1e12})};
  const Json list = Json::parse(ThroughputJson(rows));
  ASSERT_EQ(list.size(), 2u);
  const Json& prefill = list[0];
  EXPECT_EQ(prefill["test"], "pp512");
  const Json& decode = list[1];
  EXPECT_EQ(decode["test"], "tg128");
  EXPECT_EQ(decode["batch"], 4);
  EXPECT_EQ(decode["threads"], 2);
  EXPECT_EQ(decode["weight_type"], "bf16");
  EXPECT_DOUBLE_EQ(decode["tokens_per_s"], 8);
  EXPECT_DOUBLE_EQ(decode["tokens_per_s_min"], 8);
  EXPECT_DOUBLE_EQ(decode["tokens_per_s_max"], 8);
  EXPECT_DOUBLE_EQ(decode["bytes_per_s"], 2e9);
  EXPECT_DOUBLE_EQ(decode["flops_per_s"], 32e9);
  EXPECT_DOUBLE_EQ(decode["peak_share"], 0.2);
  EXPECT_EQ(decode["bound"], "memory");
  EXPECT_DOUBLE_EQ(decode["expert_hit_rate"], 0.75);
  EXPECT_DOUBLE_EQ(decode["time_shares"]["attention"], 0.25);
  EXPECT_DOUBLE_EQ(decode["time_shares"]["rest"], 0.25);
}

}  // namespace
}  // namespace moesaic
