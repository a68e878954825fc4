#include "serving/http/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "serving/api/random_id.h"

namespace moesaic {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

void AppendHeader(std::string_view name, std::string_view value, std::string& out) {
  out += name;
  out += ": ";
  for (const char c : value) out += IsControl(c) ? ' ' : c;
  out += "\r\n";
}

// IMF-fixdate (RFC 9110, 5.6.7), in English whatever the locale is.
std::string HttpDate() {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                            "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday,
                     kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string_view StatusReason(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 426:
      return "Upgrade Required";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 529:
      return "Overloaded";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

std::string SerializeHead(const HttpResponse& response, BodyFraming framing, size_t content_length,
                          bool keep_alive, std::string_view request_id) {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, StatusReason(response.status));
  AppendHeader("Server", "moesaic", out);
  AppendHeader("Date", HttpDate(), out);
  if (!response.content_type.empty()) AppendHeader("Content-Type", response.content_type, out);
  if (response.status != 204) {
    if (framing == BodyFraming::kContentLength) {
      AppendHeader("Content-Length", std::to_string(content_length), out);
    } else if (framing == BodyFraming::kChunked) {
      AppendHeader("Transfer-Encoding", "chunked", out);
    }
  }
  AppendHeader("Connection", keep_alive ? "keep-alive" : "close", out);
  if (!request_id.empty()) AppendHeader("X-Request-Id", request_id, out);
  for (const auto& [name, value] : response.headers) AppendHeader(name, value, out);
  out += "\r\n";
  return out;
}

void AppendChunk(std::string_view data, std::string& out) {
  out += fmt::format("{:x}\r\n", data.size());
  out += data;
  out += "\r\n";
}

std::optional<std::string> DecodePath(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    char c = path[i];
    if (c == '%') {
      if (i + 2 >= path.size()) return std::nullopt;
      const int high = HexDigit(path[i + 1]);
      const int low = HexDigit(path[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (IsControl(c)) return std::nullopt;
    out += c;
  }
  return out;
}

std::optional<std::string> QueryValue(std::string_view target, std::string_view name) {
  const size_t query = target.find('?');
  for (size_t at = query; at < target.size();) {  // at a separator, or npos
    const size_t begin = at + 1;
    at = std::min(target.find('&', begin), target.size());
    const std::string_view pair = target.substr(begin, at - begin);
    const size_t equals = std::min(pair.find('='), pair.size());
    if (pair.substr(0, equals) != name) continue;
    return DecodePath(equals == pair.size() ? std::string_view() : pair.substr(equals + 1));
  }
  return std::nullopt;
}

std::string AcceptOrMakeRequestId(std::string_view from_client) {
  const bool fit = !from_client.empty() && from_client.size() <= 128 &&
                   std::all_of(from_client.begin(), from_client.end(), [](char c) {
                     return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                            (c >= '0' && c <= '9') || c == '.' || c == '_' || c == ':' || c == '-';
                   });
  return fit ? std::string(from_client) : MakeRandomId("req-");
}

}  // namespace moesaic
