// PassStep: a step is a pass of throughput mode. All that runs moves through the model together,
// layer by layer: the next token of every running sequence and, under a token budget, the prompts
// of those that join; attention of all rows, the router, then one expert after another on all the
// rows that chose it, while the data mover reads the next ones (MoE-Gen's module-based batching
// with MoE-Lens' scheduler). The modules, and so every bit of the logits, are latency mode's.
//
// Owned by its EngineLoop.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "serving/batch/batch_experts.h"
#include "serving/batch/batch_plan.h"
#include "serving/batch/pass_runner.h"
#include "serving/batch/timeline.h"
#include "serving/engine/engine_step.h"
#include "serving/model/model.h"
#include "serving/online/part_options.h"

namespace moesaic {

class PassStep final : public EngineStep {
 public:
  // Loads the model. kernels and pool outlive it; the timeline is shared with whoever reads it.
  PassStep(const EngineOptions& options, const BatchPlan& plan, ModelFiles files,
           const CpuKernels& kernels, ThreadPool& pool, std::shared_ptr<Timeline> timeline);

  Model& model() { return *model_; }

  void Arrange(std::vector<ScheduledSlice>& slices) override;
  StepStats Run(const ForwardBatch& batch, RoutingHook* hook) override;
  void HeadRan(int64_t begin_ns, int64_t end_ns) override;
  // A pass that lost a device is run again without it; one in which the device of the dense part
  // failed, some times.
  AfterFailure Failed(const Error& error) override;
  void Idle() override;
  Experts experts() override;

 private:
  ModelFiles files_;
  const int64_t micro_batches_;
  const std::shared_ptr<Timeline> timeline_;  // before experts_, whose threads add to it
  const SteadyClock clock_;
  std::unique_ptr<BatchExperts> experts_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<PassRunner> runner_;
  std::vector<SliceRange> groups_;     // of the running pass
  std::vector<DeviceStatus> devices_;  // as experts() told them last
  std::vector<ReaderLink> links_;      // likewise
  int64_t pass_end_ns_ = 0;            // of the last one; 0: none
  int dense_failures_ = 0;             // of the dense part's device, one after another
};

}  // namespace moesaic
