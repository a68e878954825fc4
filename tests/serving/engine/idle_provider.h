// IdleProvider: an ExpertProvider that has nothing to hand out, for tests and benches of what else
// is asked of one.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "prefetch/link/expert_provider.h"

namespace moesaic {

class IdleProvider : public ExpertProvider {
 public:
  void StepBegan() override {}
  void StopPrefetching() override {}
  void BeginLayer(std::span<const ExpertId> /*needed*/, int64_t /*pairs*/) override {}
  bool NextReady(std::vector<PinnedExpert>& /*out*/) override { return false; }
  void Release(const PinnedExpert& /*expert*/) override {}
  ExpertStats EndLayer() override { return {}; }
  int64_t Preload(std::span<const ExpertId> /*experts*/,
                  const std::function<bool(int64_t)>& /*keep_going*/) override {
    return 0;
  }
  std::vector<ResidentExpert> Residents() const override { return {}; }
};

}  // namespace moesaic
