// Server-sent events, as answers are streamed.
#pragma once

#include <string>
#include <string_view>

#include "serving/api/json_text.h"

namespace moesaic {

inline constexpr std::string_view kSseMediaType = "text/event-stream; charset=utf-8";

// "data: {...}\n\n"
inline std::string SseEvent(const Json& json) { return "data: " + DumpJson(json) + "\n\n"; }
// The event is called as the JSON's own `type`.
inline std::string NamedSseEvent(const Json& json) {
  return "event: " + json.at("type").get<std::string>() + "\n" + SseEvent(json);
}
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseComment = ": keep-alive\n\n";

}  // namespace moesaic
