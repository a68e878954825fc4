// NextGate against a product in double precision, NextGatePredictor on hidden states that drift.
#include "prefetch/predict/next_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "core/base/error.h"
#include "prefetch/predict/next_gate_predictor.h"

namespace moesaic {
namespace {

constexpr double kEps = 1e-6;

// Routers of random weights.
struct Routers {
  Routers(const PredictorShape& of, int64_t hidden_size, uint32_t seed)
      : shape(of), hidden(hidden_size), random(seed) {
    for (int layer = 0; layer < shape.num_layers; ++layer) {
      std::vector<float>& norm = norms.emplace_back();
      std::vector<float>& weight = weights.emplace_back();
      for (int64_t i = 0; i < hidden; ++i) norm.push_back(1 + 0.3f * normal(random));
      for (int64_t i = 0; i < hidden * shape.num_experts; ++i) weight.push_back(normal(random));
      AlignedBuffer& buffer = packed.emplace_back(
          static_cast<size_t>(PackedMatrix::Bytes(WeightType::kF32, shape.num_experts, hidden)));
      kernels.pack_panels(weight.data(), DType::kF32, hidden, shape.num_experts, hidden,
                          WeightType::kF32, 0, (shape.num_experts + 15) / 16, buffer.data());
    }
  }

  std::vector<NextGate::Router> List() const {
    std::vector<NextGate::Router> routers;
    for (size_t layer = 0; layer < norms.size(); ++layer) {
      PackedMatrix matrix;
      matrix.data = packed[layer].data();
      matrix.type = WeightType::kF32;
      matrix.n = shape.num_experts;
      matrix.k = hidden;
      NextGate::Router& router = routers.emplace_back();
      router.norm = norms[layer].data();
      router.weights = matrix;
    }
    return routers;
  }
  void LoadInto(NextGate& gates) { gates.Load(List(), kEps, pool); }

  std::vector<float> RandomHidden(int64_t rows) {
    std::vector<float> x(static_cast<size_t>(rows * hidden));
    for (float& v : x) v = 3 * normal(random);
    return x;
  }

  // What the layer's router says of a row.
  std::vector<double> Logits(int layer, const float* x) const {
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) squares += static_cast<double>(x[i]) * x[i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + kEps);
    std::vector<double> logits(static_cast<size_t>(shape.num_experts));
    const auto at = static_cast<size_t>(layer);
    for (size_t j = 0; j < logits.size(); ++j) {
      for (int64_t i = 0; i < hidden; ++i) {
        const auto k = static_cast<size_t>(i);
        logits[j] += scale * x[k] * norms[at][k] * weights[at][j * static_cast<size_t>(hidden) + k];
      }
    }
    return logits;
  }

  std::vector<int32_t> Choice(int layer, const float* x) const {
    const std::vector<double> logits = Logits(layer, x);
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    order.resize(static_cast<size_t>(shape.top_k));
    return order;
  }

