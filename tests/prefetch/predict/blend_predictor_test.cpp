// BlendPredictor against its formula (blend_predictor.h), written out in double precision with a
// weight for each place that the formula names, and no layout, padding or running sums that serve
// several distances.

#include "prefetch/predict/blend_predictor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace moesaic {
namespace {

using Values = std::vector<double>;  // [experts]

// One row of weights and the sum of squares that it shares. Weights are kept in steps of 1/4096.
struct FormulaRow {
  Values weights;
  double squares = 0;
};

class BlendFormula {
 public:
  explicit BlendFormula(const PredictorShape& shape)
      : shape_(shape),
        window_(std::min(8, shape.num_layers - 1)),
        turns_(static_cast<size_t>(shape.num_layers)),
        requests_(static_cast<size_t>(shape.max_requests)) {
    for (size_t layer = 0; layer < turns_.size(); ++layer) turns_[layer] = 7 * layer;
  }

  void BeginRequest(int request) {
    Request& r = requests_[static_cast<size_t>(request)];
    r = {};
    r.habit.assign(static_cast<size_t>(shape_.num_layers), {});
    for (auto& of_layer : r.habit) {
      of_layer.fill(Values(Experts(), Uniform() / (Uniform() + kFloor)));
    }
    r.target.resize(static_cast<size_t>(shape_.num_layers));
    for (int layer = 0; layer < shape_.num_layers; ++layer) Aim(r, layer);
  }

  void BeginIteration(int request, int32_t token, int64_t rows) {
    Request& r = requests_[static_cast<size_t>(request)];
    ++r.iteration;
    r.now = r.iteration * shape_.num_layers - 1;
    r.token = token;
    r.rows = rows;
    if (token < 0) return;
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      AddRow(Token(layer, token), 1, r.known[r.now + 1 + layer]);
    }
    for (int layer = 0; layer < std::min(shape_.num_layers, kFar - 1); ++layer) {
      if (r.target[static_cast<size_t>(layer)].distance == layer + 1) {
        StateTarget(r, layer, true);
      }
    }
  }

  void Observe(int request, int layer, const std::vector<int32_t>& experts) {
    Request& r = requests_[static_cast<size_t>(request)];
    const int64_t place = r.iteration * shape_.num_layers + layer;
    const double rows = static_cast<double>(experts.size()) / shape_.top_k;
    Values share(Experts(), 0.0);
    for (const int32_t expert : experts) share[static_cast<size_t>(expert)] += 1 / rows;
    Values most_one = share;
    for (double& s : most_one) s = std::min(s, 1.0);
    if (r.target[static_cast<size_t>(layer)].stated) Train(r, layer, place, most_one);
    r.used[place] = most_one;
    r.now = place;
    for (size_t speed = 0; speed < kKeep.size(); ++speed) {
      Values& habit = r.habit[static_cast<size_t>(layer)][speed];
      const double keep = std::pow(kKeep[speed], rows);
      for (size_t j = 0; j < Experts(); ++j) {
        habit[j] = keep * habit[j] + (1 - keep) * share[j] / (Uniform() + kFloor);
      }
    }
    // What follows from this use, for each place ahead.
    for (size_t i = 0; i < Experts(); ++i) {
      if (share[i] <= 0) continue;
      const auto expert = static_cast<int>(i);
      for (int gap = 1; gap <= window_; ++gap) {
        const int target = (layer + gap) % shape_.num_layers;
        AddRow(Between(target, gap, expert), most_one[i], r.known[place + gap]);
      }
      AddRow(Again(layer, 1, expert), most_one[i], r.known[place + shape_.num_layers]);
      AddRow(Again(layer, 2, expert), most_one[i], r.known[place + 2 * shape_.num_layers]);
    }
    Aim(r, layer);
    for (int gap = 1; gap <= window_; ++gap) {
      const int target = (layer + gap) % shape_.num_layers;
      if (r.target[static_cast<size_t>(target)].distance == gap) {
        StateTarget(r, target, layer + gap < shape_.num_layers);
      }
    }
  }

  Values Predict(int request, int distance) {
    Request& r = requests_[static_cast<size_t>(request)];
    const int64_t place = r.now + distance;
    Values p = State(r, place, distance);
    if (place / shape_.num_layers > r.iteration) return p;  // one token
    for (double& x : p) x = 1 - std::pow(1 - x, static_cast<double>(r.rows));
    return p;
  }

 private:
  static constexpr std::array<double, 4> kKeep = {0.6, 0.9, 0.98, 0.995};
  static constexpr double kFloor = 0.02;
  static constexpr double kRate = 0.1;
  static constexpr int kFar = 9;

  // What is trained when a layer is reached next.
  struct Target {
    int64_t place = 0;
    int distance = 0;
    bool stated = false;
    bool token_known = false;
    Values probability;
  };
  // Places are counted through: iteration * layers + layer.
  struct Request {
    int64_t iteration = -1;
    int64_t now = -1;  // the place that was observed last
    int32_t token = -1;
    int64_t rows = 1;
    std::map<int64_t, Values> used;
    std::map<int64_t, Values> known;  // of the logit there, but for bias and habit
    std::vector<std::array<Values, 4>> habit;
    std::vector<Target> target;
  };

