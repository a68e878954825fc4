// Groups of a pass's slices: the micro-batches of a schedule. Sequences are spread, the longest
// first, to where there is least (MoE-Lightning, Algorithm 2, without its padding: rows of
// different lengths share a group); prompts and decoding ones apart, so that groups are balanced in
// the rows of prompts and in what decode attention reads (MoE-Lens, VSLPipe).
//
// Plain function.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/engine/scheduler.h"
#include "serving/model/model.h"

namespace moesaic {

// Puts the slices in the order of their groups, within a group as they were, and returns each
// group's, none of them empty: at most `groups` of them.
std::vector<SliceRange> GroupSlices(int64_t groups, std::vector<ScheduledSlice>& slices);

}  // namespace moesaic
