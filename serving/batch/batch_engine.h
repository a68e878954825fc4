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
// Threads: Submit, Cancel and the rest come from anywhere and meet the engine's thread in the
// mailbox; everything below "engine thread" belongs to that thread alone.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "cache/kv_block_pool.h"
#include "core/base/clock.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "serving/batch/batch_experts.h"
#include "serving/batch/batch_setup.h"
#include "serving/batch/pass_runner.h"
#include "serving/batch/timeline.h"
#include "serving/model/model.h"
#include "serving/online/engine.h"
#include "serving/online/engine_mailbox.h"
#include "serving/online/scheduler.h"
#include "serving/online/step_sampler.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

class BatchEngine : public Engine {
 public:
  // Loads on the engine's thread and returns when it is ready; rethrows what loading threw.
  explicit BatchEngine(BatchSetup setup);
  ~BatchEngine() override;

  const ModelConfig& config() const override { return files_.config; }
  const GenerationDefaults& generation_defaults() const override { return defaults_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  int64_t max_context_tokens() const override { return plan_.sizes.max_context_tokens; }
  std::vector<RequestId> Submit(std::vector<EngineRequest> requests,
                                std::vector<std::shared_ptr<OutputSink>> sinks) override;
  void Cancel(RequestId id) override { mailbox_.Cancel(id); }
  void BeginDrain() override { mailbox_.BeginDrain(); }
  EngineStatus Status() const override { return mailbox_.Status(); }
  StepStats Stats() const override { return mailbox_.Stats(); }

  const BatchPlan& plan() const { return plan_; }
  Timeline::Snapshot TakeTimeline() const { return timeline_.Take(); }
  int64_t preemptions() const { return preemptions_.load(); }

 private:
  SequenceContext context() const;

  // Engine thread.
  void Main(std::promise<void> ready);
  void Load();
  bool TakeMail();  // false: time to stop
  void Step();
  void RunPass();
  void End(Sequence& sequence, FinishReason reason);
  void EndWithError(Sequence& sequence, const Error& error);
  void PublishStatus();

  const EngineOptions options_;
  const ModelFiles files_;
  const BatchPlan plan_;
  GenerationDefaults defaults_;
  std::vector<int32_t> eos_token_ids_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Timeline timeline_{kTimelineIntervals};

  EngineMailbox mailbox_;
  std::atomic<int64_t> preemptions_{0};

  // Engine thread.
  const SteadyClock clock_;
  int64_t pass_end_ns_ = 0;  // of the last one; 0: none
  int dense_failures_ = 0;   // of the dense part's device, one after another
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<BatchExperts> experts_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<PassRunner> runner_;
  std::unique_ptr<KvBlockPool> kv_pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<StepSampler> sampler_;
  std::vector<ScheduledSlice> slices_;  // of the running pass
  StepRows rows_;

  std::thread thread_;
};

}  // namespace moesaic
