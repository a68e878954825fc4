// What a live view shows (serving/engine/live_view.h), as JSON for pages and tests; docs/http.md
// has the fields. Planes of bytes are base64.
//
// Functions of their arguments.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "serving/api/json_text.h"
#include "serving/api/served_model.h"
#include "serving/engine/live_view.h"
#include "serving/engine/request_experts.h"

namespace moesaic {

// What does not change while the model is served; its `type` is "model". CHECKs that the engine has
// a live view.
Json LiveModelJson(const ServedModel& model);
// Its `type` is "sample".
Json LiveSampleJson(const LiveSample& sample);

// Counts of tokens: a row of experts for each layer.
Json MatrixJson(const ExpertActivationMatrix& matrix);
// Counts of tokens as rows of layers; `nearest` is null where there is none.
Json RequestExpertsJson(const RequestExperts& experts);

// RFC 4648, section 4, with padding.
std::string Base64(std::span<const uint8_t> bytes);

}  // namespace moesaic
