// What requests of several dialects have in common. Like all readers these throw ApiError (400).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serving/api/api_request.h"
#include "serving/api/request_fields.h"

namespace moesaic {

// temperature, top_p, top_k and the others of SamplingFields, under OpenAI's and vLLM's names.
SamplingFields ParseSampling(RequestFields& fields);
// A string or an array of strings, under this name.
std::vector<std::string> ParseStop(RequestFields& fields, std::string_view name);
// A count of tokens, at least `min`; nullopt: absent.
std::optional<int32_t> ParseTokenCount(RequestFields& fields, std::string_view name, int32_t min);
// What is asked of the server and not of the model: how long that stays loaded, and vLLM's
// `priority`.
void ParseTreatment(RequestFields& fields, ApiRequest& request);
// Fields that nobody asked for, to be reported.
void KeepUnknown(const RequestFields& fields, ApiRequest& request);

}  // namespace moesaic
