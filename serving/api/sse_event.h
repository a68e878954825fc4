// Server-sent events, as answers are streamed.
#pragma once

#include <string>
#include <string_view>

#include "serving/api/json_text.h"

namespace moesaic {

// "data: {...}\n\n"
inline std::string SseEvent(const Json& json) { return "data: " + DumpJson(json) + "\n\n"; }
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseComment = ": keep-alive\n\n";

}  // namespace moesaic