  size_t Experts() const { return static_cast<size_t>(shape_.num_experts); }
  double Uniform() const { return static_cast<double>(shape_.top_k) / shape_.num_experts; }

  FormulaRow& Row(std::map<std::vector<int>, FormulaRow>& rows, const std::vector<int>& key,
                  double first) {
    return rows.try_emplace(key, FormulaRow{Values(Experts(), first), 0}).first->second;
  }
  FormulaRow& Bias(int layer, int distance) {
    return Row(bias_, {layer, std::min(distance, kFar)}, -2);
  }
  FormulaRow& Between(int layer, int gap, int expert) {
    return Row(between_, {layer, gap, expert}, 0);
  }
  FormulaRow& Again(int layer, int age, int expert) { return Row(again_, {layer, age, expert}, 0); }
  FormulaRow& Token(int layer, int32_t token) { return Row(token_, {layer, token}, 0); }
  // The weights of habits: each has a sum of its own. [kKeep.size()]
  FormulaRow& Habit(int layer, int distance, int speed) {
    return habit_
        .try_emplace({layer, std::min(distance, kFar), speed}, FormulaRow{Values(1, 0.2), 0})
        .first->second;
  }

  void AddRow(const FormulaRow& row, double scale, Values& to) const {
    to.resize(Experts(), 0.0);
    for (size_t j = 0; j < Experts(); ++j) to[j] += scale * row.weights[j];
  }
  double Feature(const Request& r, int layer, size_t speed, size_t expert) const {
    return std::log(r.habit[static_cast<size_t>(layer)][speed][expert] +
                    kFloor / (Uniform() + kFloor));
  }

  Values State(Request& r, int64_t place, int distance) {
    const auto layer = static_cast<int>(place % shape_.num_layers);
    Values p(Experts(), 0.0);
    AddRow(Bias(layer, distance), 1, p);
    AddRow({r.known.contains(place) ? r.known[place] : Values(Experts(), 0.0), 0}, 1, p);
    for (size_t speed = 0; speed < kKeep.size(); ++speed) {
      const double weight = Habit(layer, distance, static_cast<int>(speed)).weights[0];
      for (size_t j = 0; j < Experts(); ++j) p[j] += weight * Feature(r, layer, speed, j);
    }
    for (double& x : p) x = 1 / (1 + std::exp(-x));
    return p;
  }

  void Aim(Request& r, int layer) {
    constexpr std::array<int, 16> kTurns = {1, 2, 3, 4, 1, 2, 5, kFar, 1, 3, 6, 2, 1, 4, 7, 8};
    const int distance = kTurns[turns_[static_cast<size_t>(layer)]++ % kTurns.size()];
    Target& target = r.target[static_cast<size_t>(layer)];
    target = Target();
    target.place = (r.iteration + 1) * shape_.num_layers + layer;
    target.distance = distance;
    if (distance == kFar) StateTarget(r, layer, false);
  }
  void StateTarget(Request& r, int layer, bool token_known) {
    Target& target = r.target[static_cast<size_t>(layer)];
    target.stated = true;
    target.token_known = token_known;
    target.probability = State(r, target.place, target.distance);
  }

  void Train(Request& r, int layer, int64_t place, const Values& share) {
    const Target& target = r.target[static_cast<size_t>(layer)];
    ASSERT_EQ(target.place, place);
    Values error(Experts());
    double mean_square = 0;
    for (size_t j = 0; j < Experts(); ++j) {
      error[j] = target.probability[j] - share[j];
      mean_square += error[j] * error[j] / shape_.num_experts;
    }
    const auto learn = [&](FormulaRow& row, double scale, double times = 1) {
      row.squares = std::min(row.squares + scale * scale * mean_square, 20.0);
      const double rate = times * kRate * scale / std::sqrt(row.squares + 0.1);
      for (size_t j = 0; j < Experts(); ++j) {
        const double steps = std::nearbyint((row.weights[j] - rate * error[j]) * 4096);
        row.weights[j] = std::clamp(steps, -32768.0, 32767.0) / 4096;
      }
    };
    const auto learn_used = [&](int64_t at, const auto& row_of) {
      const auto used = r.used.find(at);
      if (used == r.used.end()) return;
      for (size_t i = 0; i < Experts(); ++i) {
        if (used->second[i] > 0) learn(row_of(static_cast<int>(i)), used->second[i]);
      }
    };
    learn(Bias(layer, target.distance), 1);
    for (int gap = target.distance; gap <= window_; ++gap) {
      learn_used(place - gap,
                 [&](int expert) -> FormulaRow& { return Between(layer, gap, expert); });
    }
    for (const int age : {1, 2}) {
      learn_used(place - age * shape_.num_layers,
                 [&](int expert) -> FormulaRow& { return Again(layer, age, expert); });
    }
    if (target.token_known && r.token >= 0) learn(Token(layer, r.token), 1, 4);
    for (size_t speed = 0; speed < kKeep.size(); ++speed) {
      double gradient = 0;
      for (size_t j = 0; j < Experts(); ++j) gradient += error[j] * Feature(r, layer, speed, j);
      FormulaRow& habit = Habit(layer, target.distance, static_cast<int>(speed));
      habit.squares = std::min(habit.squares + gradient * gradient, 2000.0);
      habit.weights[0] -= 0.5 * kRate * gradient / std::sqrt(habit.squares + 1);
    }
  }

