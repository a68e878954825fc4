// BlendPredictor: the default predictor. One logistic regression per layer and expert, learned
// online while it predicts:
//
//   logit P(expert j of layer t is used) =
//       bias[t, distance, j]
//     + sum over the last layers s that were observed, over experts i used there:
//         between[t, t - s, i, j]        (layers before the first one are the previous iteration's)
//     + sum over experts i that layer t used one and two iterations ago: again[t, age, i, j]
//     + by_token[t, token, j]            (once the token of the iteration is known)
//     + sum over decay rates b: habit[t, distance, b] * log-odds-like feature of how often the
//       request has lately used j in t (a request EAM that forgets at four speeds).
//
// It is the discriminative counterpart of naive Bayes over transition counts (the `transition`
// predictor) and of the request EAM: because weights are fitted jointly, evidence that two layers
// share is not counted twice, and what comes out is a probability without a second calibration. On
// real traces the difference is large (docs/experiments/). The weights `between` do not depend on
// the look-ahead distance, so that one running sum per target layer, to which each observed layer
// adds its rows, serves all distances; bias and habit do.
//
// Learning: when a layer's routing is known, the error of the probability that was stated at one
// distance, 1 to kMaxDistance in turn, updates what it was made of (AdaGrad, Duchi et al. 2011).
//
// Memory: num_layers x num_experts^2 x (kWindow + 2) weights and as many AdaGrad sums, plus the
// token table, which takes at most `token_table_bytes` (tokens share rows by hash).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "prefetch/predictor.h"

namespace moesaic {

struct BlendOptions {
  float learning_rate = 0.15f;
  uint64_t token_table_bytes = uint64_t{32} << 20;
};

class BlendPredictor final : public Predictor {
 public:
  static constexpr int kWindow = 8;       // layers that look ahead to a target
  static constexpr int kMaxDistance = 8;  // at which it is trained; further ones use the last
  static constexpr int kNumHabits = 4;

  explicit BlendPredictor(const PredictorShape& shape, const BlendOptions& options = {});

  const char* name() const override { return "blend"; }
  void BeginRequest(int request) override;
  void BeginIteration(int request, int32_t token, int64_t rows) override;
  void Observe(int request, int layer, std::span<const int32_t> experts) override;
  void Predict(int request, int distance, std::span<float> probability) override;
  void EndRequest(int request) override;
  uint64_t memory_bytes() const override;

  // All that was learned, for a checkpoint; the same shape and options must take it back.
  std::span<const float> learned() const { return learned_; }
  // False when the size is another one, or a value is not finite.
  bool Restore(std::span<const float> learned);

 private:
  // An expert with the share of the iteration's tokens that used it.
  struct Used {
    int32_t expert = 0;
    float share = 0;
  };
  struct Request {
    RequestPosition position;
    int32_t token_row = -1;
    // Experts used by layer: of the running iteration where it got there, of the last one
    // elsewhere; and of the iteration before that.
    std::vector<std::vector<Used>> used;
    std::vector<std::vector<Used>> used_before;
    std::vector<float> sum;      // [layers, experts] the logit's parts that no distance changes
    std::vector<float> habit;    // [layers, kNumHabits, experts] decayed shares
    std::vector<float> feature;  // [layers, kNumHabits, experts] of habit
    // What is to be trained when layer t is observed: the distance, and the probabilities then.
    std::vector<int32_t> train_distance;     // [layers] 0: nothing
    std::vector<float> train_probability;    // [layers, experts]
    std::vector<uint8_t> train_token_known;  // [layers]
  };
  // A place in learned_ of num_experts weights; as many AdaGrad sums lie behind them.
  using Row = size_t;

  Row BiasRow(int layer, int distance) const;
  Row BetweenRow(int layer, int gap, int expert) const;
  Row AgainRow(int layer, int age, int expert) const;
  Row TokenRow(int layer, int32_t token_row) const;
  size_t HabitWeight(int layer, int distance, int habit) const;

  void AddScaled(Row row, float scale, float* sum) const;
  void Learn(Row row, float scale, const float* error);
  void State(const Request& request, int layer, int distance, float* probability) const;
  void Train(Request& request, int layer);
  void StartTarget(Request& request, int layer);

  PredictorShape shape_;
  BlendOptions options_;
  size_t experts_;
  int32_t token_rows_;
  size_t bias_begin_, between_begin_, again_begin_, token_begin_, habit_begin_;
  std::vector<float> learned_;
  std::vector<Request> requests_;
  std::vector<float> share_;     // [experts] of the layer that is being observed
  std::vector<float> error_;     // [experts]
  std::vector<uint32_t> turns_;  // [layers] picks the distance that is trained
};

}  // namespace moesaic
