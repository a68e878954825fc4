// The file of several models: whatever it says, it is read or refused as an invalid argument.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/multi/models_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const moesaic::ModelEntry& entry : moesaic::ParseModels(text, "fuzz.yaml", {}, {})) {
      CHECK(!entry.engine.model.empty() || entry.id.empty());
      CHECK(!entry.min_experts.is_auto());
      moesaic::FileNameOf(entry.id);
    }
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
  return 0;
}
