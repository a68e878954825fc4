// LinkPrefetch: what one link fetches ahead: the worth of experts as this link has taken it over
// from the StepPredictor, and how many copies the link can make before a layer is reached, from
// measured times.
//
// Decides by expected benefit (not by rank): a copy is made when what it brings in is worth more
// than what it throws out by at least the price of the link's time, weighed by how much of the copy
// will have arrived when its layer is reached. The price is `min_gain` where layers always wait for
// the link, and falls to a quarter of it with the share of the time in which none does
// (docs/experiments/latency.md, "Devices").
//
// Owned and guarded by an ExpertFlow. No allocation after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/expert_cache.h"
#include "core/base/function_ref.h"
#include "prefetch/evict/expert_worth.h"
#include "prefetch/predict/step_predictor.h"

namespace moesaic {

class LinkPrefetch {
 public:
  struct Candidate {
    ExpertIndex expert = kNoExpert;
    double worth = 0;  // less the price of the link's time: a victim must be worth less
  };

  // experts: those that come over this link; empty: all.
  LinkPrefetch(const StepPredictor& step_predictor, std::span<const ExpertIndex> experts);

  // Takes over what was predicted since the last time. On the thread that predicts.
  void TakeOver(const StepPredictor& step_predictor);
  const ExpertWorth& worth() const { return worth_; }

  void StepBegan(int64_t now_ns);
  void LayerBegan(int64_t now_ns);
  void LayerReady(int64_t now_ns);  // it waits for nothing any more
  // An expert that could not be read: nobody fetches it ahead until it was read after all.
  void SetUnreadable(ExpertIndex expert, bool unreadable) {
    unreadable_[static_cast<size_t>(expert)] = unreadable ? 1 : 0;
  }

  // The expert that the idle link fetches next. copy_ns: what a copy takes, 0 when not known.
  std::optional<Candidate> Next(const ExpertCache& cache, double copy_ns, int64_t now_ns) const;
  // The absent expert whose copy gains most against `victim_worth`, what its slot holds now is
  // worth. `copies_before(distance)`: how many copies the link can make until the layer at that
  // distance is reached.
  std::optional<Candidate> Best(FunctionRef<bool(ExpertIndex)> absent,
                                FunctionRef<double(int)> copies_before, double victim_worth) const;
  // A prefetch that is not worth its link time any more.
  bool Stale(ExpertIndex expert) const { return worth_.Worth(expert) < Price(); }

 private:
  double Price() const;

  const int look_ahead_;
  const double min_gain_;
  ExpertWorth worth_;
  uint64_t taken_over_ = 0;          // of StepPredictor::predictions()
  std::vector<uint8_t> elsewhere_;   // [experts] comes over another link
  std::vector<uint8_t> unreadable_;  // [experts]
  enum class Phase : uint8_t { kBeforeStep, kWaiting, kReady } phase_ = Phase::kBeforeStep;
  int64_t began_ns_ = 0;
  int64_t ready_ns_ = 0;
  // Moving averages: from when a layer has all its experts to the next one, and until it has them.
  double layer_ns_ = 0;
  double waited_ns_ = 0;
};

}  // namespace moesaic
