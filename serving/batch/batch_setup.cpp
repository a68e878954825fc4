#include "serving/batch/batch_setup.h"

#include <utility>

namespace moesaic {

BatchSetup SetUpBatch(const EngineOptions& options, const BatchWorkload& workload) {
  ModelFiles files = OpenModelFiles(options);
  BatchPlan plan = PlanBatch(options, files, workload);
  return {options, std::move(files), std::move(plan)};
}

}  // namespace moesaic
