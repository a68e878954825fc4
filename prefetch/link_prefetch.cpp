#include "prefetch/link_prefetch.h"

#include <algorithm>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Weight of the newest time: a change from prefill to decode is followed within a step.
constexpr double kNewest = 0.1;

// What is left of a layer that should be over, in layers.
constexpr double kLeastLayerShare = 0.1;

void Average(double sample, double& mean) {
  mean = mean == 0 ? sample : mean + kNewest * (sample - mean);
}

}  // namespace

std::vector<int32_t> SparseLayerNumbers(const ExpertSource& source, int num_layers) {
  std::vector<int32_t> numbers;
  int32_t next = 0;
  for (int layer = 0; layer < num_layers; ++layer) {
    numbers.push_back(source.HasLayer(layer) ? next++ : -1);
  }
  return numbers;
}

LinkPrefetch::LinkPrefetch(const ExpertSource& source, const ExpertGrid& grid,
                           Prefetcher& prefetcher, bool evicts_by_worth)
    : num_experts_(grid.num_experts()),
      evicts_by_worth_(evicts_by_worth),
      prefetcher_(prefetcher),
      number_of_layer_(SparseLayerNumbers(source, grid.num_layers())),
      unreadable_(static_cast<size_t>(grid.total()), 0) {
  for (int layer = 0; layer < grid.num_layers(); ++layer) {
    if (source.HasLayer(layer)) layer_of_number_.push_back(layer);
  }
  CHECK_EQ(layer_of_number_.size(), static_cast<size_t>(prefetcher.shape().num_layers));
  CHECK_EQ(num_experts_, prefetcher.shape().num_experts);
  step_.reserve(static_cast<size_t>(prefetcher.shape().max_requests));
}

void LinkPrefetch::BeginRequest(int request) {
  prefetcher_.BeginRequest(request);
  ++requests_;
}

void LinkPrefetch::EndRequest(int request) {
  prefetcher_.EndRequest(request);
  --requests_;
}

void LinkPrefetch::BeginStep(std::span<const StepRequest> requests) {
  step_.assign(requests.begin(), requests.end());
  for (const StepRequest& request : step_) {
    prefetcher_.BeginIteration(request.request, request.token, request.num_rows);
  }
  prefetcher_.Predict(-1);
  predicted_ = true;
}

void LinkPrefetch::OnRouting(int layer, std::span<const int32_t> experts) {
  const auto top_k = static_cast<size_t>(prefetcher_.shape().top_k);
  const int number = number_of_layer_[static_cast<size_t>(layer)];
  CHECK_GE(number, 0);
  for (const StepRequest& request : step_) {
    prefetcher_.OnRouting(request.request, number,
                          experts.subspan(static_cast<size_t>(request.first_row) * top_k,
                                          static_cast<size_t>(request.num_rows) * top_k));
  }
  prefetcher_.Predict(number);
  predicted_ = true;
}

void LinkPrefetch::Publish() {
  prefetcher_.Publish();
  predicted_ = false;
}

void LinkPrefetch::LayerBegan(int64_t now_ns) {
  if (layer_begin_ns_ > 0) Average(static_cast<double>(now_ns - layer_begin_ns_), layer_ns_);
  layer_begin_ns_ = now_ns;
}

void LinkPrefetch::CopyTook(int64_t copy_ns) { Average(static_cast<double>(copy_ns), copy_ns_); }

std::optional<Prefetcher::Candidate> LinkPrefetch::Next(const ExpertCache& cache,
                                                        int64_t now_ns) const {
  double victim_worth = 0;
  if (cache.free_slots() == 0) {
    const std::optional<double> worth = cache.VictimPriority(now_ns);
    if (!worth) return std::nullopt;
    if (evicts_by_worth_) victim_worth = *worth;
  }
  // A layer that lasts longer than the others ends at some time all the same.
  const double to_next_ns = std::max(kLeastLayerShare * layer_ns_,
                                     layer_ns_ - static_cast<double>(now_ns - layer_begin_ns_));
  const auto copies_before = [&](int distance) {
    if (copy_ns_ <= 0 || layer_ns_ <= 0) return 1.0;
    return (to_next_ns + (distance - 1) * layer_ns_) / copy_ns_;
  };
  const auto may_copy = [&](ExpertIndex predicted) {
    const ExpertIndex expert = FromPredicted(predicted);
    return cache.state(expert) == ExpertCache::State::kAbsent &&
           unreadable_[static_cast<size_t>(expert)] == 0;
  };
  auto candidate = prefetcher_.NextCandidate(may_copy, copies_before, victim_worth);
  if (candidate) candidate->expert = FromPredicted(candidate->expert);
  return candidate;
}

bool LinkPrefetch::Stale(ExpertIndex expert) const {
  return prefetcher_.worth().Worth(ToPredicted(expert)) < prefetcher_.options().min_gain;
}

ExpertIndex LinkPrefetch::ToPredicted(ExpertIndex expert) const {
  return number_of_layer_[static_cast<size_t>(expert / num_experts_)] * num_experts_ +
         expert % num_experts_;
}

ExpertIndex LinkPrefetch::FromPredicted(ExpertIndex expert) const {
  return layer_of_number_[static_cast<size_t>(expert / num_experts_)] * num_experts_ +
         expert % num_experts_;
}

}  // namespace moesaic
