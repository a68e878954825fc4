#include "serving/online/engine_setup.h"

#include <utility>

namespace moesaic {

EngineSetup SetUpEngine(const EngineOptions& options) {
  EngineSetup setup;
  setup.files = OpenModelFiles(options);
  setup.plan = PlanEngine(options, setup.files);
  setup.options = WithDenseByRules(options, setup.files.config);
  return setup;
}

}  // namespace moesaic
