#include "tracer/internal/msgpack_bytes.h"

#include <limits>

#include "core/base/error.h"

namespace moesaic {

void MsgpackBytes::write(const char* data, size_t bytes) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  bytes_.insert(bytes_.end(), first, first + bytes);
}

MsgpackDocument::MsgpackDocument(std::span<const std::byte> bytes, std::string_view what) {
  // What a lying length can make the library allocate is bounded by these.
  const msgpack::unpack_limit limit(/*array=*/1 << 12, /*map=*/1 << 12, /*str=*/1 << 20,
                                    /*bin=*/0xffffffff, /*ext=*/0xffffffff, /*depth=*/8);
  size_t end = 0;
  try {
    handle_ = msgpack::unpack(
        reinterpret_cast<const char*>(bytes.data()), bytes.size(), end,
        [](msgpack::type::object_type, size_t, void*) { return true; }, nullptr, limit);
  } catch (const msgpack::unpack_error& error) {
    Fail(ErrorKind::kCorrupt, "{}: not a whole msgpack value ({})", what, error.what());
  }
  if (end != bytes.size()) {
    Fail(ErrorKind::kCorrupt, "{}: {} bytes follow the value", what, bytes.size() - end);
  }
}

uint32_t CheckedMsgpackLength(size_t bytes, std::string_view what) {
  if (bytes > std::numeric_limits<uint32_t>::max()) {
    Fail(ErrorKind::kResourceExhausted, "{}: {} bytes; a msgpack value holds 4 GiB", what, bytes);
  }
  return static_cast<uint32_t>(bytes);
}

}  // namespace moesaic
