// The presets of configs/, by name.
#pragma once

#include <filesystem>
#include <string>

#include "core/base/file.h"
#include "core/perf/machine_spec.h"
#include "core/perf/model_shape.h"

namespace moesaic {

inline ModelShape ModelPreset(const std::string& name) {
  const auto file = std::filesystem::path(MOESAIC_CONFIGS_DIR) / "models" / (name + ".yaml");
  return ParseModelShape(ReadTextFile(file, 1 << 16), file.string());
}

inline MachineSpec MachinePreset(const std::string& name,
                                 ConstantChoice choice = ConstantChoice::kPreferMeasured) {
  const auto file = std::filesystem::path(MOESAIC_CONFIGS_DIR) / "machines" / (name + ".yaml");
  return ParseMachineSpec(ReadTextFile(file, 1 << 16), file.string(), choice);
}

}  // namespace moesaic
