#include "serving/batch/device_place.h"

#include <utility>

namespace moesaic {

void DevicePlace::Lose() {
  lost_ = true;
  device_.GiveUp();
}

void DevicePlace::BeginLayer(std::span<const ExpertId> needed, int64_t pairs) {
  if (!lost_) {
    device_.BeginLayer(needed, pairs);
    return;
  }
  left_.assign(needed.begin(), needed.end());
  stats_.misses += needed.size();
  stats_.on_host += needed.size();
  on_host_ += needed.size();
}

bool DevicePlace::NextReady(std::vector<PinnedExpert>& out) {
  if (!lost_) return device_.NextReady(out);
  if (left_.empty()) return false;
  for (const ExpertId id : left_) out.push_back({id, home_.blob(grid_.Index(id))});
  left_.clear();
  return true;
}

void DevicePlace::Release(const PinnedExpert& expert) {
  if (!lost_) device_.Release(expert);
}

ExpertStats DevicePlace::EndLayer() {
  if (!lost_) return device_.EndLayer();
  left_.clear();
  return std::exchange(stats_, {});
}

}  // namespace moesaic
