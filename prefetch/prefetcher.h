// Prefetcher: turns routing into predictions, predictions into the worth of every expert, and worth
// into the next copy for an idle link.
//
// Decides by expected benefit (not by rank): a copy is made when what it brings in is worth more
// than what it throws out by at least `min_gain`, the price of the link's time, weighed by how much
// of the copy will have arrived when its layer is reached.
//
// Thread contract: the engine's thread calls Begin*, OnRouting, Predict and End*, without a lock.
// Publish, NextCandidate and the worth are guarded by the lock that guards the cache; Publish is
// the engine's thread's too. No allocation after construction but in the predictor's BeginRequest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/expert_cache.h"
#include "core/base/function_ref.h"
#include "prefetch/expert_worth.h"
#include "prefetch/predictor.h"

namespace moesaic {

// The defaults were swept on gpt-oss-20b's trace (docs/experiments/latency.md).
struct PrefetchOptions {
  int look_ahead = 8;               // layers; candidates are taken from these
  double min_gain = 0.2;            // in units of worth
  double keep_per_iteration = 0.1;  // ExpertWorth's discount
};

class Prefetcher {
 public:
  struct Candidate {
    ExpertIndex expert = kNoExpert;
    double worth = 0;  // less the price of the link's time: a victim must be worth less
  };

  // `predictor` must outlive it.
  Prefetcher(const PredictorShape& shape, Predictor& predictor, const PrefetchOptions& options);

  void BeginRequest(int request);
  void EndRequest(int request);
  // Requests that are part of the running step; each with the token that it processes.
  void BeginIteration(int request, int32_t token, int64_t rows);
  // The choice of one request in the layer. Call it for each request of the step, then Predict and
  // Publish.
  void OnRouting(int request, int layer, std::span<const int32_t> experts);
  // The layer's routing is complete (-1: the step has begun): predicts the layers ahead, which is
  // what costs time.
  void Predict(int layer);
  // What was predicted last becomes worth.
  void Publish();
  // Both, for who needs no lock.
  void Update(int layer) {
    Predict(layer);
    Publish();
  }

  // The expert whose copy gains most against `victim_worth`, what its slot holds now is worth.
  // `may_copy` tells experts that are absent and belong to the link that asks.
  // `copies_before(distance)`: how many copies the link can make until the layer at that distance
  // is reached.
  std::optional<Candidate> NextCandidate(FunctionRef<bool(ExpertIndex)> may_copy,
                                         FunctionRef<double(int)> copies_before,
                                         double victim_worth) const;

  const ExpertWorth& worth() const { return worth_; }
  const PredictorShape& shape() const { return shape_; }
  const PrefetchOptions& options() const { return options_; }

 private:
  PredictorShape shape_;
  Predictor& predictor_;
  PrefetchOptions options_;
  int near_;  // layers ahead that are predicted
  ExpertWorth worth_;
  // Of the engine's thread.
  bool step_began_ = false;   // and no layer's routing is known
  std::vector<int> running_;  // requests of the step
  std::vector<float> one_;    // [experts]
  int predicted_at_ = -1;     // the layer that predicted_ was made behind
  std::vector<float>
      predicted_;  // [look-ahead + 1, experts] by distance, the last a full turn away
};

}  // namespace moesaic
