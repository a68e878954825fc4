// ModelManager: what the calls of a server ask of whoever loads and unloads its models
// (serving/multi/model_registry.h), by any of a model's names.
//
// Thread contract: any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "serving/api/api_error.h"
#include "serving/api/json_text.h"
#include "serving/api/keep_alive.h"
#include "serving/api/model_state.h"

namespace moesaic {

struct ModelStatus {
  std::string id;  // its first name
  ModelState state = ModelState::kUnloaded;
  uint64_t bytes = 0;  // of memory that it has or is being given
  std::string why_failed;
  bool shrunk = false;  // resident, with no more experts than it keeps in any case
  double progress = 0;  // of kLoading: how much has been read, from 0 to 1
  friend bool operator==(const ModelStatus&, const ModelStatus&) = default;
};

// As llama.cpp's router has it, with more beside: its "loaded" is our resident.
Json StatusJson(const ModelStatus& status);

class ModelManager {
 public:
  // How an order ended: nullopt: well. Called once, from any thread, maybe before the function that
  // takes it returns; it must not block.
  using Done = std::function<void(std::optional<ApiError> why_not)>;

  virtual ~ModelManager() = default;

  // Some model that is to be loaded when the server starts is not there yet.
  virtual bool starting() const = 0;
  // Loads the model, unless it is there already. Done comes when requests find it.
  virtual void Load(std::string_view name, Done done) = 0;
  // Takes the model off the list. Done comes when it is off; its memory is free when the requests
  // that it is answering have ended. Nobody is unloaded that is not there.
  virtual void Unload(std::string_view name, Done done) = 0;
  // A request uses the model now. `keep_alive`: how long it is to stay behind that.
  virtual void Touch(std::string_view name, std::optional<KeepAlive> keep_alive) = 0;

  // Called for every model now and for each whose status changes, from any thread, in order; it
  // must not block, nor call this back.
  using Watcher = std::function<void(const ModelStatus& status)>;
  virtual uint64_t Watch(Watcher watcher) = 0;
  virtual void Unwatch(uint64_t watch) = 0;
};

}  // namespace moesaic
