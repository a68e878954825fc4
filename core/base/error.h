// Errors that a caller or a user can cause: bad input, missing files, a full disk.
//
// A bug is CHECK (check.h); an expected outcome (cache miss, queue full) is a return value;
// everything else is an Error whose message says what is wrong, where, and what to do.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace moesaic {

enum class ErrorKind {
  kInvalidArgument,    // a flag, a request field or a configuration value is wrong
  kNotFound,           // a file, a model or a tensor is missing
  kCorrupt,            // a file contradicts itself or its format
  kUnsupported,        // well-formed, but this program cannot do it
  kResourceExhausted,  // a budget or a limit of the machine is too small
  kIo,                 // the operating system failed a read or a write
  kUnavailable,        // try again later
  kInternal,           // an invariant broke while serving; the request fails, the process lives on
};

// A short stable name, for logs and JSON ("invalid_argument", ...).
const char* ErrorKindName(ErrorKind kind);

// What a command exits with: 2 for input that the user can correct (the first four), 3 for a
// resource that is too small, 4 for I/O, 1 otherwise.
int ExitCode(ErrorKind kind);

// Not a std::runtime_error: its copies share a string that is counted inside libstdc++.so, where
// the thread sanitizer cannot see that the count orders the last read before the deletion. Copying
// must not throw, hence the shared message.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message)
      : kind_(kind), message_(std::make_shared<const std::string>(std::move(message))) {}
  ErrorKind kind() const { return kind_; }
  const char* what() const noexcept override { return message_->c_str(); }

 private:
  ErrorKind kind_;
  std::shared_ptr<const std::string> message_;  // shared by the copies that cross threads
};

// throw Error with a formatted message: Fail(ErrorKind::kCorrupt, "{}: header is {} bytes", path,
// n).
template <typename... Args>
[[noreturn]] void Fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace moesaic
