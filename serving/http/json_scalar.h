// Strings and numbers of JSON text: whether they are right, and their values. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/base/json.h"

namespace moesaic {

// Of what stands between two quotes: the first escape that is none, or the npos of
// std::string_view. Half a surrogate pair is refused. `escaped` tells whether there is any escape.
size_t FindBadEscape(std::string_view content, bool& escaped);
// Appends the value of a string whose escapes are right.
void AppendUnescaped(std::string_view content, std::string& out);

struct NumberScan {
  size_t end = 0;       // behind the number, or where it goes wrong
  bool valid = false;   // -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
  bool integer = true;  // neither a fraction nor an exponent
  // It may lie beyond double's range; only NumberValue knows.
  bool maybe_huge = false;
};
NumberScan ScanNumber(std::string_view text, size_t pos);

// The value of a valid number, as nlohmann has it: integers that fit 64 bits stay integers, the
// rest is the nearest double. Beyond double's range it is infinite.
Json NumberValue(std::string_view number, bool integer);

}  // namespace moesaic
