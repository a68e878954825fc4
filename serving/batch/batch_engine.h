// BatchEngine: the Engine of throughput mode, an EngineLoop of PassSteps. See
// serving/engine/engine.h for the contract; here the queue has no end.
#pragma once

#include <cstdint>
#include <memory>

#include "serving/batch/batch_setup.h"
#include "serving/batch/timeline.h"
#include "serving/engine/engine_loop.h"

namespace moesaic {

class BatchEngine : public EngineLoop {
 public:
  // Loads on the engine's thread and returns when it is ready; rethrows what loading threw.
  explicit BatchEngine(BatchSetup setup);

  const BatchPlan& plan() const { return plan_; }
  Timeline::Snapshot TakeTimeline() const { return timeline_->Take(); }
  int64_t preemptions() const { return Status().preemptions; }

 private:
  // Shared with what loads, which can be copied.
  BatchEngine(const std::shared_ptr<BatchSetup>& setup, std::shared_ptr<Timeline> timeline);

  const BatchPlan plan_;
  const std::shared_ptr<Timeline> timeline_;  // shared with the step, which outlives this
};

}  // namespace moesaic
