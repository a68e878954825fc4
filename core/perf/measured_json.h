// Measured values as the files of core/perf hold them. Internal to core/perf.
//
// Functions of their arguments.
#pragma once

#include <string_view>

#include "core/base/json.h"
#include "core/base/json_fields.h"
#include "core/perf/hardware_profile.h"

namespace moesaic {

Json MeasuredToJson(const Measured& measured);

// The object at `key`, whose value must be within [least, most]. Throws Error(kCorrupt).
Measured MeasuredFromJson(const JsonFields& parent, std::string_view key, double least,
                          double most);

}  // namespace moesaic
