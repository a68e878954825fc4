// A Content-Type, a new line and a body: whatever comes in is either refused, or gives parts that
// lie in the body, in its order.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "serving/api/api_error.h"
#include "serving/http/multipart.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(text.find('\n'), text.size());
  const std::string_view body = text.substr(std::min(line + 1, text.size()));
  try {
    const char* last = body.data();
    for (const moesaic::FormPart& part : moesaic::ParseMultipart(body, text.substr(0, line))) {
      if (part.content.empty()) continue;
      CHECK(part.content.data() >= last);
      last = part.content.data() + part.content.size();
      CHECK(last <= body.data() + body.size());
    }
  } catch (const moesaic::ApiError& error) {
    CHECK(error.status() == 400 || error.status() == 415);
  }
  return 0;
}
