// SharedExperts: experts in memory that another process fills (cache/shared_slots.h). What a layer
// needs and is there is handed out in place, pinned; the rest comes over a link of its own, into a
// few slots of its own. So nothing waits for the other process, and when that has ended what it
// left is used on.
//
// Nothing is read ahead: what is worth it is in the shared memory already, or will be, and would be
// read twice.
//
// Thread contract: as ExpertProvider's; IsResident, Look, Residents and resident from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cache/expert_grid.h"
#include "cache/shared_slots.h"
#include "prefetch/link/expert_loader.h"
#include "prefetch/link/expert_provider.h"

namespace moesaic {

class SharedExperts final : public ExpertProvider {
 public:
  // `own` is of the same grid. The memory behind `pool` outlives this.
  SharedExperts(const ExpertGrid& grid, const SharedSlotsView& pool,
                std::unique_ptr<ExpertLoader> own);
  ~SharedExperts() override;

  void StepBegan() override { own_->StepBegan(); }
  void StopPrefetching() override { own_->StopPrefetching(); }
  void BeginLayer(std::span<const ExpertId> needed, int64_t pairs) override;
  void Expect(std::span<const ExpertId> experts) override;
  bool IsResident(ExpertId expert) const override;
  bool NextReady(std::vector<PinnedExpert>& out) override;
  bool TryNextReady(std::vector<PinnedExpert>& out) override;
  void Release(const PinnedExpert& expert) override;
  ExpertStats EndLayer() override;
  // Nothing: the process that fills the memory does.
  int64_t Preload(std::span<const ExpertId> /*experts*/,
                  const std::function<bool(int64_t loaded)>& /*keep_going*/) override {
    return 0;
  }
  std::vector<ResidentExpert> Residents() const override;
  bool Look(std::span<ExpertPresence> places, std::vector<LinkUse>& links) const override;
  void Links(std::vector<ReaderLink>& out) const override { own_->Links(out); }
  int64_t slots() const override { return pool_.slots() + own_->slots(); }
  int64_t resident() const override { return pool_.resident() + own_->resident(); }

  const ExpertLoader& own() const { return *own_; }

 private:
  bool HandOut(std::vector<PinnedExpert>& out);
  // Those that are not in the shared memory now.
  std::span<const ExpertId> Others(std::span<const ExpertId> experts);

  const ExpertGrid grid_;
  SharedSlotsView pool_;
  const std::unique_ptr<ExpertLoader> own_;
  std::vector<ExpertId> others_;          // scratch
  std::vector<PinnedExpert> ready_;       // in place, to be handed out
  std::vector<uint8_t> pinned_in_place_;  // [experts]
  std::vector<ExpertIndex> in_place_;     // of the open layer
};

}  // namespace moesaic
