// RequestReader: turns the bytes of one connection into HTTP/1 requests. It does no I/O: bytes come
// in by Consume, a request goes out by TakeRequest, so that split, pipelined and malformed input is
// tested without sockets. Owned by one session and used on its strand only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "serving/api/api_error.h"
#include "serving/http/http_message.h"
#include "serving/http/server_options.h"

namespace moesaic {

class RequestReader {
 public:
  enum class Progress {
    kNeedMore,  // nothing more can be done with this input
    kHead,      // head() is complete; reported once per request, before its body
    kComplete,  // TakeRequest() may be called
    kFailed,    // error() says why; the connection cannot go on
  };

  explicit RequestReader(const ServerOptions& options);
  ~RequestReader();

  // Removes from the front of `input` what it used. Call again while it answers kHead.
  Progress Consume(std::string& input);

  bool started() const { return started_; }  // a byte of the current request has been seen
  bool has_head() const { return has_head_; }
  const HttpRequest& head() const { return request_; }
  const ApiError& error() const { return *error_; }
  size_t body_bytes() const;  // of the current request, received so far

  // The complete request; the reader is ready for the next one.
  HttpRequest TakeRequest();

 private:
  struct Parser;

  void Reset();
  Progress Fail(int status, const std::string& message, std::string code);
  Progress FailParse(int parser_error);
  std::optional<ApiError> FillHead();

  const ServerOptions& options_;
  std::unique_ptr<Parser> parser_;
  HttpRequest request_;
  uint64_t body_limit_ = 0;  // of this request
  std::optional<ApiError> error_;
  bool started_ = false;
  bool has_line_ = false;  // the request line has its end
  bool has_head_ = false;
};

}  // namespace moesaic
