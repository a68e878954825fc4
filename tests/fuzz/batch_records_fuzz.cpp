// What lies in a directory of batches: it is either refused, or written again as the same.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/jobs/batch_records.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string packed = moesaic::PackStoredBatch(moesaic::ParseStoredBatch(text, "fuzz"));
    CHECK(moesaic::PackStoredBatch(moesaic::ParseStoredBatch(packed, "fuzz")) == packed);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt ||
          error.kind() == moesaic::ErrorKind::kUnsupported);
  }
  try {
    const std::string packed = moesaic::PackStoredFile(moesaic::ParseStoredFile(text, "fuzz"));
    CHECK(moesaic::PackStoredFile(moesaic::ParseStoredFile(packed, "fuzz")) == packed);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt ||
          error.kind() == moesaic::ErrorKind::kUnsupported);
  }
  return 0;
}
