#include "serving/api/utc_text.h"

#include <fmt/chrono.h>

#include <ctime>

namespace moesaic {

std::string UtcText(int64_t unix_s) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(static_cast<std::time_t>(unix_s)));
}

}  // namespace moesaic
