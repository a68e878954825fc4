// model.safetensors.index.json: no file name that comes out leaves the directory.
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/io/checkpoint_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    for (const auto& [tensor, file] : moesaic::ParseCheckpointIndex(text, "fuzz.json")) {
      const std::filesystem::path path =
          (std::filesystem::path("/model") / file).lexically_normal();
      CHECK(path.parent_path() == "/model");
      CHECK(path.has_filename());
    }
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt);
  }
  return 0;
}
