// BatchEngine: the Engine of throughput mode. All that runs moves through the model together, layer
// by layer: each pass takes the next token of every running sequence and, under a token budget, the
// prompts of those that join; attention of all rows, the router, then one expert after another on
// all the rows that chose it, while the data mover reads the next ones (MoE-Gen's module-based
// batching with MoE-Lens' scheduler). See serving/online/engine.h for the contract; here the queue
// has no end, and deadlines are not looked at.
//
// When KV blocks run out, the newest sequences leave and come back as prompts with what they have
// generated (Scheduler). The forward pass, and so every bit of the logits, is latency mode's.
//
// Threads: Submit, Cancel and the rest come from anywhere and meet the engine's thread in `mutex_`;
// everything below "engine thread" belongs to that thread alone.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "cache/kv_block_pool.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/thread_pool.h"
#include "serving/batch/batch_plan.h"
#include "serving/batch/streaming_experts.h"
#include "serving/batch/timeline.h"
#include "serving/model/model.h"
#include "serving/online/engine.h"
#include "serving/online/scheduler.h"
#include "serving/online/step_sampler.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

class BatchEngine : public Engine {
 public:
  // Loads on the engine's thread and returns when it is ready; rethrows what loading threw.
  BatchEngine(const EngineOptions& options, const BatchPlan& plan);
  ~BatchEngine() override;

  const ModelConfig& config() const override { return files_.config; }
  const GenerationDefaults& generation_defaults() const override { return defaults_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  int64_t max_context_tokens() const override { return plan_.sizes.max_context_tokens; }
  std::vector<RequestId> Submit(std::vector<GenerationRequest> requests,
                                std::vector<std::shared_ptr<OutputSink>> sinks) override;
  void Cancel(RequestId id) override;
  void BeginDrain() override { draining_.store(true); }
  EngineStatus Status() const override;
  StepStats Stats() const override;

  const BatchPlan& plan() const { return plan_; }
  Timeline::Snapshot TakeTimeline() const { return timeline_.Take(); }
  int64_t preemptions() const;

 private:
  SequenceContext context() const;

  // Engine thread.
  void Main(std::promise<void> ready);
  void Load();
  bool TakeInbox();  // false: time to stop
  void Step();
  void RunPass();
  void SampleRows();
  void AddStats(const StepStats& stats);
  void End(Sequence& sequence, FinishReason reason);
  void EndWithError(Sequence& sequence, const Error& error);
  void PublishStatus();

  const EngineOptions options_;
  const BatchPlan plan_;
  ModelFiles files_;
  GenerationDefaults defaults_;
  std::vector<int32_t> eos_token_ids_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::atomic<bool> draining_{false};
  Timeline timeline_{kTimelineIntervals};

  mutable Mutex mutex_;
  CondVar wake_;
  bool stop_ GUARDED_BY(mutex_) = false;
  RequestId last_id_ GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Sequence>> inbox_ GUARDED_BY(mutex_);
  std::vector<RequestId> cancels_ GUARDED_BY(mutex_);
  EngineStatus status_ GUARDED_BY(mutex_);
  StepStats stats_ GUARDED_BY(mutex_);
  int64_t preemptions_ GUARDED_BY(mutex_) = 0;

  // Engine thread.
  const SteadyClock clock_;
  int64_t pass_end_ns_ = 0;  // of the last one; 0: none
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<StreamingExperts> experts_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvBlockPool> kv_pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StepSampler> sampler_;
  std::vector<ScheduledSlice> slices_;  // of the running pass
  std::vector<int32_t> tokens_;
  std::vector<SequenceSlice> model_slices_;

  std::thread thread_;
};

}  // namespace moesaic
