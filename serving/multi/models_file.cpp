#include "serving/multi/models_file.h"

#include <memory>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/file.h"
#include "core/config/setting_section.h"
#include "core/config/settings_yaml.h"
#include "serving/online/engine_settings.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 20;

// Of the machine, which the models share.
constexpr const char* kOfTheProcess[] = {"memory", "numa", "pin-threads"};

// An entry that is being read. It stays where it is: its table points into it.
struct Reading {
  ModelEntry entry;
  OptionTable table;

  void Register() {
    const SettingSection section(table, "Model of the server", true);
    section.Add({.name = "id", .target = &entry.id});
    section.Add({.name = "path", .target = &entry.engine.model});
    section.Add({.name = "aliases", .target = &entry.aliases});
    section.Add({.name = "pin", .target = &entry.pin});
    section.Add({.name = "min-experts", .target = &entry.min_experts});
    section.Add({.name = "priority", .target = &entry.priority, .min = -100, .max = 100});
    section.Add({.name = "load", .target = OneOf(&entry.load, kLoadTimes)});
    section.Add(
        {.name = "idle-unload", .target = &entry.idle_unload, .min = 0, .max = 1e9});
    AddEngineSettings(entry.engine, true, table);
    AddChatFormatSettings(entry.chat, true, table);
  }

  bool Given(std::string_view name) const { return table.origin(name) != "default"; }

  // Once the mapping is read.
  void Check() {
    for (const char* name : kOfTheProcess) {
      if (!Given(name)) continue;
      Fail(ErrorKind::kInvalidArgument,
           "{}: it is the same for all models; give it with --{} to the server", table.origin(name),
           name);
    }
    if (Given("model") && Given("path")) {
      Fail(ErrorKind::kInvalidArgument, "{}: path and model mean the same; leave one out",
           table.origin("model"));
    }
    if (entry.engine.model.empty()) {
      Fail(ErrorKind::kInvalidArgument,
           "{}: `path` is missing: a directory, a GGUF file or the id of a model in the local "
           "Hugging Face cache",
           entry.place);
    }
    if (!Given("id")) entry.id = entry.engine.model;
    if (entry.min_experts.is_auto()) entry.min_experts = MemorySize("5%");
  }
};

}  // namespace

std::vector<ModelEntry> ParseModels(std::string_view yaml, const std::string& name,
                                    const EngineOptions& options, const ChatFormatOptions& chat) {
  std::vector<std::unique_ptr<Reading>> all;
  const auto next = [&](const std::string& place) -> OptionTable& {
    Reading& reading = *all.emplace_back(std::make_unique<Reading>());
    reading.entry.place = place;
    reading.entry.engine = options;
    reading.entry.engine.model.clear();
    reading.entry.chat = chat;
    reading.Register();
    return reading.table;
  };
  ApplyConfigList(yaml, name, "models", next, "docs/multi_model.md lists them");
  std::vector<ModelEntry> entries;
  for (const auto& reading : all) {
    reading->Check();
    entries.push_back(std::move(reading->entry));
  }
  return entries;
}

std::vector<ModelEntry> ReadModelsFile(const std::filesystem::path& file,
                                       const EngineOptions& options,
                                       const ChatFormatOptions& chat) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    Fail(ErrorKind::kNotFound, "--models {}: there is no such file", file.string());
  }
  return ParseModels(ReadTextFile(file, kMaxFileBytes), file.string(), options, chat);
}

}  // namespace moesaic
