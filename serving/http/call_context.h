// CallContext: what the calls of a service share. The service owns it and outlives them; its
// functions may be called from any thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serving/api/model_manager.h"
#include "serving/api/served_model.h"
#include "serving/http/request_memory.h"
#include "serving/http/server_options.h"
#include "serving/http/serving_metrics.h"

namespace moesaic {

// The models that a request may use, as they are now.
using ModelSource = std::function<std::shared_ptr<const ModelTable>()>;

struct CallContext {
  const ServerOptions& options;
  ServingMetrics& metrics;
  RequestMemory& request_memory;
  // Runs a function on a worker thread.
  std::function<void(std::function<void()>)> run_on_worker;
  // Names of unknown request fields, for a warning.
  std::function<void(const std::vector<std::string>&)> report_unknown_fields;
  ModelManager* models = nullptr;  // null: the models stay as they are

  // Whether a request for the model may wait until it is loaded.
  bool MayWait(const ModelNotLoaded& missing) const {
    return models != nullptr && !missing.failed();
  }
};

}  // namespace moesaic
