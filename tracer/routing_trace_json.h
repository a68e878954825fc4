// The JSON Lines form of a routing trace, written; routing_trace.h reads it.
#pragma once

#include <filesystem>
#include <string>

#include "tracer/routing_trace.h"

namespace moesaic {

// One line each, without its end. Weights are written as whole numbers (times weight_scale), tokens
// as texts where the trace has texts.
std::string FormatTraceHeader(const RoutingTraceHeader& header);
std::string FormatTraceSequence(const RoutingTrace& trace, const TraceSequence& sequence);

// gzip when the name ends in .gz. Throws Error(kIo).
void WriteJsonTrace(const std::filesystem::path& path, const RoutingTrace& trace);

}  // namespace moesaic
