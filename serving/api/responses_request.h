// Requests of OpenAI's Responses API, without state: a conversation comes whole with each. Pure;
// reading them throws ApiError (400).
#pragma once

#include <atomic>
#include <string_view>

#include "serving/api/api_request.h"

namespace moesaic {

ChatRequest ParseResponsesRequest(std::string_view body, const std::atomic<bool>* gone = nullptr);

}  // namespace moesaic
