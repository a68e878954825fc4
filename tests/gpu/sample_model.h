// Where the sample model is: in the sources, or in the bundle that the test came with.
#pragma once

#include <filesystem>

namespace moesaic {

inline std::filesystem::path SampleModel() {
  const std::filesystem::path sources = MOESAIC_SAMPLE_MODEL_DIR;
  if (std::filesystem::exists(sources / "config.json")) return sources;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  return program.parent_path().parent_path() / "share/moesaic/models/sample";
}

}  // namespace moesaic
