// Groups of a pass's slices: the micro-batches of a schedule. Sequences are spread so that the
// groups' attention, which reads the whole context of every row, takes equally long
// (MoE-Lightning, Algorithm 2, without its padding: rows of different lengths share a group).
//
// Plain function.
#pragma once

#include <cstdint>
#include <vector>

#include "serving/model/model.h"
#include "serving/online/scheduler.h"

namespace moesaic {

// Puts the slices in the order of their groups, within a group as they were, and returns each
// group's, none of them empty: at most `groups` of them.
std::vector<SliceRange> GroupSlices(int64_t groups, std::vector<ScheduledSlice>& slices);

}  // namespace moesaic
