// ApiError: why a request was refused, in OpenAI's terms: {"error":{message,type,param,code}} and a
// status.
//
// Thread contract: a value; workers make them, connections answer with them.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace moesaic {

// Not a std::runtime_error, whose copies share a string that the thread sanitizer cannot follow
// (core/base/error.h).
class ApiError : public std::exception {
 public:
  // What is quoted in a message should have been cut where it is quoted (Excerpt); one that is too
  // long all the same (a template's own, say) is cut here.
  ApiError(int status, std::string type, std::string message, std::string param = {},
           std::string code = {}, int retry_after_s = 0)
      : status_(status),
        type_(std::move(type)),
        message_(CutMessage(std::move(message))),
        param_(CutMessage(std::move(param))),
        code_(std::move(code)),
        retry_after_s_(retry_after_s) {}

  const char* what() const noexcept override { return message_.c_str(); }
  int status() const { return status_; }
  const std::string& type() const { return type_; }
  const std::string& param() const { return param_; }   // empty: null
  const std::string& code() const { return code_; }     // empty: null
  int retry_after_s() const { return retry_after_s_; }  // 0: no Retry-After header

 private:
  static std::string CutMessage(std::string message);

  int status_;
  std::string type_;
  std::string message_;
  std::string param_;
  std::string code_;
  int retry_after_s_;
};

// 400 for a field: BadParam("temperature", "must be >= 0, got {}", t).
template <typename... Args>
ApiError BadParam(std::string_view param, fmt::format_string<Args...> format, Args&&... args) {
  return ApiError(400, "invalid_request_error", fmt::format(format, std::forward<Args>(args)...),
                  std::string(param), "invalid_value");
}

// 404, vLLM's message and type. `served`: the names of the others, where there are several.
ApiError ModelNotFound(std::string_view model, const std::vector<std::string>& served = {});
ApiError Unavailable(const std::string& message, std::string code, int retry_after_s);  // 503

ApiError Stopping();  // 503: what runs is cut short
// Ends the work for a request whose client is not there any more; nobody gets to see it.
ApiError ClientLeft();

// What an engine's Error means to a client: kInvalidArgument and kUnsupported are its fault (400),
// kUnavailable and kResourceExhausted ask it to come again (503), the rest is ours (500).
ApiError FromEngineError(const Error& error);
// What the exception being handled means to a client; to be called in a catch block. One that is
// neither ApiError nor Error is logged with `where` and tells the client nothing.
ApiError CurrentApiError(std::string_view where);

// {"error":{...}}, one line.
std::string ErrorBody(const ApiError& error);

}  // namespace moesaic