  PredictorShape shape;
  int64_t hidden;
  std::mt19937 random;
  std::normal_distribution<float> normal;
  const CpuKernels& kernels = F32KernelsOf(SelectKernels());
  ThreadPool pool{2};
  std::vector<std::vector<float>> norms;
  std::vector<std::vector<float>> weights;
  std::vector<AlignedBuffer> packed;
};

TEST(NextGateTest, MarginsAreThoseOfTheRoutersAhead) {
  const PredictorShape shape{5, 20, 3, 2};
  Routers routers(shape, 72, 1);
  NextGate gates(shape, routers.hidden, 2, routers.kernels);
  routers.LoadInto(gates);
  const std::vector<float> hidden = routers.RandomHidden(7);
  // One row of request 1, six of request 0, of which four are looked at.
  const std::vector<StepRequest> step = {{1, 0, 0, 1}, {0, 0, 1, 6}};
  gates.BeginIteration(0);
  gates.BeginIteration(1);
  for (const int layer : {0, 1, 2, 3, 4}) {
    gates.Look(layer, step, hidden.data());
    for (int ahead = 1; ahead <= 2; ++ahead) {
      if (layer + ahead >= shape.num_layers) continue;
      for (const StepRequest& request : step) {
        const NextGate::Margins margins = gates.For(request.request, layer + ahead, ahead);
        ASSERT_EQ(margins.rows, request.num_rows == 1 ? 1 : 4);
        EXPECT_EQ(margins.numbers[margins.rows - 1], request.num_rows - 1);
        for (int64_t row = 0; row < margins.rows; ++row) {
          const std::vector<double> logits = routers.Logits(
              layer + ahead, &hidden[static_cast<size_t>(
                                 (request.first_row + margins.numbers[row]) * routers.hidden)]);
          std::vector<double> order = logits;
          std::sort(order.begin(), order.end(), std::greater<>());
          const double boundary = (order[2] + order[3]) / 2;
          const float* values = margins.values + static_cast<size_t>(row) * gates.stride();
          for (size_t j = 0; j < logits.size(); ++j) {
            // Routers are kept in bf16: 2^-9 of products that add up to some 72.
            ASSERT_NEAR(static_cast<double>(values[j]), logits[j] - boundary, 0.15);
          }
          for (size_t j = logits.size(); j < gates.stride(); ++j) ASSERT_EQ(values[j], 0.0f);
        }
      }
    }
  }
  EXPECT_EQ(gates.For(0, 3, 3).rows, 0);  // farther than is looked
  gates.BeginIteration(0);
  EXPECT_EQ(gates.For(0, 1, 1).rows, 0);
  EXPECT_EQ(gates.For(1, 4, 1).rows, 1);
}

// A norm that subtracts the mean says the same of a row and of the row plus any number.
TEST(NextGateTest, CentredNormsDoNotSeeTheMean) {
  const PredictorShape shape{2, 12, 2, 1};
  Routers routers(shape, 40, 5);
  NextGate gates(shape, routers.hidden, 1, routers.kernels);
  std::vector<NextGate::Router> list = routers.List();
  for (NextGate::Router& router : list) router.centred = true;
  gates.Load(list, kEps, routers.pool);
  std::vector<float> hidden = routers.RandomHidden(1);
  const auto best = [&] {
    gates.BeginIteration(0);
    const std::vector<StepRequest> step = {{0, 0, 0, 1}};
    gates.Look(0, step, hidden.data());
    const NextGate::Margins margins = gates.For(0, 1, 1);
    EXPECT_EQ(margins.rows, 1);
    return std::max_element(margins.values, margins.values + shape.num_experts) - margins.values;
  };
  const auto chosen = best();
  for (float& v : hidden) v += 2.0f;
  EXPECT_EQ(best(), chosen);
  // The choice is the router's of the row without its mean.
  const float mean = std::accumulate(hidden.begin(), hidden.end(), 0.0f) / 40.0f;
  for (float& v : hidden) v -= mean;
  EXPECT_EQ(routers.Choice(1, hidden.data()).front(), chosen);
}

// The choice is by sigmoid and correction, so that margins are about those of the sums; a bias of
// the logits is added before.
TEST(NextGateTest, CorrectedRoutersChooseByTheirSums) {
  const PredictorShape shape{2, 20, 3, 1};
  Routers routers(shape, 72, 3);
  std::vector<float> bias(20), correction(20);
  for (float& v : bias) v = routers.normal(routers.random);
  for (float& v : correction) v = 0.5f * routers.normal(routers.random);
  const std::vector<float> hidden = routers.RandomHidden(1);
  const std::vector<double> logits = routers.Logits(1, hidden.data());
  for (const bool corrected : {false, true}) {
    NextGate gates(shape, routers.hidden, 1, routers.kernels);
    std::vector<NextGate::Router> of = routers.List();
    for (NextGate::Router& router : of) {
      router.bias = bias.data();
      router.correction = corrected ? correction.data() : nullptr;
      router.score = ScoreFunction::kSigmoid;
    }
    gates.Load(of, kEps, routers.pool);
    gates.BeginIteration(0);
    gates.Look(0, std::vector<StepRequest>{{0, 0, 0, 1}}, hidden.data());
    const NextGate::Margins margins = gates.For(0, 1, 1);
    ASSERT_EQ(margins.rows, 1);
    std::vector<double> choices(logits);
    for (size_t j = 0; j < choices.size(); ++j) {
      choices[j] += static_cast<double>(bias[j]);
      if (corrected) {
        choices[j] = 1 / (1 + std::exp(-choices[j])) + static_cast<double>(correction[j]);
      }
    }
    std::vector<double> order = choices;
    std::sort(order.begin(), order.end(), std::greater<>());
    const double boundary = (order[2] + order[3]) / 2;
    for (size_t j = 0; j < choices.size(); ++j) {
      const double margin = (corrected ? 4 : 1) * (choices[j] - boundary);
      ASSERT_NEAR(static_cast<double>(margins.values[j]), margin, 0.15) << corrected << " " << j;
    }
  }
}

TEST(NextGateTest, PoisonedRowsSayNothing) {
  const PredictorShape shape{2, 16, 2, 1};
  Routers routers(shape, 32, 2);
  NextGate gates(shape, routers.hidden, 1, routers.kernels);
  routers.LoadInto(gates);
  std::vector<float> hidden = routers.RandomHidden(1);
  hidden[7] = std::numeric_limits<float>::quiet_NaN();
  gates.BeginIteration(0);
  gates.Look(0, std::vector<StepRequest>{{0, 0, 0, 1}}, hidden.data());
  const NextGate::Margins margins = gates.For(0, 1, 1);
  ASSERT_EQ(margins.rows, 1);
  for (int j = 0; j < 16; ++j) EXPECT_EQ(margins.values[j], 0.0f);
}

// Each layer adds noise to the hidden state, so that a router sees less well the farther ahead.
TEST(NextGatePredictorTest, StatesWhatHappensAndRanksByTheGates) {
  const PredictorShape shape{4, 16, 2, 1};
  for (const bool with_blend : {false, true}) {
    Routers routers(shape, 48, 3);
    NextGate gates(shape, routers.hidden, 2, routers.kernels);
    routers.LoadInto(gates);
    NextGatePredictor predictor(shape, routers.kernels, gates, with_blend);
    predictor.BeginRequest(0);
    std::vector<float> p(16);
    std::vector<int> used(3), found(3);
    std::vector<std::vector<int32_t>> foreseen(4 * 4);
    double stated = 0;
    double happened = 0;
    for (int iteration = 0; iteration < 1500; ++iteration) {
      predictor.BeginIteration(0, Predictor::kUnknownToken, 1);
      std::vector<float> x = routers.RandomHidden(1);
      std::vector<std::vector<float>> sure(4);
      for (int layer = 0; layer < 4; ++layer) {
        const std::vector<int32_t> choice = routers.Choice(layer, x.data());
        if (iteration >= 500) {
          for (int distance = 1; distance <= std::min(2, layer); ++distance) {
            for (const int32_t expert : choice) {
              const auto& top = foreseen[static_cast<size_t>(layer * 4 + distance)];
              used[static_cast<size_t>(distance)] += 1;
              found[static_cast<size_t>(distance)] +=
                  std::find(top.begin(), top.end(), expert) != top.end() ? 1 : 0;
            }
          }
          if (!sure[static_cast<size_t>(layer)].empty()) {
            for (size_t j = 0; j < 16; ++j) {
              const float said = sure[static_cast<size_t>(layer)][j];
              if (said < 0.5f) continue;
              stated += static_cast<double>(said);
              happened +=
                  std::find(choice.begin(), choice.end(), static_cast<int32_t>(j)) != choice.end()
                      ? 1
                      : 0;
            }
          }
        }
        gates.Look(layer, std::vector<StepRequest>{{0, Predictor::kUnknownToken, 0, 1}}, x.data());
        predictor.Observe(0, layer, choice);
        for (int distance = 1; distance <= std::min(2, 3 - layer); ++distance) {
          predictor.Predict(0, distance, p);
          auto& top = foreseen[static_cast<size_t>((layer + distance) * 4 + distance)];
          top.resize(16);
          std::iota(top.begin(), top.end(), 0);
          std::sort(top.begin(), top.end(), [&](int32_t a, int32_t b) {
            return p[static_cast<size_t>(a)] > p[static_cast<size_t>(b)];
          });
          top.resize(2);
          if (distance == 1) sure[static_cast<size_t>(layer + 1)] = p;
        }
        for (float& v : x) v += 0.6f * routers.normal(routers.random);
      }
    }
    const auto recall = [&](size_t distance) {
      return static_cast<double>(found[distance]) / used[distance];
    };
    EXPECT_GT(recall(1), 0.8) << with_blend;
    EXPECT_GT(recall(2), 0.7) << with_blend;
    EXPECT_GT(recall(1), recall(2)) << with_blend;
    EXPECT_GT(happened, 1000);
    EXPECT_NEAR(stated / happened, 1, 0.04) << with_blend;
  }
}

// Rows that are looked at stand for the others: an expert that no row chooses stays unlikely.
TEST(NextGatePredictorTest, SeveralRowsAreAnyOfThem) {
  const PredictorShape shape{2, 16, 1, 1};
  Routers routers(shape, 64, 4);
  NextGate gates(shape, routers.hidden, 1, routers.kernels);
  routers.LoadInto(gates);
  NextGatePredictor predictor(shape, routers.kernels, gates, false);
  predictor.BeginRequest(0);
  const int64_t rows = 3;
  std::vector<float> p(16);
  double used = 0, unused = 0;
  int uses = 0, others = 0;
  for (int iteration = 0; iteration < 400; ++iteration) {
    const std::vector<float> x = routers.RandomHidden(rows);
    std::vector<int32_t> first, second;
    for (int64_t row = 0; row < rows; ++row) {
      first.push_back(routers.Choice(0, &x[static_cast<size_t>(row * 64)])[0]);
      second.push_back(routers.Choice(1, &x[static_cast<size_t>(row * 64)])[0]);
    }
    predictor.BeginIteration(0, Predictor::kUnknownToken, rows);
    gates.Look(0, std::vector<StepRequest>{{0, Predictor::kUnknownToken, 0, rows}}, x.data());
    predictor.Observe(0, 0, first);
    predictor.Predict(0, 1, p);
    gates.Look(1, std::vector<StepRequest>{{0, Predictor::kUnknownToken, 0, rows}}, x.data());
    predictor.Observe(0, 1, second);
    if (iteration < 200) continue;
    for (int32_t j = 0; j < 16; ++j) {
      const bool was = std::find(second.begin(), second.end(), j) != second.end();
      (was ? used : unused) += static_cast<double>(p[static_cast<size_t>(j)]);
      ++(was ? uses : others);
    }
  }
  EXPECT_GT(used / uses, 0.75);
  EXPECT_LT(unused / others, 0.08);
}

TEST(NextGatePredictorTest, NeedsAModel) {
  try {
    MakePredictor("next-gate", {4, 16, 2, 1}, SelectKernels());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a recorded routing has none"), std::string::npos);
  }
}

}  // namespace
}  // namespace moesaic
