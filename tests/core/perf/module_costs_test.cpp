// The fit, and the file of fitted costs.
#include "core/perf/module_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/perf/linear_fit.h"
#include "core/perf/model_shape.h"
#include "tests/core/base/caught.h"
#include "tests/core/base/temp_dir.h"

namespace moesaic {
namespace {

TEST(LinearFitTest, FindsALine) {
  std::vector<std::vector<double>> terms;
  std::vector<double> values;
  for (const double n : {1.0, 8.0, 64.0, 256.0}) {
    terms.push_back({1, n});
    values.push_back(3e-5 + 2e-7 * n);
  }
  const LinearFit fit = FitLinear(terms, values);
  EXPECT_NEAR(fit.coefficients[0], 3e-5, 1e-11);
  EXPECT_NEAR(fit.coefficients[1], 2e-7, 1e-13);
  EXPECT_EQ(fit.outliers, 0u);
  EXPECT_LT(fit.relative_error, 1e-9);
}

TEST(LinearFitTest, LeavesOutWhatANeighbourDisturbed) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> noise(0.99, 1.01);
  std::vector<std::vector<double>> terms;
  std::vector<double> values;
  for (int i = 1; i <= 20; ++i) {
    const double n = i * 10;
    terms.push_back({1, n, n * n});
    values.push_back((1e-4 + 5e-6 * n + 1e-8 * n * n) * noise(random));
  }
  values[7] *= 6;
  values[13] *= 3;
  const LinearFit fit = FitLinear(terms, values);
  EXPECT_EQ(fit.outliers, 2u);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i == 7 || i == 13) continue;
    double fitted = 0;
    for (size_t j = 0; j < 3; ++j) fitted += fit.coefficients[j] * terms[i][j];
    EXPECT_NEAR(fitted / values[i], 1, 0.03);
  }
}

TEST(LinearFitTest, NothingIsBelowZero) {
  // A falling line: the constant alone is left.
  const LinearFit falling = FitLinear(std::vector<std::vector<double>>{{1, 1}, {1, 2}, {1, 3}},
                                      std::vector<double>{3.0, 2.0, 1.0});
  EXPECT_EQ(falling.coefficients[1], 0);
  EXPECT_GT(falling.coefficients[0], 0);
  // Two terms that cannot be told apart, and one that is never there.
  const LinearFit same =
      FitLinear(std::vector<std::vector<double>>{{1, 1, 0}, {2, 2, 0}, {3, 3, 0}},
                std::vector<double>{2.0, 4.0, 6.0});
  EXPECT_NEAR(same.coefficients[0] + same.coefficients[1], 2, 1e-9);
  EXPECT_EQ(same.coefficients[2], 0);
}

TEST(LinearFitTest, NoiseOfAFewPercentIsNoOutlier) {
  std::vector<std::vector<double>> terms;
  std::vector<double> values;
  for (int i = 1; i <= 10; ++i) {
    terms.push_back({1, static_cast<double>(i)});
    values.push_back(2.0 + i);
  }
  values[4] *= 1.03;  // the others lie on the line
  EXPECT_EQ(FitLinear(terms, values).outliers, 0u);
}

TEST(LinearFitTest, OnePointMoreThanTermsStays) {
  // Three terms with a point of their own, and three points of one term, of which two are far off.
  const std::vector<std::vector<double>> terms = {{1, 0, 0, 0}, {0, 1, 0, 0}, {0, 0, 1, 0},
                                                  {0, 0, 0, 1}, {0, 0, 0, 1}, {0, 0, 0, 1}};
  const std::vector<double> values = {1, 1, 1, 1, 2, 0.8284};
  const LinearFit fit = FitLinear(terms, values);
  EXPECT_EQ(fit.outliers, 1u);
  EXPECT_EQ(fit.points, 5u);
}

ModuleCosts SomeCosts() {
  ModuleCosts costs;
  costs.key = "model and machine";
  costs.host_fingerprint = "0123";
  costs.model = "tiny";
  costs.created = "2026-01-31T12:00:00Z";
  for (size_t i = 0; i < kNumModules; ++i) {
    costs.modules[i] = {1e-6 * static_cast<double>(i + 1), 1e-8, 0.01, 12, "fit"};
  }
  costs.link = {1.5e9, 1.4e9, 1.6e9, "byte/s", "alone", "then"};
  costs.contended_link_share = {0.9, 0.8, 1, "share", "jointly", "then"};
  costs.contended_compute_share = {0.8, 0.7, 0.9, "share", "jointly", "then"};
  costs.host_copy = {5e9, 5e9, 5e9, "byte/s", "", ""};
  costs.cores = 2;
  costs.routing = {{1, 2, 1}, {4, 3, 2}, {64, 3.5, 3.25}};
  return costs;
}

