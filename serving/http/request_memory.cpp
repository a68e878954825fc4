#include "serving/http/request_memory.h"

#include "core/base/units.h"
#include "serving/api/api_error.h"

namespace moesaic {

RequestMemory::Lease RequestMemory::Reserve(size_t body_bytes, uint64_t bytes_per_body_byte) {
  const uint64_t bytes = bytes_per_body_byte * body_bytes;
  if (bytes > limit_bytes_) {
    throw ApiError(
        413, "invalid_request_error",
        fmt::format("The request body has {} bytes; reading it may take {} of memory, more "
                    "than the {} that this server has for requests.",
                    body_bytes, FormatBytes(bytes), FormatBytes(limit_bytes_)),
        {}, "body_too_large");
  }
  uint64_t used = used_bytes_.load();
  do {
    if (used + bytes > limit_bytes_) {
      throw Unavailable(
          "The server has no memory left to read this request beside others; try again later.",
          "overloaded", 1);
    }
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return Lease(*this, bytes);
}

}  // namespace moesaic
