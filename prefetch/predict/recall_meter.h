// RecallMeter: how good the predictions are that prefetching runs on, measured while it serves: of
// the n experts that a layer used, how many were among the n most probable so many layers before.
//
// Cheap, because each layer is measured at one distance per step, the distances taking turns. Only
// steps of one row per request count: a long prompt uses nearly all experts.
//
// Thread contract: one thread (the engine's). No allocation after construction.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "prefetch/predict/step_predictor.h"

namespace moesaic {

struct RecallStats {
  static constexpr int kDistances = 4;
  std::array<uint64_t, kDistances> used{};   // experts that layers used, by distance - 1
  std::array<uint64_t, kDistances> found{};  // of these, those foreseen

  RecallStats& operator+=(const RecallStats& other);
  RecallStats& operator-=(const RecallStats& other);
};

class RecallMeter {
 public:
  explicit RecallMeter(const PredictorShape& shape);

  // A step begins. counts: it has one row per request.
  void BeginStep(bool counts);
  // Behind what the step predictor predicted last: `number` is that of the layer whose routing was
  // observed last, -1 at the begin of a step.
  void Predicted(int number, const StepPredictor& step_predictor);
  // The layer's routing. experts: [rows, top_k]
  void Used(int number, std::span<const int32_t> experts);

  // What was counted since the last call.
  RecallStats Take();

 private:
  int DistanceOf(int number) const { return 1 + (number + turn_) % RecallStats::kDistances; }

  PredictorShape shape_;
  int turn_ = 0;
  bool counts_ = false;
  std::vector<float> predicted_;  // [layers, experts] at DistanceOf(layer)
  std::vector<uint8_t> known_;    // [layers]
  std::vector<uint8_t> used_;     // [experts] all 0 between calls
  RecallStats stats_;
};

}  // namespace moesaic
