#include "serving/multi/model_entry.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <system_error>

#include "core/base/error.h"
#include "core/config/model_config.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

void CheckNames(const std::vector<ModelEntry>& entries) {
  std::map<std::string, std::string> places;
  for (const ModelEntry& entry : entries) {
    for (const std::string& name : entry.names()) {
      if (name.empty()) {
        Fail(ErrorKind::kInvalidArgument, "{}: a model needs an id, and no alias may be empty",
             entry.place);
      }
      const auto [known, is_new] = places.emplace(name, entry.place);
      if (is_new) continue;
      Fail(ErrorKind::kInvalidArgument,
           "{}: the name '{:.200}' is given twice (the other is at {}); ids and aliases of all "
           "models must differ",
           entry.place, name, known->second);
    }
  }
}

// The same weights twice would only take twice the memory.
void CheckTwice(const std::vector<ModelEntry>& entries) {
  for (size_t i = 0; i < entries.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const EngineOptions& a = entries[j].engine;
      const EngineOptions& b = entries[i].engine;
      std::error_code error;
      if (!fs::equivalent(a.model_dir, b.model_dir, error) || error || a.dtype != b.dtype) continue;
      Fail(ErrorKind::kInvalidArgument,
           "{}: the model {} is there already ('{}' at {}); give that one another name by "
           "`aliases`, or this one another dtype",
           entries[i].place, b.model_dir.string(), entries[j].id, entries[j].place);
    }
  }
}

// Files that belong to one model, given for all of them.
void CheckFiles(const std::vector<ModelEntry>& entries) {
  if (entries.size() < 2) return;
  struct File {
    const char* setting;
    const fs::path& (*of)(const EngineOptions& options);
  };
  const File files[] = {
      {"expert-store", [](const EngineOptions& o) -> const fs::path& { return o.expert_store; }},
      {"record-trace", [](const EngineOptions& o) -> const fs::path& { return o.record_trace; }},
      {"state-file", [](const EngineOptions& o) -> const fs::path& { return o.state_file; }},
  };
  for (const File& file : files) {
    for (size_t i = 0; i < entries.size(); ++i) {
      const fs::path& path = file.of(entries[i].engine);
      for (size_t j = 0; j < i && !path.empty(); ++j) {
        if (file.of(entries[j].engine) != path) continue;
        Fail(ErrorKind::kInvalidArgument,
             "{}: {} {} is that of '{}' ({}) too; each model needs one of its own: give it with "
             "the model in the --models file",
             entries[i].place, file.setting, path.string(), entries[j].id, entries[j].place);
      }
    }
  }
  for (const ModelEntry& entry : entries) {
    if (entry.engine.devices.count == 0) continue;
    Fail(ErrorKind::kInvalidArgument,
         "{}: devices: several models are served from the host's memory only; leave --devices out, "
         "or start a server for each model",
         entry.place);
  }
}

// One state file for all stands for a directory with one for each.
void GiveStateFiles(std::vector<ModelEntry>& entries) {
  if (entries.size() < 2) return;
  const fs::path directory = entries.front().engine.state_file;
  const bool shared = std::all_of(entries.begin(), entries.end(), [&](const ModelEntry& entry) {
    return entry.engine.state_file == directory;
  });
  if (directory.empty() || !shared) return;
  std::error_code error;
  fs::create_directories(directory, error);
  if (!fs::is_directory(directory)) {
    Fail(ErrorKind::kInvalidArgument,
         "--state-file {}: with several models it names a directory, which cannot be made{}; name "
         "another place",
         directory.string(), error ? fmt::format(" ({})", error.message()) : "");
  }
  for (ModelEntry& entry : entries) {
    entry.engine.state_file = directory / (FileNameOf(entry.id) + ".state");
  }
}

}  // namespace

std::vector<std::string> ModelEntry::names() const {
  std::vector<std::string> all = {id};
  all.insert(all.end(), aliases.begin(), aliases.end());
  return all;
}

std::vector<ModelEntry> EntriesOf(const std::vector<std::string>& models,
                                  const EngineOptions& options, const ChatFormatOptions& chat) {
  std::vector<ModelEntry> entries;
  for (const std::string& model : models) {
    ModelEntry& entry = entries.emplace_back();
    entry.place = fmt::format("argument {}", entries.size());
    entry.id = model;
    entry.engine = options;
    entry.engine.model = model;
    entry.chat = chat;
  }
  return entries;
}

void PrepareEntries(std::vector<ModelEntry>& entries) {
  CheckNames(entries);
  for (ModelEntry& entry : entries) {
    AtPlace(entry, [&entry] { entry.engine.model_dir = ResolveModelPath(entry.engine.model); });
    if (entry.pin && entry.idle_unload.count() > 0) {
      Fail(ErrorKind::kInvalidArgument,
           "{}: '{}' has pin and idle-unload; what is pinned is never unloaded: leave one out",
           entry.place, entry.id);
    }
  }
  CheckTwice(entries);
  GiveStateFiles(entries);
  CheckFiles(entries);
}

std::string FileNameOf(std::string_view id) {
  std::string name;
  for (const char c : id) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = byte < 0x80 && (std::isalnum(byte) != 0 || c == '_' || c == '-' || c == '.');
    if (plain && !(c == '.' && name.empty())) {
      name += c;
    } else {
      name += fmt::format("%{:02X}", byte);
    }
  }
  return name;
}

}  // namespace moesaic
