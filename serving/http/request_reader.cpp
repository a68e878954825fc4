#include "serving/http/request_reader.h"

#include <algorithm>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "core/base/check.h"

namespace moesaic {
namespace {

namespace http = boost::beast::http;

std::string Lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

// "http://host:port/path" (absolute form, which proxies send) -> "/path".
std::string_view StripAuthority(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.substr(0, scheme.size()) != scheme) continue;
    const size_t slash = target.find('/', scheme.size());
    return slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  return target;
}

constexpr std::string_view kUploadPath = "/v1/files";  // whose bodies may be larger
constexpr size_t kMaxUnparsedBodyBytes = 64 << 10;     // chunk headers and trailers

}  // namespace

struct RequestReader::Parser : http::request_parser<http::string_body> {};

RequestReader::RequestReader(const ServerOptions& options) : options_(options) { Reset(); }
RequestReader::~RequestReader() = default;

void RequestReader::Reset() {
  parser_ = std::make_unique<Parser>();
  // Beast's limit takes 32 bits and counts the request line too.
  parser_->header_limit(
      static_cast<uint32_t>(options_.max_header_bytes + options_.max_target_bytes));
  // Which limit it is the head tells; the parser compares a Content-Length with its own before.
  body_limit_ = options_.max_body_bytes;
  parser_->body_limit(std::max(options_.max_body_bytes, options_.max_upload_bytes));
  request_ = HttpRequest();
  started_ = false;
  has_line_ = false;
  has_head_ = false;
}

size_t RequestReader::body_bytes() const { return parser_->get().body().size(); }

RequestReader::Progress RequestReader::Fail(int status, const std::string& message,
                                            std::string code) {
  error_.emplace(status, "invalid_request_error", message, std::string(), std::move(code));
  return Progress::kFailed;
}

RequestReader::Progress RequestReader::FailParse(int parser_error) {
  switch (static_cast<http::error>(parser_error)) {
    case http::error::body_limit:
      return Fail(413, fmt::format("The request body is larger than {} bytes.", body_limit_),
                  "body_too_large");
    case http::error::header_limit:
      return Fail(431,
                  fmt::format("The request line and headers are larger than {} bytes.",
                              options_.max_header_bytes),
                  "headers_too_large");
    case http::error::bad_version:
      return Fail(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.", "bad_version");
    default:
      return Fail(
          400,
          fmt::format("The request is not valid HTTP: {}.",
                      http::make_error_code(static_cast<http::error>(parser_error)).message()),
          "bad_request");
  }
}

RequestReader::Progress RequestReader::Consume(std::string& input) {
  CHECK(!error_.has_value());
  if (!started_) {
    // RFC 9112, 2.2: empty lines before a request line are ignored.
    size_t skip = 0;
    while (input.compare(skip, 2, "\r\n") == 0) skip += 2;
    input.erase(0, skip);
    if (input.empty() || input == "\r") return Progress::kNeedMore;
    started_ = true;
  }
  if (has_head_ && parser_->is_done()) return Progress::kComplete;
  if (input.empty()) return Progress::kNeedMore;

  has_line_ = has_line_ || input.find("\r\n") != std::string::npos;
  boost::beast::error_code error;
  const size_t used = parser_->put(boost::asio::buffer(input), error);
  input.erase(0, used);
  if (error == http::error::need_more) {
    error = {};
    // A request line without an end would be 431 by Beast's limit; one that is clearly too long is
    // 414.
    if (!has_line_ && input.size() > options_.max_target_bytes + 64) {
      return Fail(
          414,
          fmt::format("The request target is longer than {} bytes.", options_.max_target_bytes),
          "target_too_long");
    }
    if (parser_->is_header_done() && input.size() > kMaxUnparsedBodyBytes) {
      return Fail(400, "The request is not valid HTTP: a chunk header is too long.", "bad_request");
    }
  }
  if (error) return FailParse(error.value());
  if (!has_head_) {
    if (!parser_->is_header_done()) return Progress::kNeedMore;
    has_head_ = true;
    error_ = FillHead();
    if (error_.has_value()) return Progress::kFailed;
    parser_->eager(true);  // from here on the body is taken as far as it is there
    return Progress::kHead;
  }
  if (body_bytes() > body_limit_) {
    return FailParse(static_cast<int>(http::error::body_limit));
  }
  return parser_->is_done() ? Progress::kComplete : Progress::kNeedMore;
}

std::optional<ApiError> RequestReader::FillHead() {
  const auto refuse = [](int status, std::string message, std::string code) {
    return ApiError(status, "invalid_request_error", std::move(message), {}, std::move(code));
  };
  const auto& message = parser_->get();
  request_.method = std::string(View(message.method_string()));
  request_.target = std::string(View(message.target()));
  request_.version = static_cast<int>(message.version());
  request_.keep_alive = parser_->keep_alive();
  int hosts = 0;
  int codings = 0;
  for (const auto& field : message) {
    std::string name = Lower(View(field.name_string()));
    hosts += name == "host" ? 1 : 0;
    codings += name == "transfer-encoding" ? 1 : 0;
    request_.headers.emplace_back(std::move(name), std::string(View(field.value())));
  }
  request_.id = AcceptOrMakeRequestId(request_.Header("x-request-id"));

  if (request_.target.size() > options_.max_target_bytes) {
    return refuse(
        414, fmt::format("The request target is longer than {} bytes.", options_.max_target_bytes),
        "target_too_long");
  }
  if (request_.version != 10 && request_.version != 11) {
    return refuse(505, "Only HTTP/1.0 and HTTP/1.1 are spoken here.", "bad_version");
  }
  if (hosts > 1 || (hosts == 0 && request_.version == 11)) {
    return refuse(400, "A request needs exactly one Host header.", "bad_request");
  }
  // What another server on the way would read otherwise (request smuggling) is refused outright.
  if (codings > 0) {
    if (codings > 1 || request_.version == 10 ||
        Lower(request_.Header("transfer-encoding")) != "chunked") {
      return refuse(501, "Of the transfer codings only 'chunked' is supported.",
                    "bad_transfer_encoding");
    }
    request_.chunked = true;
  }
  std::string_view path = StripAuthority(request_.target);
  path = path.substr(0, path.find('?'));
  auto decoded = DecodePath(path);
  if (!decoded.has_value() || decoded->empty() || ((*decoded)[0] != '/' && *decoded != "*")) {
    return refuse(400, "The request target is not a valid path.", "bad_request");
  }
  request_.path = std::move(*decoded);
  if (request_.path == kUploadPath && request_.method == "POST") {
    body_limit_ = std::max(options_.max_body_bytes, options_.max_upload_bytes);
  }
  if (const auto length = parser_->content_length()) {
    request_.content_length = static_cast<size_t>(*length);
    if (*length > body_limit_) {
      return refuse(413, fmt::format("The request body is larger than {} bytes.", body_limit_),
                    "body_too_large");
    }
  }
  request_.has_body = request_.chunked || request_.content_length.value_or(0) > 0;
  const std::string expect = Lower(request_.Header("expect"));
  if (!expect.empty()) {
    if (expect != "100-continue") {
      return refuse(417, "Of the expectations only '100-continue' is supported.", "bad_expect");
    }
    request_.expects_continue = request_.version == 11 && request_.has_body;
  }
  return std::nullopt;
}

HttpRequest RequestReader::TakeRequest() {
  CHECK(has_head_ && parser_->is_done());
  request_.body = std::move(parser_->get().body());
  HttpRequest result = std::move(request_);
  Reset();
  return result;
}

}  // namespace moesaic
