#include "serving/cli/plan_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/file.h"
#include "serving/cli/model_summary.h"
#include "serving/startup/machine_options.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kMaxPresetBytes = uint64_t{4} << 20;

// NAME.yaml in a preset directory's sub-folder, or a file by its path.
std::optional<fs::path> FindPreset(const std::string& name, const char* folder,
                                   const Invocation& invocation) {
  std::error_code error;
  if (fs::is_regular_file(name, error)) return name;
  if (name.find('/') != std::string::npos) return std::nullopt;
  for (const fs::path& directory : PresetDirectories(invocation.executable)) {
    const fs::path file = directory / folder / (name + ".yaml");
    if (fs::is_regular_file(file, error)) return file;
  }
  return std::nullopt;
}

std::string PresetNames(const char* folder, const Invocation& invocation) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::path& directory : PresetDirectories(invocation.executable)) {
    for (const auto& entry : fs::directory_iterator(directory / folder, error)) {
      if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
    }
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

ModelShape ShapeInMemory(const std::string& name, std::optional<WeightType> dtype,
                         const Machine& here, fs::path* directory) {
  EngineOptions options;
  options.model = name;
  options.dtype = dtype;
  const ModelSummary summary = SummariseModel(OptionsOnMachine(options, here));
  *directory = summary.directory;
  ModelShape shape = ShapeOf(summary.config, fs::path(name).filename().string());
  shape.source = (summary.directory / "config.json").string();
  shape.bytes_per_weight =
      static_cast<double>(summary.dense_bytes) / static_cast<double>(shape.DenseParameters());
  shape.dense_blob_bytes = summary.dense_bytes;
  shape.expert_blob_bytes = summary.slot_bytes;
  const auto values =
      static_cast<uint64_t>(2 * shape.num_layers * shape.num_kv_heads * shape.head_dim);
  shape.kv_bytes_per_value = static_cast<int64_t>(summary.kv_bytes_per_token / values);
  return shape;
}

}  // namespace

PlanModel FindPlanModel(const std::string& name, std::optional<WeightType> dtype,
                        const Invocation& invocation, const Machine& here) {
  PlanModel model;
  std::error_code error;
  if (!fs::is_directory(name, error)) {
    if (const auto file = FindPreset(name, "models", invocation)) {
      model.shape = ParseModelShape(ReadTextFile(*file, kMaxPresetBytes), file->string());
      if (model.shape.name.empty()) model.shape.name = file->stem().string();
      return model;
    }
    if (name.find('/') == std::string::npos) {
      Fail(ErrorKind::kNotFound,
           "--model {}: neither a directory nor a shape that comes with the program ({})", name,
           PresetNames("models", invocation));
    }
  }
  model.shape = ShapeInMemory(name, dtype, here, &model.directory);
  return model;
}

MachineSpec FindPlanMachine(const std::string& name, ConstantChoice choice,
                            const fs::path& model_dir, const Invocation& invocation,
                            const Machine& here) {
  const fs::path directory = fs::absolute(model_dir.empty() ? "." : model_dir);
  if (name == "this") {
    if (!here.profile) {
      Fail(ErrorKind::kNotFound,
           "--machine this: no measurement of this machine ({}); run `moesaic profile` first",
           here.why_no_profile);
    }
    return MachineFromProfile(*here.profile, directory, here.topology.usable_memory_bytes());
  }
  const auto file = FindPreset(name, "machines", invocation);
  if (!file) {
    Fail(ErrorKind::kNotFound,
         "--machine {}: neither \"this\", nor a file, nor a machine that comes with the program "
         "({})",
         name, PresetNames("machines", invocation));
  }
  const std::string text = ReadTextFile(*file, kMaxPresetBytes);
  if (file->extension() == ".json") {
    const HardwareProfile profile = ParseProfile(text, file->string());
    return MachineFromProfile(profile, directory, profile.host.memory_total_bytes);
  }
  MachineSpec machine = ParseMachineSpec(text, file->string(), choice);
  if (machine.name.empty()) machine.name = file->stem().string();
  return machine;
}

}  // namespace moesaic
