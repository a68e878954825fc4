// PlanMisses: for the experts of a layer that are not in fast memory, which are fetched over the
// link and which are computed on the host, where their weights are, so that the layer ends soonest.
//
// Link and host work at the same time; the host computes one expert after another (all its cores
// on each). A plain function of its arguments, so that the simulator decides as production does.
#pragma once

#include <cstdint>
#include <span>

#include "cache/expert_grid.h"
#include "core/base/named.h"

namespace moesaic {

constexpr int kMaxLinks = 64;

enum class MissMode : uint8_t { kFetch, kHost, kAuto };
inline constexpr Named<MissMode> kMissModes[] = {
    {"fetch", MissMode::kFetch}, {"host", MissMode::kHost}, {"auto", MissMode::kAuto}};

struct MissedExpert {
  ExpertIndex expert = kNoExpert;
  int32_t link = 0;      // over which it would come
  int64_t copy_ns = 0;   // what is left of its copy, with the link to itself
  double worth = 0;      // of having it resident afterwards (prefetch/evict/expert_worth.h)
  bool on_host = false;  // the plan
};

// Sets on_host and sorts. `host_expert_ns`: the time of one expert on the host while links copy.
// Among plans that end equally soon the one that copies least is taken: what a link does not have
// to fetch now it can prefetch.
void PlanMisses(MissMode mode, int64_t host_expert_ns, int num_links,
                std::span<MissedExpert> missed);

}  // namespace moesaic
