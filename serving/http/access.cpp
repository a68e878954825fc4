#include "serving/http/access.h"

#include <arpa/inet.h>

#include <algorithm>

#include "serving/api/json_text.h"

namespace moesaic {
namespace {

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

bool IsAllowedOrigin(std::string_view origin, const ServerOptions& options) {
  if (origin.empty()) return false;
  return std::any_of(
      options.allowed_origins.begin(), options.allowed_origins.end(),
      [origin](const std::string& allowed) { return allowed == "*" || allowed == origin; });
}

// "name:port" and "[address]:port" without the port.
std::string_view WithoutPort(std::string_view host) {
  const size_t end = host.starts_with('[') ? host.find(']') : host.find(':');
  if (end == std::string_view::npos) return host;
  return host.substr(0, host.starts_with('[') ? end + 1 : end);
}

// What follows the name is a port, or nothing.
bool HasValidPort(std::string_view host) {
  std::string_view port = host.substr(WithoutPort(host).size());
  if (port.empty()) return true;
  if (!port.starts_with(':') || port.size() > 6) return false;
  port.remove_prefix(1);
  return std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// A name like 127.evil.example is none: all four numbers must be there.
bool IsLoopbackName(std::string_view name) {
  if (EqualsIgnoringCase(name, "localhost") || name == "[::1]") return true;
  in_addr address{};
  return inet_pton(AF_INET, std::string(name).c_str(), &address) == 1 &&
         (ntohl(address.s_addr) >> 24) == 127;
}

ApiError Forbidden(std::string message, std::string code) {
  return ApiError(403, "invalid_request_error", std::move(message), {}, std::move(code));
}

ApiError RefusedBody(int status, std::string message, std::string code) {
  return ApiError(status, "invalid_request_error", std::move(message), {}, std::move(code));
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

ApiError KeyError(const HttpRequest& request) {
  const bool missing = GivenKey(request).empty();
  return ApiError(401, "invalid_request_error",
                  missing ? "An API key is needed: send the header \"Authorization: Bearer KEY\"."
                          : "Incorrect API key provided.",
                  {}, missing ? "missing_api_key" : "invalid_api_key");
}

std::optional<ApiError> CheckHost(const HttpRequest& request, const ServerOptions& options,
                                  bool loopback_only) {
  if (!loopback_only && options.allowed_hosts.empty()) return std::nullopt;
  const std::string_view host = request.Header("host");
  if (host.empty() && request.version == 10) return std::nullopt;
  const std::string_view name = WithoutPort(host);
  if (HasValidPort(host)) {
    if (IsLoopbackName(name)) return std::nullopt;
    // One that is listed without a port stands for any.
    for (const std::string& allowed : options.allowed_hosts) {
      if (allowed == "*" || EqualsIgnoringCase(allowed, host) ||
          EqualsIgnoringCase(allowed, name)) {
        return std::nullopt;
      }
    }
  }
  return Forbidden(
      fmt::format("This server is not called \"{}\"; who starts it can allow that name "
                  "with --allowed-hosts.",
                  Excerpt(host)),
      "host_not_allowed");
}

bool AsksForWebSocket(const HttpRequest& request) {
  return EqualsIgnoringCase(request.Header("upgrade"), "websocket");
}

std::optional<ApiError> CheckOrigin(const HttpRequest& request, const ServerOptions& options) {
  const std::string_view origin = request.Header("origin");
  const bool changes =
      request.method == "POST" || request.method == "PUT" || request.method == "DELETE";
  if (!changes || origin.empty() || IsAllowedOrigin(origin, options)) {
    return std::nullopt;
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (origin.starts_with(scheme) &&
        EqualsIgnoringCase(origin.substr(scheme.size()), request.Header("host"))) {
      return std::nullopt;
    }
  }
  return Forbidden(
      fmt::format("Web pages of {} may not send requests to this server; who starts it "
                  "can allow them with --allowed-origins.",
                  Excerpt(origin)),
      "origin_not_allowed");
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

std::optional<ApiError> CheckBinaryBodyHeaders(const HttpRequest& request) {
  if (!request.content_length.has_value() && !request.chunked) {
    return RefusedBody(411, "A body with Content-Length (or chunked) is needed.",
                       "length_required");
  }
  const std::string_view coding = request.Header("content-encoding");
  if (!coding.empty() && !EqualsIgnoringCase(coding, "identity")) {
    return RefusedBody(415, "Content-Encoding is not supported; send the body as it is.",
                       "unsupported_encoding");
  }
  return std::nullopt;
}

std::optional<ApiError> CheckBodyHeaders(const HttpRequest& request) {
  if (auto error = CheckBinaryBodyHeaders(request)) return error;
  const std::string type = MediaType(request.Header("content-type"));
  constexpr std::string_view kSuffix = "+json";
  const bool json = type == "application/json" ||
                    (type.size() > kSuffix.size() &&
                     type.compare(type.size() - kSuffix.size(), kSuffix.size(), kSuffix) == 0);
  const bool by_default =
      type.empty() || type == "text/plain" || type == "application/x-www-form-urlencoded";
  if (json || (by_default && request.Header("origin").empty())) return std::nullopt;
  return RefusedBody(415, "The body must be JSON with Content-Type: application/json.",
                     "unsupported_media_type");
}

}  // namespace moesaic
