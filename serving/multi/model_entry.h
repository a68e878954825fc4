// ModelEntry: a model that a server is told to serve: its names, when it is loaded, what it may
// take, and the settings of its engine. ReadModelsFile (models_file.h) reads them from YAML.
//
// Plain data and functions of their arguments.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/memory_size.h"
#include "core/base/named.h"
#include "serving/api/chat_format_options.h"
#include "serving/online/engine_options.h"

namespace moesaic {

enum class LoadTime { kStart, kDemand };
inline constexpr Named<LoadTime> kLoadTimes[] = {{"start", LoadTime::kStart},
                                                 {"demand", LoadTime::kDemand}};

struct ModelEntry {
  std::string place;  // where it is asked for, in messages: "models.yaml:3"
  std::string id;
  std::vector<std::string> aliases;
  bool pin = false;                            // never unloaded to make room
  MemorySize min_experts = "5%";               // memory of experts that it keeps; a share is of its own
  int priority = 0;                            // steps of higher ones come first, always
  LoadTime load = LoadTime::kStart;            // or when a request comes
  std::chrono::milliseconds idle_unload{0};    // without a request for so long; 0: never
  EngineOptions engine;
  ChatFormatOptions chat;

  std::vector<std::string> names() const;
};

// Runs the function; an Error of it says where the entry stands.
template <typename Function>
auto AtPlace(const ModelEntry& entry, const Function& function) {
  try {
    return function();
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{} ('{}'): {}", entry.place, entry.id, error.what()));
  }
}

// An entry for each model, under the name that it is asked for by; all else as in `options`.
std::vector<ModelEntry> EntriesOf(const std::vector<std::string>& models,
                                  const EngineOptions& options, const ChatFormatOptions& chat);

// Finds the models' directories, gives each its state file (in the directory that `state_file` of
// the options names, made here), and checks them all together. Throws Error(kInvalidArgument,
// kNotFound), with the place: a name that two models have, a model that is there twice, a path that
// is not there, settings of which several models cannot have the same.
void PrepareEntries(std::vector<ModelEntry>& entries);

// What the id is called as a file: other characters than letters, digits, '.', '_' and '-' as %XX.
std::string FileNameOf(std::string_view id);

}  // namespace moesaic
