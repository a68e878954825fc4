// CallContext: what the calls of a service share. The service owns it and outlives them; its
// functions may be called from any thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "serving/http/request_memory.h"
#include "serving/http/server_options.h"
#include "serving/http/serving_metrics.h"

namespace moesaic {

struct CallContext {
  const ServerOptions& options;
  ServingMetrics& metrics;
  RequestMemory& request_memory;
  // Runs a function on a worker thread.
  std::function<void(std::function<void()>)> run_on_worker;
  // Names of unknown request fields, for a warning.
  std::function<void(const std::vector<std::string>&)> report_unknown_fields;
};

}  // namespace moesaic
