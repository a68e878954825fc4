// NextGatePredictor: probabilities from the margins of NextGate, alone or together with the blend.
//
//   logit P(expert j of layer t is chosen for a row, seen d layers before) =
//       bias[t, d, j] + weight[t, d, 0] * margin of j + weight[t, d, 1] * blend's logit of j
//
// (without the last term when alone), learned online by AdaGrad at all distances up to the gates'
// look-ahead, so that what it states is the frequency that happens. The blend goes on learning by
// itself: its weights serve all distances, of which gates reach only the near ones.
//
// Farther distances, and layers of the next iteration, whose hidden state nobody has, are the
// blend's, or alone those of `frequency`.
//
// The rows of a request that are looked at stand for all of them: an expert is used unless each row
// does without it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "prefetch/predict/blend_predictor.h"
#include "prefetch/predict/learned_section.h"
#include "prefetch/predict/next_gate.h"
#include "prefetch/predict/predictor.h"

namespace moesaic {

class NextGatePredictor final : public Predictor {
 public:
  // `gates` must outlive it, and be looked through for a layer before that is observed.
  NextGatePredictor(const PredictorShape& shape, const CpuKernels& kernels, NextGate& gates,
                    bool with_blend);

  const char* name() const override { return blend_ != nullptr ? "blend" : "next-gate"; }
  void BeginRequest(int request) override;
  void BeginIteration(int request, int32_t token, int64_t rows) override;
  void Observe(int request, int layer, std::span<const int32_t> experts) override;
  void Predict(int request, int distance, std::span<float> probability) override;
  void EndRequest(int request) override;
  std::vector<StateSection*> Sections() override;
  uint64_t memory_bytes() const override;

 private:
  static constexpr size_t kNumWeights = 2;
  struct Request {
    RequestPosition position;
    std::vector<float> blend_logit;  // [look-ahead + 1 layers, distances, stride]
  };
  // What is learned for a layer and distance.
  size_t Row(int layer, int distance) const;
  float* BlendLogit(Request& request, int layer, int distance);
  void State(Request& request, int layer, int distance, const float* margins, float* probability);
  void Train(int request, int layer, int distance, std::span<const int32_t> experts);

  PredictorShape shape_;
  const CpuKernels& kernels_;
  NextGate& gates_;
  size_t stride_;
  BlendPredictor* blend_ = nullptr;  // far_, when it is one
  std::unique_ptr<Predictor> far_;
  // [layers, distances, ...], each with its AdaGrad sums.
  std::vector<float> bias_;          // [.., stride]
  std::vector<float> bias_squares_;  // [..]
  std::vector<float> weight_;        // [.., kNumWeights]
  std::vector<float> weight_squares_;
  std::optional<LearnedSection> section_;
  std::vector<Request> requests_;
  std::vector<float> stated_;  // [stride]
  std::vector<float> error_;   // [stride]
  std::vector<float> none_;    // [stride] that no row uses it
};

}  // namespace moesaic
