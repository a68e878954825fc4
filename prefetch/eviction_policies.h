// Eviction policies that need more than the cache's own events: what the running requests used,
// what all requests used, or (for limits) what a trace will use.
//
// Thread contract: counts and policies are guarded by the lock of the cache that the policies
// serve.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/eviction_policy.h"
#include "cache/expert_grid.h"

namespace moesaic {

// How often each expert was used by the running request (its EAM) and by all.
class PolicyCounts {
 public:
  explicit PolicyCounts(const ExpertGrid& grid);

  void BeginRequest();
  // The distinct experts that one layer of one step uses.
  void Observe(std::span<const ExpertIndex> used);

  const ExpertGrid& grid() const { return grid_; }
  uint32_t in_request(ExpertIndex expert) const { return request_[static_cast<size_t>(expert)]; }
  uint32_t in_all(ExpertIndex expert) const { return all_[static_cast<size_t>(expert)]; }
  uint32_t request_steps() const { return request_steps_; }
  int layer() const { return layer_; }  // observed last
  int64_t layers_passed() const { return layers_passed_; }

 private:
  ExpertGrid grid_;
  std::vector<uint32_t> request_;  // [experts]
  std::vector<uint32_t> all_;      // [experts]
  uint32_t request_steps_ = 0;
  int layer_ = -1;
  int64_t layers_passed_ = 0;
};

// lru; lfu (uses since it was loaded); model-frequency (uses by all requests); request-eam
// (MoE-Infinity 5.2: what was prefetched stays until its layer has passed, then the request's
// count, early layers first). Throws Error(kInvalidArgument) that lists the known ones. `counts`
// must outlive the policy.
std::unique_ptr<EvictionPolicy> MakeCountingPolicy(std::string_view name,
                                                   const PolicyCounts& counts);

}  // namespace moesaic
