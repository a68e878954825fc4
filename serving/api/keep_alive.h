// How long a request wants its model to stay loaded behind it: `keep_alive` of Ollama's API (a
// number of seconds, or "10m", "1h30m", "250ms"; 0: not at all; negative: for ever) and `ttl` of LM
// Studio's (seconds). Pure; reading throws ApiError (400).
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "serving/api/request_fields.h"

namespace moesaic {

using KeepAlive = std::chrono::nanoseconds;
inline constexpr KeepAlive kKeepForEver = KeepAlive::max();

// nullopt: the request says nothing.
std::optional<KeepAlive> ReadKeepAlive(RequestFields& fields);
// A duration as Go writes it; nullopt: it is none. Longer than 100 years is for ever.
std::optional<KeepAlive> ParseGoDuration(std::string_view text);

}  // namespace moesaic
