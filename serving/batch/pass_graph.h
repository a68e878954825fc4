// PassGraph: the tasks of a forward pass as PassRunner launches them, and as the planner plays them
// on a virtual clock (serving/plan/pass_simulation).
//
// Plain function.
#pragma once

#include <array>

#include "core/perf/execution_plan.h"
#include "core/perf/layer_graph.h"

namespace moesaic {

// What runs one task after another. The host's is the thread that calls the runner.
enum PassLane { kHostLane, kDeviceLane, kLinkInLane, kLinkOutLane, kNumPassLanes };
// [resources] with a device: attention is the host's.
constexpr std::array<int, kNumResources> kDeviceLanes = {kDeviceLane, kLinkInLane, kLinkOutLane,
                                                         kHostLane};
// Without one: the host computes everything.
constexpr std::array<int, kNumResources> kOneLane = {kHostLane, kHostLane, kHostLane, kHostLane};

// The tasks of `layers` layers with so many groups of sequences; weights have none, and a layer's
// experts are one task (module batching) or part of kPostAttention. `device`: dense modules and
// experts are on a device, and hidden states are copied. Durations are without meaning.
TaskGraph PassGraph(ScheduleKind schedule, bool device, int groups, int layers);

}  // namespace moesaic
