#include "serving/http/access.h"

#include <algorithm>

namespace moesaic {
namespace {

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

// Looks at every byte of `given` whatever differs; only its length can be told from the time.
bool ConstantTimeEquals(std::string_view given, std::string_view key) {
  volatile unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char other = key.empty() ? '\0' : key[i % key.size()];
    difference = static_cast<unsigned char>(difference | (given[i] ^ other));
  }
  return difference == 0;
}

std::string_view GivenKey(const HttpRequest& request) {
  const std::string_view authorization = request.Header("authorization");
  const size_t space = authorization.find(' ');
  if (space != std::string_view::npos &&
      EqualsIgnoringCase(authorization.substr(0, space), "bearer")) {
    std::string_view key = authorization.substr(space + 1);
    while (!key.empty() && key.front() == ' ') key.remove_prefix(1);
    return key;
  }
  return request.Header("x-api-key");
}

bool IsAllowedOrigin(std::string_view origin, const ServerOptions& options) {
  if (origin.empty()) return false;
  return std::any_of(
      options.allowed_origins.begin(), options.allowed_origins.end(),
      [origin](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

// "application/json; charset=utf-8" -> "application/json"
std::string MediaType(std::string_view header) {
  std::string_view type = header.substr(0, header.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  std::string out(type);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

}  // namespace

bool HasApiKey(const HttpRequest& request, const std::vector<std::string>& keys) {
  const std::string_view given = GivenKey(request);
  if (given.empty()) return false;
  bool found = false;
  for (const std::string& key : keys) found |= ConstantTimeEquals(given, key);
  return found;
}

ApiError KeyError(const HttpRequest& request) {
  const bool missing = GivenKey(request).empty();
  return ApiError(401, "invalid_request_error",
                  missing ? "An API key is needed: send the header \"Authorization: Bearer KEY\"."
                          : "Incorrect API key provided.",
                  {}, missing ? "missing_api_key" : "invalid_api_key");
}

void AddCorsHeaders(const HttpRequest& request, const ServerOptions& options,
                    HttpResponse& response) {
  if (options.allowed_origins.empty()) return;
  response.headers.emplace_back("Vary", "Origin");
  const std::string_view origin = request.Header("origin");
  if (!IsAllowedOrigin(origin, options)) return;
  response.headers.emplace_back("Access-Control-Allow-Origin", std::string(origin));
  response.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

HttpResponse AnswerOptions(const HttpRequest& request, const ServerOptions& options,
                           std::string_view allow) {
  HttpResponse response;
  response.status = 204;
  response.content_type.clear();
  response.headers.emplace_back("Allow", std::string(allow));
  if (IsAllowedOrigin(request.Header("origin"), options)) {
    response.headers.emplace_back("Access-Control-Allow-Methods", std::string(allow));
    const std::string_view wanted = request.Header("access-control-request-headers");
    response.headers.emplace_back("Access-Control-Allow-Headers",
                                  wanted.empty()
                                      ? "Authorization, Content-Type, X-Api-Key, X-Request-Id"
                                      : std::string(wanted));
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return response;
}

std::optional<ApiError> CheckBodyHeaders(const HttpRequest& request) {
  const auto refuse = [](int status, std::string message, std::string code) {
    return ApiError(status, "invalid_request_error", message, {}, std::move(code));
  };
  if (!request.content_length.has_value() && !request.chunked) {
    return refuse(411, "A body with Content-Length (or chunked) is needed.", "length_required");
  }
  const std::string_view coding = request.Header("content-encoding");
  if (!coding.empty() && !EqualsIgnoringCase(coding, "identity")) {
    return refuse(415, "Content-Encoding is not supported; send the JSON as it is.",
                  "unsupported_encoding");
  }
  const std::string type = MediaType(request.Header("content-type"));
  constexpr std::string_view kSuffix = "+json";
  const bool json = type == "application/json" ||
                    (type.size() > kSuffix.size() &&
                     type.compare(type.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0);
  const bool by_default =
      type.empty() || type == "text/plain" || type == "application/x-www-form-urlencoded";
  if (json || (by_default && request.Header("origin").empty())) return std::nullopt;
  return refuse(415, "The body must be JSON with Content-Type: application/json.",
                "unsupported_media_type");
}

}  // namespace moesaic
