// MeasureLink: how fast experts come from disk, and what reading and computing leave of each other.
// Internal to serving/plan.
#pragma once

#include "core/perf/module_costs.h"
#include "serving/plan/pass_meter.h"

namespace moesaic {

// Fills in the link, contended_link_share and contended_compute_share of costs that have all
// modules. In turn the link by itself, computing by itself, and both at once, for `seconds`, or one
// round where that takes longer: a disk's rate wanders over seconds, and shares are of what was
// measured beside them.
void MeasureLink(PassMeter& passes, double seconds, ModuleCosts& costs);

}  // namespace moesaic
