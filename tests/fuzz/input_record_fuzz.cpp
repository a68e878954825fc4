// The record of a batch job's input: whatever comes in is either refused, or packs into the same
// bytes again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/jobs/input_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const moesaic::InputRecord record = moesaic::ParseInputRecord(bytes, "fuzz");
    CHECK(moesaic::ParseInputRecord(moesaic::PackInputRecord(record), "fuzz") == record);
  } catch (const moesaic::Error& error) {
    CHECK_EQ(moesaic::ExitCode(error.kind()), 2);
  }
  return 0;
}
