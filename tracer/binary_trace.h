// The binary form of a routing trace (trace_format.h): read, and written whole. A recorder writes
// it step by step: trace_writer.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "tracer/routing_trace.h"

namespace moesaic {

// Whether the file begins like one. False when it cannot be read.
bool IsBinaryTrace(const std::filesystem::path& path);

// Untrusted bytes; `name` goes into messages. A block that is cut or damaged at the very end is
// what a killed recorder leaves: it is left out, and lost_bytes says so. Damage before other blocks
// is an error. Throws Error: kCorrupt, kUnsupported (a newer version).
RoutingTrace ParseBinaryTrace(std::span<const std::byte> bytes, std::string_view name);
// Throws also Error(kNotFound, kIo).
RoutingTrace ReadBinaryTrace(const std::filesystem::path& path);

// Replaces the file as a whole. Throws Error(kIo).
void WriteBinaryTrace(const std::filesystem::path& path, const RoutingTrace& trace);

}  // namespace moesaic
