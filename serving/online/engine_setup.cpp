#include "serving/online/engine_setup.h"

#include <memory>
#include <utility>

#include "core/io/shared_memory.h"

namespace moesaic {

EngineSetup SetUpEngine(const EngineOptions& options) {
  EngineSetup setup;
  setup.files = OpenModelFiles(options);
  if (!options.share_experts.empty()) {
    setup.files.share = std::make_unique<ShareClaim>(ShareClaim::Take(options.share_experts));
  }
  setup.plan = PlanEngine(options, setup.files);
  setup.options = WithDenseByRules(options, setup.files.config);
  return setup;
}

}  // namespace moesaic
