// DevicePlace: the experts of one device as a provider: as they arrive in its memory while it
// works, and where they live in host memory once it is lost. With a device that computes, experts
// are handed out as those of the place's one DeviceOperator.
//
// Thread contract: as ExpertProvider's; Lose is called between passes. Device and home outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/expert_grid.h"
#include "prefetch/link/expert_provider.h"
#include "prefetch/link/host_experts.h"
#include "serving/batch/streaming_experts.h"

namespace moesaic {

class DevicePlace : public ExpertProvider {
 public:
  DevicePlace(StreamingExperts& device, const HostExperts& home, const ExpertGrid& grid,
              bool computes)
      : device_(device), home_(home), grid_(grid), computes_(computes) {}

  void Lose();
  bool lost() const { return lost_; }
  uint64_t on_host() const { return on_host_; }  // experts handed out there, since the start

  void StepBegan() override { device_.StepBegan(); }
  void StopPrefetching() override { device_.StopPrefetching(); }
  void BeginLayer(std::span<const ExpertId> needed, int64_t pairs) override;
  bool NextReady(std::vector<PinnedExpert>& out) override;
  bool TryNextReady(std::vector<PinnedExpert>& out) override;
  void Release(const PinnedExpert& expert) override;
  ExpertStats EndLayer() override;
  int64_t Preload(std::span<const ExpertId> experts,
                  const std::function<bool(int64_t loaded)>& keep_going) override {
    return device_.Preload(experts, keep_going);
  }
  std::vector<ResidentExpert> Residents() const override { return device_.Residents(); }
  int64_t slots() const override { return device_.slots(); }
  int64_t resident() const override { return device_.resident(); }

 private:
  bool OfHost(std::vector<PinnedExpert>& out);
  void Name(std::span<PinnedExpert> experts) const;

  StreamingExperts& device_;
  const HostExperts& home_;
  const ExpertGrid grid_;
  const bool computes_;
  bool lost_ = false;
  std::vector<ExpertId> left_;  // of the open layer, when lost
  ExpertStats stats_;           // likewise
  uint64_t on_host_ = 0;
};

}  // namespace moesaic
