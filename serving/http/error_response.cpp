#include "serving/http/error_response.h"

#include <string>

#include "serving/api/json_text.h"
#include "serving/api/messages_output.h"
#include "serving/api/ollama_output.h"
#include "serving/http/router.h"

namespace moesaic {

ApiError OneModel() {
  return ApiError(400, "invalid_request_error",
                  "This server has one model, which stays loaded; several are served with `moesaic "
                  "serve --models FILE`.",
                  {}, "one_model");
}

ApiError RouteNotFound(std::string_view path) {
  return ApiError(
      404, "NotFoundError",
      fmt::format("There is no route {}; GET / lists those that exist.", Excerpt(path, 200)), {},
      "route_not_found");
}

HttpResponse ErrorResponse(const ApiError& error, std::string_view path) {
  HttpResponse response;
  if (IsMessagesPath(path)) {
    response.status = MessagesErrorStatus(error);
    response.body = MessagesErrorBody(error);
  } else {
    response.status = error.status();
    response.body = IsOllamaPath(path) ? OllamaErrorBody(error) : ErrorBody(error);
  }
  if (error.retry_after_s() > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s()));
  }
  if (error.status() == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace moesaic
