// HttpRequest, HttpResponse: messages as the API code sees them, without the transport's types.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moesaic {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // as sent: "GET"
  std::string target;  // as sent
  std::string path;    // decoded, without the query
  int version = 11;    // 10 or 11
  bool keep_alive = true;
  bool expects_continue = false;
  bool has_body = false;  // Content-Length > 0 or chunked
  std::optional<size_t> content_length;
  bool chunked = false;
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::string id;  // X-Request-Id: the client's, else made here

  // The first header of this name (lower case), empty when absent.
  std::string_view Header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";  // empty: no Content-Type (204)
  HttpHeaders headers;
  std::string body;
  bool close = false;  // the connection ends after this response
};

// "Not Found" for 404.
std::string_view StatusReason(int status);

enum class BodyFraming { kContentLength, kChunked, kUntilClose };

// Status line and headers. Control characters in values become spaces: some values repeat what a
// client sent, and none may begin a new header. `content_length` is used with kContentLength only.
std::string SerializeHead(const HttpResponse& response, BodyFraming framing, size_t content_length,
                          bool keep_alive, std::string_view request_id);

// One chunk of a chunked body; empty data makes the last chunk.
void AppendChunk(std::string_view data, std::string& out);

// Percent-decoding of a path. nullopt: a bad escape or a control character.
std::optional<std::string> DecodePath(std::string_view path);

// The value of `name` in the query of a target ("/path?name=value&..."), decoded; nullopt: it is
// not there, or its value cannot be decoded.
std::optional<std::string> QueryValue(std::string_view target, std::string_view name);

// A client's X-Request-Id when it is fit for logs and headers (1..128 characters of
// [A-Za-z0-9._:-]), else a new random one.
std::string AcceptOrMakeRequestId(std::string_view from_client);

}  // namespace moesaic
