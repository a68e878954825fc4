// Reads the rotary position keys of config.json. Internal to core/config.
#pragma once

#include <cstdint>

#include "core/base/json_fields.h"
#include "core/config/model_config.h"

namespace moesaic {

// Both spellings (docs/models.md): `rope_theta` with `rope_scaling`, or one object
// `rope_parameters`. Throws Error(kCorrupt) or, for a kind that no supported family uses,
// Error(kUnsupported).
RopeConfig ParseRopeConfig(const JsonFields& config, double default_theta, int64_t max_position);

// `partial_rotary_factor`, of either place: which share of a head is rotated.
double ParseRotaryShare(const JsonFields& config, double fallback);

}  // namespace moesaic