  const PredictorShape shape_;
  const int window_;
  std::map<std::vector<int>, FormulaRow> bias_, between_, again_, token_;
  std::map<std::array<int, 3>, FormulaRow> habit_;
  std::vector<size_t> turns_;
  std::vector<Request> requests_;
};

class BlendFormulaTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Layers, BlendFormulaTest, testing::Values(1, 2, 5, 8, 9, 12));

// Two requests in turn, with prompts of several rows, tokens that are known and not. What a layer
// uses follows from the layer before it, from what it used two iterations ago, from the token, or
// from nothing, so that every kind of weight is learned and matters.
TEST_P(BlendFormulaTest, AgreesWithTheFormula) {
  const int layers = GetParam();
  const PredictorShape shape{layers, 20, 2, 2};
  BlendPredictor predictor(shape, SelectKernels());
  BlendFormula formula(shape);
  std::mt19937 random(static_cast<uint32_t>(layers));
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  double worst = 0;
  std::vector<float> stated(20);
  const auto compare = [&](int request) {
    for (int distance = 1; distance <= layers; ++distance) {
      predictor.Predict(request, distance, stated);
      const Values expected = formula.Predict(request, distance);
      for (size_t j = 0; j < 20; ++j) {
        worst = std::max(worst, std::abs(static_cast<double>(stated[j]) - expected[j]));
      }
    }
  };
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<int>> last(2, std::vector<int>(static_cast<size_t>(layers), 0));
    std::vector<std::vector<int>> before = last;
    for (const int request : {0, 1}) {
      predictor.BeginRequest(request);
      formula.BeginRequest(request);
    }
    for (int iteration = 0; iteration < 60; ++iteration) {
      for (const int request : {0, 1}) {
        // A prompt in one or two parts; then a token at a time, one in five of them not told.
        const int64_t rows = iteration == 0 ? 5 : iteration == 1 && request == 1 ? 3 : 1;
        const int32_t token = rows > 1 || below(5) == 0 ? Predictor::kUnknownToken : below(12);
        predictor.BeginIteration(request, token, rows);
        formula.BeginIteration(request, token, rows);
        compare(request);
        for (int layer = 0; layer < layers; ++layer) {
          const auto at = static_cast<size_t>(layer);
          std::vector<int32_t> experts;
          for (int64_t row = 0; row < rows; ++row) {
            const int kind = layer % 4;
            const int first = kind == 0   ? (token < 0 ? below(10) : token)
                              : kind == 1 ? (last[static_cast<size_t>(request)][at - 1] * 3) % 19
                              : kind == 2 ? (before[static_cast<size_t>(request)][at] + 1) % 19
                                          : below(19);
            const int other = below(19);
            experts.push_back(first);
            experts.push_back(other == first ? 19 : other);
          }
          before[static_cast<size_t>(request)][at] = last[static_cast<size_t>(request)][at];
          last[static_cast<size_t>(request)][at] = experts[0];
          predictor.Observe(request, layer, experts);
          formula.Observe(request, layer, experts);
          compare(request);
        }
      }
    }
    predictor.EndRequest(0);
    predictor.EndRequest(1);
  }
  RecordProperty("worst", std::to_string(worst));
  // Weights are rounded to steps of 1/4096, and now and then one falls to the other side.
  EXPECT_LT(worst, 2e-3);
}

// Of five rows that each use an expert with probability p, one uses it with 1 - (1 - p)^5; the
// layers of the next iteration have one row again.
TEST(BlendPredictorTest, PromptsOfSeveralRows) {
  const PredictorShape shape{3, 8, 1, 2};
  BlendPredictor predictor(shape, SelectKernels());
  for (const int request : {0, 1}) {
    predictor.BeginRequest(request);
    predictor.BeginIteration(request, Predictor::kUnknownToken, request == 0 ? 1 : 5);
    predictor.Observe(request, 0, std::vector<int32_t>(request == 0 ? 1 : 5, 3));
  }
  for (int distance = 1; distance <= 3; ++distance) {
    std::vector<float> one(8);
    std::vector<float> five(8);
    predictor.Predict(0, distance, one);
    predictor.Predict(1, distance, five);
    for (size_t j = 0; j < 8; ++j) {
      if (distance <= 2) {
        EXPECT_NEAR(five[j], 1 - std::pow(1 - one[j], 5.0f), 1e-5f) << distance;
      } else if (j == 3) {
        EXPECT_GT(five[j], one[j]);  // used five times of five, and once of one
      } else {
        EXPECT_LT(five[j], one[j]);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
