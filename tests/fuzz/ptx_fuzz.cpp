// PTX: whatever the text is, it is parsed or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/error.h"
#include "tests/gpu/interpreter/parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    moesaic::ptx::ParseModule(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const moesaic::Error&) {
  }
  return 0;
}
