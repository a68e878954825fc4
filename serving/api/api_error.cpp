#include "serving/api/api_error.h"

#include <nlohmann/json.hpp>

#include "core/base/logging.h"
#include "serving/api/json_text.h"

namespace moesaic {
namespace {

constexpr size_t kMaxQuotedBytes = 200;  // of what a client sent, in a message
constexpr size_t kMaxMessageBytes = 2000;

}  // namespace

std::string ApiError::CutMessage(std::string message) {
  if (message.size() <= kMaxMessageBytes) return message;
  return Excerpt(message, kMaxMessageBytes);
}

ApiError ModelNotFound(std::string_view model, const std::vector<std::string>& served) {
  std::string message = model.empty() ? "The request names no model, and this server has several."
                                      : fmt::format("The model `{}` does not exist.",
                                                    Excerpt(model, kMaxQuotedBytes));
  for (size_t i = 0; i < served.size(); ++i) {
    message += fmt::format("{}`{}`", i == 0 ? " This server has " : ", ", served[i]);
  }
  if (!served.empty()) message += '.';
  return ApiError(404, "NotFoundError", std::move(message), "model", "model_not_found");
}

ApiError Unavailable(const std::string& message, std::string code, int retry_after_s) {
  return ApiError(503, "service_unavailable_error", message, {}, std::move(code), retry_after_s);
}

ApiError Stopping() { return Unavailable("The server is shutting down.", "draining", 5); }

ApiError ClientLeft() { return Unavailable("The client has left.", "client_left", 1); }

ApiError FromEngineError(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kUnsupported:
      return ApiError(400, "invalid_request_error", error.what(), {}, "invalid_value");
    case ErrorKind::kUnavailable:
    case ErrorKind::kResourceExhausted:
      return Unavailable(error.what(), "overloaded", 1);
    default:
      return ApiError(500, "server_error", error.what(), {}, ErrorKindName(error.kind()));
  }
}

ApiError CurrentApiError(std::string_view where) {
  try {
    throw;
  } catch (const ApiError& error) {
    return error;
  } catch (const Error& error) {
    return FromEngineError(error);
  } catch (const std::exception& error) {
    LogError("{}: {}", where, error.what());
    return ApiError(500, "server_error", "The server failed to answer this request.");
  }
}

std::string ErrorBody(const ApiError& error) {
  Json fields = Json::object();
  fields["message"] = error.what();
  fields["type"] = error.type();
  fields["param"] = error.param().empty() ? Json(nullptr) : Json(error.param());
  fields["code"] = error.code().empty() ? Json(nullptr) : Json(error.code());
  return DumpJson(Json{{"error", std::move(fields)}});
}

}  // namespace moesaic
