#include "serving/online/engine_setup.h"

#include <utility>

namespace moesaic {

EngineSetup SetUpEngine(const EngineOptions& options) {
  EngineSetup setup;
  setup.options = options;
  setup.files = OpenModelFiles(options);
  setup.plan = PlanEngine(options, setup.files);
  return setup;
}

}  // namespace moesaic
