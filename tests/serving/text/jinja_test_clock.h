// The time that strftime_now() sees in the tests: 2025-07-04 09:05:03, a Friday, as in
// tests/reference/make_template_vectors.py.
#pragma once

#include <ctime>

namespace moesaic::jinja {

inline std::tm FixedTime() {
  std::tm time{};
  time.tm_year = 125;
  time.tm_mon = 6;
  time.tm_mday = 4;
  time.tm_hour = 9;
  time.tm_min = 5;
  time.tm_sec = 3;
  time.tm_wday = 5;
  time.tm_yday = 184;
  return time;
}

}  // namespace moesaic::jinja
