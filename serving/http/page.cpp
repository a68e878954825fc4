#include "serving/http/page.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <array>
#include <string>

#include "core/base/check.h"
#include "serving/api/live_json.h"

namespace moesaic {

// Made by cmake/EmbedPage.cmake.
extern const char kPageText[];
extern const unsigned long kPageBytes;

namespace {

std::string Sha256(std::string_view text) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest{};
  SHA256(reinterpret_cast<const uint8_t*>(text.data()), text.size(), digest.data());
  return Base64(digest);
}

// What is between the only `begin` of the page and the next `end`.
std::string_view Between(std::string_view begin, std::string_view end) {
  const std::string_view page = PageText();
  const size_t from = page.find(begin);
  CHECK(from != std::string_view::npos);
  const size_t first = from + begin.size();
  const size_t last = page.find(end, first);
  CHECK(last != std::string_view::npos);
  return page.substr(first, last - first);
}

}  // namespace

bool WantsPage(const HttpRequest& request) {
  return request.Header("accept").find("text/html") != std::string_view::npos;
}

std::string_view PageText() { return {kPageText, kPageBytes}; }

std::string_view PagePolicy() {
  static const std::string policy = fmt::format(
      "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; "
      "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'",
      Sha256(Between("<script>", "</script>")), Sha256(Between("<style>", "</style>")));
  return policy;
}

HttpResponse AnswerPage() {
  HttpResponse response;
  response.headers = {
      {"Content-Security-Policy", fmt::format("{}; frame-ancestors 'none'", PagePolicy())},
      {"Cache-Control", "no-cache"},
      {"Vary", "Accept"},
      {"X-Content-Type-Options", "nosniff"},
      {"Referrer-Policy", "no-referrer"}};
  response.content_type = "text/html; charset=utf-8";
  response.body = PageText();
  return response;
}

}  // namespace moesaic
