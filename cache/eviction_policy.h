// EvictionPolicy: decides which resident expert leaves when a slot is needed.
//
// Owned by an ExpertCache, which calls it under its owner's lock. A policy that also learns from
// elsewhere (request counts, predictions) is told so by whoever made it, under the same lock.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cache/expert_grid.h"
#include "core/base/function_ref.h"

namespace moesaic {

// Why an expert was brought in.
enum class LoadReason : uint8_t {
  kOnDemand,  // a layer waits for it
  kPrefetch,  // a predictor wants it
  kPreload,   // warm start
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  virtual const char* name() const = 0;

  // `now` is in the unit of the cache's owner and never goes back.
  virtual void OnInsert(ExpertIndex expert, LoadReason reason, int64_t now) = 0;
  virtual void OnAccess(ExpertIndex expert, int64_t now) = 0;  // a layer uses it
  virtual void OnRemove(ExpertIndex expert, int64_t now) = 0;

  // What a resident is worth at `now`; it may change without any call to this object's On methods.
  virtual double KeepPriority(ExpertIndex expert, int64_t now) const = 0;

  // Whether that is a probability of use soon, as what a prefetch brings in is measured by.
  virtual bool keeps_by_worth() const { return false; }

  // The evictable resident with the lowest KeepPriority, ties to the lower index; kNoExpert when
  // nothing is evictable. `slots` lists each slot's expert (kNoExpert: empty). Override it where
  // the order is known without looking at all slots. Does not allocate.
  virtual ExpertIndex Victim(std::span<const ExpertIndex> slots,
                             FunctionRef<bool(ExpertIndex)> evictable, int64_t now) const;
};

// Least recently used: inserted or accessed. An inserted expert is as recent as an accessed one.
std::unique_ptr<EvictionPolicy> MakeLruPolicy(int64_t num_experts_total);

}  // namespace moesaic
