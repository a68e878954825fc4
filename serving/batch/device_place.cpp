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
  if (lost_) return OfHost(out);
  const size_t first = out.size();
  const bool more = device_.NextReady(out);
  Name(std::span(out).subspan(first));
  return more;
}

bool DevicePlace::TryNextReady(std::vector<PinnedExpert>& out) {
  if (lost_) return OfHost(out);
  const size_t first = out.size();
  const bool more = device_.TryNextReady(out);
  Name(std::span(out).subspan(first));
  return more;
}

void DevicePlace::Name(std::span<PinnedExpert> experts) const {
  if (!computes_) return;
  for (PinnedExpert& expert : experts) {
    expert.device = 0;
    expert.home = home_.blob(grid_.Index(expert.id));
  }
}

bool DevicePlace::OfHost(std::vector<PinnedExpert>& out) {
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
