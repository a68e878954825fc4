#include "core/base/error.h"

namespace moesaic {

const char* ErrorKindName(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "invalid_argument";
    case ErrorKind::kNotFound:
      return "not_found";
    case ErrorKind::kCorrupt:
      return "corrupt";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kResourceExhausted:
      return "resource_exhausted";
    case ErrorKind::kIo:
      return "io";
    case ErrorKind::kUnavailable:
      return "unavailable";
    case ErrorKind::kInternal:
      return "internal";
  }
  return "unknown";
}

int ExitCode(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kNotFound:
    case ErrorKind::kCorrupt:
    case ErrorKind::kUnsupported:
      return 2;
    case ErrorKind::kResourceExhausted:
      return 3;
    case ErrorKind::kIo:
      return 4;
    default:
      return 1;
  }
}

}  // namespace moesaic
