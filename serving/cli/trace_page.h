// A recorded trace as a page: the HTML of serving/http/page.h with what it shows in it.
//
// Functions of their arguments.
#pragma once

#include <string>
#include <string_view>

#include "core/base/json.h"
#include "tracer/routing_trace.h"

namespace moesaic {

// What the page draws: the use of experts in up to kTraceWindows parts of the trace, one after
// another, and of each sequence, the first ones only where they are many. Bytes are bounded
// whatever the trace. name: of the file.
inline constexpr int64_t kTraceWindows = 240;
inline constexpr int64_t kTracePlaneBytes = 3 << 20;
inline constexpr size_t kTraceSequences = 64;
Json TracePageData(const RoutingTrace& trace, std::string_view name);

// One HTML text that needs nothing else.
std::string TracePage(const RoutingTrace& trace, std::string_view name);

}  // namespace moesaic
