// ToldPredictor says what a test tells it, for tests of what is made of predictions: for request 0
// what `told` has, for all others 0.5 of every expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "prefetch/predict/predictor.h"

namespace moesaic {

class ToldPredictor final : public Predictor {
 public:
  explicit ToldPredictor(int layers) : layers_(layers) {}
  const char* name() const override { return "told"; }
  void BeginRequest(int) override {}
  void BeginIteration(int, int32_t, int64_t) override { last_ = -1; }
  void Observe(int, int layer, std::span<const int32_t>) override { last_ = layer; }
  void Predict(int request, int distance, std::span<float> probability) override {
    const int layer = (last_ + distance) % layers_;
    for (size_t j = 0; j < probability.size(); ++j) {
      probability[j] = request == 0 ? told[static_cast<size_t>(layer)][j] : 0.5f;
    }
  }
  void EndRequest(int) override {}
  uint64_t memory_bytes() const override { return 0; }

  std::vector<std::vector<float>> told;  // [layers][experts]

 private:
  int layers_;
  int last_ = -1;
};

}  // namespace moesaic
