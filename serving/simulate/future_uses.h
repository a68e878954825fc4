// FutureUses and Belady's policy: what a trace will use next, for the hit rate that no policy
// exceeds.
//
// Thread contract: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/eviction_policy.h"
#include "tracer/routing_trace.h"

namespace moesaic {

class FutureUses {
 public:
  // The sequences are served in this order, token by token, layer by layer.
  FutureUses(const RoutingTrace& trace, std::span<const int> order);

  // A layer begins.
  void Pass() { ++passed_; }
  // When the expert is used next after the layer that began last, in layers since the start.
  int64_t NextUse(ExpertIndex expert) const;

 private:
  std::vector<std::vector<int64_t>> uses_;  // [experts] ascending
  mutable std::vector<size_t> next_;        // [experts] into uses_
  int64_t passed_ = 0;
};

// Evicts what is used farthest ahead (Belady 1966). `future` must outlive it.
std::unique_ptr<EvictionPolicy> MakeBeladyPolicy(const FutureUses& future);

}  // namespace moesaic
