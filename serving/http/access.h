// Who may call, and from which web pages: API keys, hosts, origins and CORS, media types. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "serving/api/api_error.h"
#include "serving/http/http_message.h"
#include "serving/http/server_options.h"

namespace moesaic {

// The key that the request carries ("Authorization: Bearer k" or "X-Api-Key: k"); empty: none.
std::string_view GivenKey(const HttpRequest& request);

// 401 with a message that tells a missing key from a wrong one.
ApiError KeyError(const HttpRequest& request);

// Whether the Host header names this server: localhost, an address of 127.0.0.0/8 or [::1], with
// any port, or one of `allowed_hosts`. A web page whose name its owner has made to point at this
// machine (DNS rebinding) names itself there. Checked on a server that is bound to loopback
// (`loopback_only`), and on others where there are `allowed_hosts`; a 403 otherwise. HTTP/1.0
// knows requests without a Host, which no browser sends.
std::optional<ApiError> CheckHost(const HttpRequest& request, const ServerOptions& options,
                                  bool loopback_only);
// Whether a request that may change something (POST, PUT) comes from no web page, from one of this
// server's own origin or from one of `allowed_origins`; a 403 otherwise.
std::optional<ApiError> CheckOrigin(const HttpRequest& request, const ServerOptions& options);

// Whether it wants to go on as a WebSocket, which no route is served over.
bool AsksForWebSocket(const HttpRequest& request);

// Access-Control-Allow-Origin and Vary for an allowed origin, nothing otherwise.
void AddCorsHeaders(const HttpRequest& request, const ServerOptions& options,
                    HttpResponse& response);
// The answer to OPTIONS: `allow` and, for an allowed origin, what a browser asks before a request.
HttpResponse AnswerOptions(const HttpRequest& request, const ServerOptions& options,
                           std::string_view allow);

// What is wrong with the body's announcement: no length (411), a coding or a media type other than
// JSON (415). Types that curl or a plain script sends by default pass, unless a web page sends
// them: a browser sends those across origins without asking, and a server on loopback is only a
// page away.
std::optional<ApiError> CheckBodyHeaders(const HttpRequest& request);
// The same of a body that is no JSON; any type.
std::optional<ApiError> CheckBinaryBodyHeaders(const HttpRequest& request);

}  // namespace moesaic
