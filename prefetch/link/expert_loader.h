// ExpertLoader: the link of latency mode: a LinkMover with an ExpertFlow. Beside what every link
// gives it can be asked what a layer lacks before anything is read, be told what later layers want,
// and start warm.
//
// Thread contract: as LinkMover's. The consumer's thread is the one that predicts (StepPredictor):
// several loaders share a step predictor and no lock.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "prefetch/link/expert_flow.h"
#include "prefetch/link/link_mover.h"
#include "prefetch/link/resizable_slots.h"

namespace moesaic {

struct ExpertLoaderOptions : LinkOptions, ExpertFlowOptions {
  // Memory for slots; at least one slot. With slot_memory, its size counts.
  uint64_t budget_bytes = 0;
  // What that may become while it runs (SetSlots); not with slot_memory. 0: it stays.
  uint64_t most_budget_bytes = 0;
};

class ExpertLoader : public LinkMover, public ResizableSlots {
 public:
  // `source` must outlive the loader. num_layers counts all layers of the model. A null policy: see
  // ExpertFlow; a null reader: see LinkMover. Throws Error(kResourceExhausted) when budget_bytes
  // holds no slot, naming the least budget.
  ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
               std::unique_ptr<EvictionPolicy> policy, const ExpertLoaderOptions& options,
               std::unique_ptr<AsyncReader> reader = nullptr);

  using LinkMover::BeginLayer;
  void BeginLayer(std::span<const ExpertId> needed) { BeginLayer(needed, 0); }
  // In two parts, for who computes some on the host: appends those that are not resident; then
  // leaves out the entries of this link that are `on_host`. What has arrived in between is not left
  // out: on_host becomes false.
  void BeginLayer(std::span<const ExpertId> needed, std::vector<MissedExpert>& missed)
      EXCLUDES(mutex_);
  void StartLoads(std::span<MissedExpert> plan) EXCLUDES(mutex_);
  void Expect(std::span<const ExpertId> experts) override EXCLUDES(mutex_);
  bool IsResident(ExpertId expert) const override EXCLUDES(mutex_);

  bool Look(std::span<ExpertPresence> places, std::vector<LinkUse>& links) const override
      EXCLUDES(mutex_);

  // Throws Error(kIo / kCorrupt) when one cannot be read.
  int64_t Preload(std::span<const ExpertId> experts,
                  const std::function<bool(int64_t loaded)>& keep_going = nullptr) override
      EXCLUDES(mutex_);
  // Forgets residents (for cold benches and tests). No layer may be open.
  void Clear() EXCLUDES(mutex_);

  ResizableSlots* resizable_slots() override { return resizable_ ? this : nullptr; }
  SlotsInUse LookAtSlots(std::vector<uint32_t>& uses) const override EXCLUDES(mutex_);
  void SetSlots(int64_t slots) override EXCLUDES(mutex_);

  bool prefetching() const EXCLUDES(mutex_);
  ExpertCacheCounters cache_counters() const EXCLUDES(mutex_);

  static uint64_t StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                               const ExpertLoaderOptions& options);

 private:
  ExpertFlow& flow() const REQUIRES(mutex_) { return static_cast<ExpertFlow&>(LinkMover::flow()); }
  uint64_t Inserted() const REQUIRES(mutex_) { return flow().cache().counters().inserted; }
  void StopLoading() REQUIRES(mutex_);
  int64_t LeastSlots() const REQUIRES(mutex_);

  const uint64_t slot_bytes_;
  const bool resizable_;
};

}  // namespace moesaic
