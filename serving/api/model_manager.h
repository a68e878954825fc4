// ModelManager: what the calls of a server ask of whoever loads and unloads its models
// (serving/multi/model_registry.h), by any of a model's names.
//
// Thread contract: any thread.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "serving/api/api_error.h"

namespace moesaic {

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
  // A request uses the model now.
  virtual void Touch(std::string_view name) = 0;
};

}  // namespace moesaic
