#include "core/base/metrics.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>
#include <vector>

namespace moesaic {
namespace {

TEST(MetricsTest, WritesEachKindAsPrometheusText) {
  MetricsRegistry registry;
  registry.GetCounter("moe_b_total", "Things.").Add(3);
  registry.GetGauge("moe_a", "A level.", {{"model", "m"}}).Set(-0.5);
  Histogram& histogram = registry.GetHistogram("moe_c_seconds", "Time.", {0.25, 1});
  histogram.Observe(0.25);  // a bound belongs to its own bucket
  histogram.Observe(0.5);
  histogram.Observe(7);
  EXPECT_EQ(registry.Serialize(),
            "# HELP moe_a A level.\n# TYPE moe_a gauge\nmoe_a{model=\"m\"} -0.5\n"
            "# HELP moe_b_total Things.\n# TYPE moe_b_total counter\nmoe_b_total 3\n"
            "# HELP moe_c_seconds Time.\n# TYPE moe_c_seconds histogram\n"
            "moe_c_seconds_bucket{le=\"0.25\"} 1\nmoe_c_seconds_bucket{le=\"1\"} 2\n"
            "moe_c_seconds_bucket{le=\"+Inf\"} 3\nmoe_c_seconds_sum 7.75\nmoe_c_seconds_count 3\n");
}

TEST(MetricsTest, SameNameAndLabelsIsTheSameMetric) {
  MetricsRegistry registry;
  Counter& first = registry.GetCounter("moe_x_total", "x", {{"k", "1"}});
  Counter& other = registry.GetCounter("moe_x_total", "x", {{"k", "2"}});
  for (int i = 0; i < 100; ++i) registry.GetCounter("moe_x_total", "x", {{"k", std::to_string(i)}});
  EXPECT_EQ(&first, &registry.GetCounter("moe_x_total", "x", {{"k", "1"}}));
  EXPECT_NE(&first, &other);
}

TEST(MetricsTest, EscapesLabelsAndHelp) {
  MetricsRegistry registry;
  registry.GetGauge("moe_g", "a\\b\n\"c\"", {{"model", "x\"y\\z\n"}}).Set(1);
  EXPECT_EQ(registry.Serialize(),
            "# HELP moe_g a\\\\b\\n\"c\"\n# TYPE moe_g gauge\nmoe_g{model=\"x\\\"y\\\\z\\n\"} 1\n");
}

TEST(MetricsTest, NonFiniteValues) {
  MetricsRegistry registry;
  registry.GetGauge("moe_g", "g").Set(-std::numeric_limits<double>::infinity());
  EXPECT_NE(registry.Serialize().find("moe_g -Inf\n"), std::string::npos);
  Histogram& histogram = registry.GetHistogram("moe_h", "h", {1});
  histogram.Observe(std::numeric_limits<double>::quiet_NaN());
  histogram.Observe(2);
  EXPECT_EQ(histogram.sum(), 2);
  EXPECT_EQ(histogram.counts(), (std::vector<uint64_t>{0, 1}));
}

TEST(MetricsTest, ConcurrentUpdatesAreNotLost) {
  MetricsRegistry registry;
  constexpr int kThreads = 4;
  constexpr int kUpdates = 20000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&registry] {
      Counter& counter = registry.GetCounter("moe_n_total", "n");
      Histogram& histogram = registry.GetHistogram("moe_h", "h", {0.5, 1.5});
      Gauge& gauge = registry.GetGauge("moe_level", "l");
      for (int i = 0; i < kUpdates; ++i) {
        counter.Add();
        histogram.Observe(i % 2);
        gauge.Add(i % 2 == 0 ? 1 : -1);
        if (i % 4096 == 0) registry.Serialize();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.GetCounter("moe_n_total", "n").value(), kThreads * kUpdates);
  EXPECT_EQ(registry.GetHistogram("moe_h", "h", {}).counts(),
            (std::vector<uint64_t>{kThreads * kUpdates / 2, kThreads * kUpdates / 2, 0}));
  EXPECT_EQ(registry.GetGauge("moe_level", "l").value(), 0);
}

TEST(MetricsDeathTest, ANameKeepsItsKind) {
  MetricsRegistry registry;
  registry.GetCounter("moe_x_total", "x");
  EXPECT_DEATH(registry.GetGauge("moe_x_total", "x"), "kind");
  EXPECT_DEATH(registry.GetGauge("1 bad name", "x"), "IsValidName");
  EXPECT_DEATH(registry.GetCounter("moe_x_total", "x").Add(-1), "amount");
}

}  // namespace
}  // namespace moesaic