TEST(ModuleCostsTest, SurviveTheirFile) {
  const TempDir directory;
  const ModuleCosts costs = SomeCosts();
  std::string why;
  EXPECT_FALSE(LoadModuleCosts(directory.path() / "costs", costs.key, &why));
  EXPECT_EQ(why, "not measured yet");
  SaveModuleCosts(costs, directory.path() / "costs");
  const auto again = LoadModuleCosts(directory.path() / "costs", costs.key, &why);
  ASSERT_TRUE(again) << why;
  EXPECT_EQ(SerializeModuleCosts(*again), SerializeModuleCosts(costs));
  EXPECT_EQ((*again)[Module::kExpert].fixed_s, costs[Module::kExpert].fixed_s);
  EXPECT_EQ(again->routing, costs.routing);
}

TEST(ModuleCostsTest, RefusesWhatCannotBePlannedWith) {
  std::string text = SerializeModuleCosts(SomeCosts());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    const size_t at = changed.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return changed.replace(at, from.size(), to);
  };
  const auto kind_of = [](const std::string& json) {
    return Caught([&] { ParseModuleCosts(json, "costs.json"); }).kind();
  };
  EXPECT_EQ(kind_of("[]"), ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of(with("moesaic-module-costs", "something")), ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of(with("\"version\": 4", "\"version\": 3")), ErrorKind::kUnsupported);
  EXPECT_EQ(kind_of(with("\"version\": 4", "\"version\": 5")), ErrorKind::kUnsupported);
  EXPECT_EQ(kind_of(with("1500000000.0", "0")), ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of(with("\"fixed_s\": 1e-06", "\"fixed_s\": -1")), ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of(with("\"expert\"", "\"experts\"")), ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of(with("3.5", "\"much\"")), ErrorKind::kCorrupt);
  EXPECT_EQ(kind_of(with("3.5", "2.5")), ErrorKind::kCorrupt);    // fewer experts for more rows
  EXPECT_EQ(kind_of(with("3.25", "3.75")), ErrorKind::kCorrupt);  // more repeated than used
  EXPECT_EQ(kind_of(with("\"cores\": 2", "\"cores\": 0")), ErrorKind::kCorrupt);
}

TEST(ModuleCostsTest, ActiveExpertsAreThoseOfTheText) {
  ModuleCosts costs = SomeCosts();
  EXPECT_DOUBLE_EQ(costs.ActiveExperts(4, 2, 1), 2);
  EXPECT_DOUBLE_EQ(costs.ActiveExperts(4, 2, 2), 2.5);  // half way, in powers of two
  EXPECT_DOUBLE_EQ(costs.ActiveExperts(4, 2, 4), 3);
  EXPECT_DOUBLE_EQ(costs.ActiveExperts(4, 2, 16), 3.25);
  EXPECT_DOUBLE_EQ(costs.ActiveExperts(4, 2, 1e6), 3.5);
  EXPECT_DOUBLE_EQ(costs.ActiveExperts(4, 2, 0.5), 1);
  EXPECT_DOUBLE_EQ(costs.ActiveExperts(3, 2, 1e6), 3);
  EXPECT_DOUBLE_EQ(costs.RepeatedExperts(4, 2, 1), 1);
  EXPECT_DOUBLE_EQ(costs.RepeatedExperts(4, 2, 2), 1.5);
  EXPECT_DOUBLE_EQ(costs.RepeatedExperts(4, 2, 1e6), 3.25);
  costs.routing.clear();
  EXPECT_EQ(costs.ActiveExperts(4, 1, 4), ExpectedActiveExperts(4, 1, 4));
  const double evenly = ExpectedActiveExperts(4, 1, 4);
  EXPECT_DOUBLE_EQ(costs.RepeatedExperts(4, 1, 4), evenly * evenly / 4);
}

}  // namespace
}  // namespace moesaic
