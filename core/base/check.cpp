#include "core/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace moesaic::internal {

void CheckFailed(const char* file, int line, const char* expression, const std::string& detail) {
  std::fprintf(stderr, "%s:%d: CHECK failed: %s%s%s\n", file, line, expression,
               detail.empty() ? "" : ": ", detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace moesaic::internal
