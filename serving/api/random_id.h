// Random ids of requests and answers. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace moesaic {

// `prefix` and 128 random bits in hex.
std::string MakeRandomId(std::string_view prefix);

}  // namespace moesaic
