// LinkPrefetch: what an ExpertLoader needs to prefetch over its link: the prefetcher in the terms
// of the loader's cache (whose layers include those without experts), and how many copies the link
// can make before a layer is reached, from measured times.
//
// Owned by the loader. Thread contract: the consumer's thread calls the first group without a lock;
// all others are called under the loader's lock. No allocation after construction but by
// BeginRequest.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/expert_cache.h"
#include "cache/expert_grid.h"
#include "core/io/expert_source.h"
#include "prefetch/prefetcher.h"

namespace moesaic {

// A request's part of a step.
struct StepRequest {
  int32_t request = 0;  // below PredictorShape::max_requests
  int32_t token = Predictor::kUnknownToken;
  int64_t first_row = 0;
  int64_t num_rows = 0;
};

// [layers of the model] the layer's number among those that have experts, -1 without any.
std::vector<int32_t> SparseLayerNumbers(const ExpertSource& source, int num_layers);

class LinkPrefetch {
 public:
  // `prefetcher` must outlive it. evicts_by_worth: the cache's policy evicts by the prefetcher's
  // worth, so that what a copy brings in and what it throws out can be compared.
  LinkPrefetch(const ExpertSource& source, const ExpertGrid& grid, Prefetcher& prefetcher,
               bool evicts_by_worth);

  // --- the consumer's thread, without the lock
  void BeginRequest(int request);
  void EndRequest(int request);
  bool idle() const { return requests_ == 0; }
  void BeginStep(std::span<const StepRequest> requests);
  // experts: [rows, top_k] of the step.
  void OnRouting(int layer, std::span<const int32_t> experts);
  bool predicted() const { return predicted_; }  // and not published

  // --- under the lock
  void Publish();
  void StepBegan(int64_t now_ns) { layer_begin_ns_ = now_ns; }
  void LayerBegan(int64_t now_ns);
  void CopyTook(int64_t copy_ns);
  // An expert that could not be read: nobody fetches it ahead until it was read after all.
  void SetUnreadable(ExpertIndex expert, bool unreadable) {
    unreadable_[static_cast<size_t>(expert)] = unreadable ? 1 : 0;
  }
  // The expert that the idle link fetches next.
  std::optional<Prefetcher::Candidate> Next(const ExpertCache& cache, int64_t now_ns) const;
  // A prefetch that is not worth its link time any more.
  bool Stale(ExpertIndex expert) const;

 private:
  ExpertIndex ToPredicted(ExpertIndex expert) const;
  ExpertIndex FromPredicted(ExpertIndex expert) const;

  const int num_experts_;
  const bool evicts_by_worth_;
  Prefetcher& prefetcher_;
  const std::vector<int32_t> number_of_layer_;
  std::vector<int32_t> layer_of_number_;

  // The consumer's.
  std::vector<StepRequest> step_;
  int requests_ = 0;
  bool predicted_ = false;

  // Under the lock. Times are moving averages, 0 before the first.
  int64_t layer_begin_ns_ = 0;
  double layer_ns_ = 0;              // from one layer to the next, its waiting included
  double copy_ns_ = 0;               // of one expert
  std::vector<uint8_t> unreadable_;  // [experts]
};

}  // namespace moesaic
