// What tests want to know of an error.
#pragma once

#include <string>

#include "core/base/error.h"

namespace moesaic {

// The error that `body` throws; a kInternal one with an empty message when it throws none.
template <typename Body>
Error Caught(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInternal, "");
}

inline bool Contains(const Error& error, const std::string& part) {
  return std::string(error.what()).find(part) != std::string::npos;
}

}  // namespace moesaic
