// DeviceExperts: the experts of a model on several devices, whose home is host memory. Each device
// has a link of its own (an ExpertLoader on a DeviceReader: a cache and an I/O thread) and the
// experts that the placement gives it. A layer's needs are split over the links; what is on no
// device is fetched or computed on the host in place, as PlanMisses says by measured rates; what
// the placement leaves to the host is always computed there.
//
// Nothing that happens to a device reaches a request: an expert whose copy failed, retries
// included, is computed on the host; so are all experts of a device that is lost, from then on.
//
// Thread contract: as ExpertProvider's. Home, placement, devices and step predictor outlive it. The
// blobs that it hands out lie in device memory or, computed on the host, in the home's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cache/expert_grid.h"
#include "cache/slot_table.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/device/device.h"
#include "core/device/pinned_host_pool.h"
#include "prefetch/link/expert_loader.h"
#include "prefetch/link/expert_placement.h"
#include "prefetch/link/expert_provider.h"
#include "prefetch/link/host_experts.h"
#include "prefetch/link/host_rate.h"
#include "prefetch/link/miss_planner.h"

namespace moesaic {

struct DeviceExpertsOptions {
  MissMode miss = MissMode::kAuto;
  std::vector<int64_t> slots;  // of each device
  // What is known before it is measured here: of one expert over each link (empty: nothing), and
  // on the host by the rows of an expert.
  std::vector<int64_t> copy_ns;
  std::vector<std::pair<int64_t, double>> host_ns;
  // Null: nothing is fetched ahead. The engine's thread makes it predict.
  const StepPredictor* step_predictor = nullptr;
  // The policy of each device's cache; empty, or null made: see ExpertFlow.
  std::function<std::unique_ptr<EvictionPolicy>()> make_policy = nullptr;
  // The first device has steps that look up its experts by themselves.
  bool looked_up = false;
  std::vector<ExpertIndex> kept = {};  // see ExpertFlowOptions; of all devices
};

// A GPU's link does not come to its rate with smaller ones (docs/cuda.md, "Figures").
constexpr uint32_t kFastPacketBytes = 2 << 20;

// The size of the packets in which an expert is copied to a device: at most kDefaultPacketBytes, or
// what a link that copies an expert in copy_ns (0: not known, as of a link that may be `fast`)
// copies in 50 us, up to kFastPacketBytes. For tests.
uint32_t DevicePacketBytes(uint64_t expert_bytes, int64_t copy_ns, bool fast = false);

class DeviceExperts : public ExpertProvider {
 public:
  // Throws Error(kResourceExhausted) when a device has not got the memory for its slots.
  DeviceExperts(const HostExperts& home, const ExpertGrid& grid, const ExpertPlacement& placement,
                std::span<Device* const> devices, const DeviceExpertsOptions& options);
  ~DeviceExperts() override;

  void StepBegan() override;
  void StopPrefetching() override;
  void BeginLayer(std::span<const ExpertId> needed, int64_t pairs) override;
  void Expect(std::span<const ExpertId> experts) override;
  bool IsResident(ExpertId expert) const override;
  bool NextReady(std::vector<PinnedExpert>& out) override { return Next(out, true); }
  bool TryNextReady(std::vector<PinnedExpert>& out) override { return Next(out, false); }
  void Release(const PinnedExpert& expert) override;
  ExpertStats EndLayer() override;
  int64_t Preload(std::span<const ExpertId> experts,
                  const std::function<bool(int64_t loaded)>& keep_going) override;
  std::vector<ResidentExpert> Residents() const override;
  // Of a lost device nothing is resident. What the host computes in place is.
  bool Look(std::span<ExpertPresence> places, std::vector<LinkUse>& links) const override;
  int64_t slots() const override;
  int64_t resident() const override;
  std::span<const DeviceStatus> devices() override;

  // Of the first device; null unless asked for, and where its kernels do not reach host memory.
  SlotTable* slot_table() { return table_.get(); }
  // What that takes of the host, pinned.
  static uint64_t TableBytes(const ExpertGrid& grid);

 private:
  // Where the open layer gets an expert from.
  enum class Place : uint8_t { kNone, kLink, kHost };

  struct Link {
    Device* device = nullptr;
    DeviceBuffer memory;                   // before the loader, which copies into it
    std::unique_ptr<ExpertLoader> loader;  // null: the device is lost, or has no slots
    std::vector<ExpertId> needed;          // by the open layer, and not handed out yet
  };

  // Of one that is not left to the host.
  Link& LinkOf(ExpertIndex expert) {
    return links_[static_cast<size_t>(placement_.device(expert))];
  }
  void MakeTable(Device& device, const std::byte* slots);
  void PlanMissed();
  void ToHost(ExpertIndex expert);
  bool Next(std::vector<PinnedExpert>& out, bool may_wait);
  bool TakeReady(Link& link, std::vector<PinnedExpert>& out);
  void HandOutHost(size_t experts, std::vector<PinnedExpert>& out);
  void WaitForProgress() EXCLUDES(mutex_);
  void CloseLayer(Link& link);
  void Lose(Link& link);

  const HostExperts& home_;
  const ExpertGrid grid_;
  const ExpertPlacement& placement_;
  const MissMode miss_;
  const SteadyClock clock_;
  std::unique_ptr<PinnedHostPool> table_pool_;
  HostBuffer table_memory_;
  std::unique_ptr<SlotTable> table_;  // goes after the loader that keeps it
  std::vector<Link> links_;           // [devices]
  std::vector<DeviceStatus> status_;  // [devices]
  HostRate host_rate_;

  // The open layer.
  bool layer_open_ = false;
  std::vector<Place> place_;          // [experts] kNone: not needed, or released
  std::vector<ExpertIndex> pinned_;   // handed out; released ones stay until EndLayer
  std::vector<ExpertIndex> on_host_;  // to be handed out
  std::vector<MissedExpert> missed_;
  std::vector<ExpertId> failed_;
  std::vector<ExpertId> expected_;  // of one link
  ExpertStats stats_;
  int64_t rows_per_expert_ = 1;
  int64_t host_batch_ = 0;       // experts handed out for the host together
  int64_t host_batch_left_ = 0;  // of these, not released
  int64_t host_began_ns_ = 0;
  int64_t host_ns_ = 0;
  int64_t blocked_ns_ = 0;

  Mutex mutex_;
  CondVar progress_;
  bool progressed_ GUARDED_BY(mutex_) = false;  // some link has something new to take
};

}  // namespace moesaic
