// A point in time as JSON has it: RFC 3339, in UTC.
#pragma once

#include <cstdint>
#include <string>

namespace moesaic {

std::string UtcText(int64_t unix_s);

}  // namespace moesaic
