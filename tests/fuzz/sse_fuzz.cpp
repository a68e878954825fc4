// Server-sent events as the load client reads them: the same events in pieces of any size.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/check.h"
#include "serving/cli/sse_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> whole;
  moesaic::SseParser().Feed(text, whole);
  std::vector<std::string> pieces;
  moesaic::SseParser parser;
  for (const size_t step = 1 + data[0] % 16; !text.empty();) {
    const size_t count = std::min(step, text.size());
    parser.Feed(text.substr(0, count), pieces);
    text.remove_prefix(count);
  }
  CHECK(pieces == whole);
  return 0;
}
