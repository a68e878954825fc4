// The JSON Lines routing trace reader: header line, then sequences.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/error.h"
#include "tracer/routing_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find('\n');
  try {
    const auto header = moesaic::ParseTraceHeader(text.substr(0, end), "fuzz");
    if (end != std::string_view::npos) {
      moesaic::TokenTexts texts;
      moesaic::ParseTraceSequence(text.substr(end + 1), header, "fuzz", 2, &texts);
    }
  } catch (const moesaic::Error&) {
  }
  return 0;
}
