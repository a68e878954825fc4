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
// distance, 1 to kMaxDistance in turn, updates what it was made of: AdaGrad (Duchi et al. 2011)
// with one sum of squares for all weights of a row. Sums stop growing at some size, and rows of
// tokens take larger steps.
//
// The work is bound by memory, which decides the layout. Weights are 16-bit fixed point. All that
// follows from one expert's use in one layer, the rows `between` for the next kWindow layers and
// the two rows `again`, is one block, read from end to end when the expert is used.
//
// Memory: num_layers x num_experts^2 x (kWindow + 2) weights of two bytes, plus the token table,
// which takes at most `token_table_bytes` (tokens share rows by hash).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/predict/learned_section.h"
#include "prefetch/predict/predictor.h"

namespace moesaic {

struct BlendOptions {
  float learning_rate = 0.1f;
  uint64_t token_table_bytes = uint64_t{32} << 20;
};

class BlendPredictor final : public Predictor {
 public:
  static constexpr int kWindow = 8;       // layers that look ahead to a target
  static constexpr int kMaxDistance = 8;  // at which it is trained; further ones use the last
  static constexpr int kNumHabits = 4;

  BlendPredictor(const PredictorShape& shape, const CpuKernels& kernels,
                 const BlendOptions& options = {});

  const char* name() const override { return "blend"; }
  void BeginRequest(int request) override;
  void BeginIteration(int request, int32_t token, int64_t rows) override;
  void Observe(int request, int layer, std::span<const int32_t> experts) override;
  void Predict(int request, int distance, std::span<float> probability) override;
  void EndRequest(int request) override;
  uint64_t memory_bytes() const override;
  std::vector<StateSection*> Sections() override { return {&*section_}; }

  // Predict's log-odds, for one token. [stride()]
  void PredictLogit(int request, int distance, std::span<float> logit);
  // Experts, rounded up to whole kernel blocks.
  size_t stride() const { return stride_; }

 private:
  // An expert with the share of the iteration's tokens that used it.
  struct Used {
    int32_t expert = 0;
    float share = 0;
  };
  // [.., experts] below: padded to stride_ floats.
  struct Request {
    RequestPosition position;
    int32_t token_row = -1;
    // Experts used by layer: of the running iteration where it got there, of the last one
    // elsewhere; and of the iteration before that.
    std::vector<std::vector<Used>> used;
    std::vector<std::vector<Used>> used_before;
    std::vector<float> sum;       // [layers, experts] the logit's parts that no distance changes
    std::vector<float> next_sum;  // [layers, experts] what is known of the iteration after that
    std::vector<float> habit;     // [layers, kNumHabits, experts] decayed shares
    std::vector<float> feature;   // [layers, kNumHabits, experts] their logarithms
    // What is to be trained when layer t is observed: the distance, and the probabilities then.
    std::vector<int32_t> train_distance;     // [layers] 0: nothing; negative: not stated yet
    std::vector<float> train_probability;    // [layers, experts]
    std::vector<uint8_t> train_token_known;  // [layers]
  };
  // stride_ weights and their AdaGrad sum.
  struct Row {
    int16_t* weights = nullptr;
    float* squares = nullptr;
  };

  Row BiasRow(int layer, int distance);
  // The weights for `layer` of an expert used `step` + 1 layers (step below kWindow), one iteration
  // (kWindow) or two (kWindow + 1) before.
  Row PairRow(int layer, int step, int expert);
  Row TokenRow(int layer, int32_t token_row);
  // The weights that follow from a use of the expert in the layer. [kWindow + 2, experts]
  int16_t* Block(int layer, int expert);
  size_t HabitWeight(int layer, int distance, int habit) const;

  // to[j] += what rows [first, first + num_rows) of the used experts' blocks say. [num_rows,
  // experts]
  void AddBlocks(int layer, std::span<const Used> used, int first, int num_rows, float* to);
  void Logit(const Request& request, int layer, int distance, float* logit);
  void State(const Request& request, int layer, int distance, float* probability);
  void Train(Request& request, int layer);
  void StartTarget(Request& request, int layer);
  void NoteUse(Request& request, int layer, float rows);

  PredictorShape shape_;
  const CpuKernels& kernels_;
  BlendOptions options_;
  size_t experts_;
  size_t stride_;  // of rows of experts
  int window_;     // layers that look ahead to a target; fewer than kWindow in small models
  int32_t token_rows_;
  // weights_: bias [layers, kMaxDistance + 1], blocks [layers, experts], tokens [rows, layers].
  size_t num_weights_, blocks_begin_, tokens_begin_;
  AlignedBuffer weights_;
  // dense_: AdaGrad sums of the rows (bias, pairs [layers, kWindow + 2, experts], tokens), then the
  // weights of habits and their sums.
  size_t pair_squares_begin_, token_squares_begin_, habit_begin_;
  std::vector<float> dense_;
  std::vector<Request> requests_;
  std::vector<float> share_;     // [experts] of the layer that is being observed
  std::vector<float> error_;     // [experts]
  std::vector<float> stated_;    // [experts]
  std::vector<uint32_t> turns_;  // [layers] picks the distance that is trained
  // Arguments of the kernels.
  std::vector<int16_t*> rows_;
  std::vector<float> scales_;
  std::optional<LearnedSection> section_;
};

}  // namespace moesaic
