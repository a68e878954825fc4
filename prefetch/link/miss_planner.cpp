#include "prefetch/link/miss_planner.h"

#include <algorithm>
#include <array>

#include "core/base/check.h"
#include "core/base/error.h"

namespace moesaic {

void PlanMisses(MissMode mode, int64_t host_expert_ns, int num_links,
                std::span<MissedExpert> missed) {
  for (MissedExpert& miss : missed) miss.on_host = mode == MissMode::kHost;
  if (mode != MissMode::kAuto || missed.empty()) return;
  CHECK_GT(host_expert_ns, 0);
  CHECK_LE(num_links, kMaxLinks);

  // The host takes what is dearest to fetch; what is nearly there stays with its link. Of equal
  // ones the link takes what is worth most afterwards.
  std::sort(missed.begin(), missed.end(), [](const MissedExpert& a, const MissedExpert& b) {
    if (a.copy_ns != b.copy_ns) return a.copy_ns > b.copy_ns;
    if (a.worth != b.worth) return a.worth < b.worth;
    return a.expert < b.expert;
  });
  std::array<int64_t, kMaxLinks> link_ns{};
  for (const MissedExpert& miss : missed) link_ns[static_cast<size_t>(miss.link)] += miss.copy_ns;
  // Moves experts from the busiest link to the host while that does not put the end off.
  int64_t host_ns = 0;
  for (;;) {
    const int64_t end_ns =
        std::max(host_ns, *std::max_element(link_ns.begin(), link_ns.begin() + num_links));
    MissedExpert* best = nullptr;
    for (MissedExpert& miss : missed) {
      if (miss.on_host) continue;
      if (best == nullptr ||
          link_ns[static_cast<size_t>(miss.link)] > link_ns[static_cast<size_t>(best->link)]) {
        best = &miss;
      }
    }
    if (best == nullptr || host_ns + host_expert_ns > end_ns) return;
    best->on_host = true;
    host_ns += host_expert_ns;
    link_ns[static_cast<size_t>(best->link)] -= best->copy_ns;
  }
}

}  // namespace moesaic
