#include "serving/batch/pass_step.h"

#include <utility>

#include "serving/batch/pass_groups.h"

namespace moesaic {
namespace {

// Of a pass, after a failure of the device that has the dense part, before its requests end.
constexpr int kDenseRetries = 2;

}  // namespace

PassStep::PassStep(const EngineOptions& options, const BatchPlan& plan, ModelFiles files,
                   const CpuKernels& kernels, ThreadPool& pool, std::shared_ptr<Timeline> timeline)
    : files_(std::move(files)),
      micro_batches_(plan.sizes.micro_batches),
      timeline_(std::move(timeline)) {
  const ModelConfig& config = files_.config;
  experts_ = std::make_unique<BatchExperts>(options, plan, files_, pool, *timeline_);
  ModelWeights weights =
      ModelWeights::Load(config, ChooseWeightType(options), *files_.tensors, kernels, pool);
  model_ = std::make_unique<Model>(
      config, experts_->MakeDense(options, plan, config, std::move(weights), kernels),
      files_.experts->layout(), experts_->TakePlaces(), kernels, pool, LimitsOf(options, plan));
  model_->PopulateKvCache();  // it has room for the job, not more
  runner_ =
      std::make_unique<PassRunner>(*model_, pool, experts_->streams(), experts_->dense_device(),
                                   plan.sizes.schedule, timeline_.get());
}

void PassStep::Arrange(std::vector<ScheduledSlice>& slices) {
  groups_ = GroupSlices(micro_batches_, slices);
}

StepStats PassStep::Run(const ForwardBatch& batch, RoutingHook* hook) {
  if (pass_end_ns_ > 0) {
    timeline_->Add({Activity::kBetween, pass_end_ns_, clock_.NowNs(), -1, -1, 0});
  }
  const StepStats stats = runner_->Run(batch, groups_, hook);
  dense_failures_ = 0;
  return stats;
}

void PassStep::HeadRan(int64_t begin_ns, int64_t end_ns) {
  pass_end_ns_ = end_ns;
  timeline_->Add({Activity::kHead, begin_ns, end_ns, -1, -1, 0});
}

EngineStep::AfterFailure PassStep::Failed(const Error& /*error*/) {
  pass_end_ns_ = 0;
  const bool experts_failed = model_->TakeExpertFailure();
  const bool failed = experts_->TakeDenseFailure() || experts_failed;
  const bool lost = experts_->NoteLostDevices();
  if (lost || (failed && ++dense_failures_ <= kDenseRetries)) return AfterFailure::kRunAgain;
  dense_failures_ = 0;
  return AfterFailure::kEndRequests;
}

void PassStep::Idle() {
  experts_->StopPrefetching();
  pass_end_ns_ = 0;
}

EngineStep::Experts PassStep::experts() {
  devices_ = experts_->devices();
  experts_->Links(links_);
  return {experts_->slots(), experts_->resident(), devices_, links_};
}

}  // namespace moesaic
