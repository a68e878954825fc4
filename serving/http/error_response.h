// An ApiError as an HTTP response.
#pragma once

#include <string_view>

#include "serving/api/api_error.h"
#include "serving/http/http_message.h"

namespace moesaic {

// What is asked of a server whose only model is loaded once and stays (400).
ApiError OneModel();

ApiError RouteNotFound(std::string_view path);  // 404
// In the shape of the API that `path` belongs to.
HttpResponse ErrorResponse(const ApiError& error, std::string_view path);

}  // namespace moesaic
