// Eviction policies that need more than the cache's own events: what the running requests used,
// what all requests used, or (for limits) what a trace will use.
//
// Thread contract: counts are written by one thread (the engine's) and read by any; policies are
// guarded by the lock of the cache that they serve.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/eviction_policy.h"
#include "cache/expert_grid.h"
#include "tracer/state_section.h"

namespace moesaic {

// How often each expert was used by the requests that run (their EAMs, summed) and by all so far.
// Several caches may look at them. Nothing is allocated but by BeginRequest.
class PolicyCounts {
 public:
  explicit PolicyCounts(const ExpertGrid& grid);

  // Requests have small numbers of their own, as those of a predictor.
  void BeginRequest(int request);
  void BeginIteration(int request, int64_t tokens);
  // A layer's routing is known: experts [tokens, top_k] of each request of the step, by their
  // numbers in the layer.
  void BeginLayer(int layer);
  void Observe(int request, std::span<const int32_t> experts);
  // What it used is not that of a running request any more.
  void EndRequest(int request);

  const ExpertGrid& grid() const { return grid_; }
  uint32_t in_running(ExpertIndex expert) const { return Load(running_, expert); }
  uint64_t in_all(ExpertIndex expert) const { return Load(all_, expert); }
  uint64_t running_tokens() const { return running_tokens_.load(std::memory_order_relaxed); }
  // Since the beginning, layers without experts counted; the last one has the number
  // (layers_passed - 1) modulo the number of layers.
  int64_t layers_passed() const { return layers_passed_.load(std::memory_order_relaxed); }

  // What all requests used, as a part of a state file.
  StateSection& section() { return section_; }

 private:
  template <typename T>
  using Counts = std::vector<std::atomic<T>>;
  struct Request {
    std::vector<uint32_t> used;  // [experts]
    uint64_t tokens = 0;
  };
  class Section final : public StateSection {
   public:
    explicit Section(PolicyCounts& counts) : counts_(counts) {}
    std::string_view name() const override { return "expert-uses"; }
    uint32_t version() const override { return 1; }
    std::vector<std::byte> Save() const override;
    void Load(uint32_t version, std::span<const std::byte> bytes) override;

   private:
    PolicyCounts& counts_;
  };

  template <typename T>
  static T Load(const Counts<T>& counts, ExpertIndex expert) {
    return counts[static_cast<size_t>(expert)].load(std::memory_order_relaxed);
  }
  // One thread writes: no read-modify-write is needed.
  template <typename T>
  static void Add(std::atomic<T>& count, T amount) {
    count.store(count.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }

  const ExpertGrid grid_;
  std::vector<Request> requests_;
  Counts<uint32_t> running_;  // [experts]
  Counts<uint64_t> all_;      // [experts]
  std::atomic<uint64_t> running_tokens_{0};
  std::atomic<int64_t> layers_passed_{0};
  int layer_ = -1;  // observed last
  Section section_{*this};
};

// lru; lfu (uses since it was loaded); model-frequency (uses by all requests); request-eam
// (MoE-Infinity 5.2: what was prefetched stays until its layer has passed, then the request's
// count, early layers first). Throws Error(kInvalidArgument) that lists the known ones. `counts`
// must outlive the policy.
std::unique_ptr<EvictionPolicy> MakeCountingPolicy(std::string_view name,
                                                   const PolicyCounts& counts);
std::vector<std::string> CountingPolicyNames();
// All that a simulation knows: next-use before those, and belady, which knows the future.
std::vector<std::string> SimulatedPolicyNames();

}  // namespace moesaic
