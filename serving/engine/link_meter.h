// LinkMeter: what each link of an engine has carried between two looks: one to each device, or one
// from each store; with neither there is one link, whose bytes are ExpertStats::bytes_read.
//
// Owned by an EngineLoop, used by its thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "serving/engine/engine_step.h"
#include "serving/engine/request.h"

namespace moesaic {

class LinkMeter {
 public:
  // Of each link since the last call, in an order that stays; since the start at the first one.
  // Valid until the next call.
  std::span<const uint64_t> Look(const EngineStep::Experts& experts);

 private:
  std::vector<uint64_t> before_;
  std::vector<uint64_t> since_;
};

// Adds what `since` has to `sum`.
void AddLinkBytes(std::span<const uint64_t> since, std::vector<uint64_t>& sum);
// `bytes`, in the order of Look, with the names of their links.
std::vector<LinkBytes> NamedLinkBytes(const EngineStep::Experts& experts,
                                      std::span<const uint64_t> bytes);

}  // namespace moesaic
