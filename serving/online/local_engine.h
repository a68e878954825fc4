// LocalEngine: the Engine of this machine. See engine.h for the contract.
//
// Threads: Submit, Cancel and the rest come from anywhere and meet the engine's thread in the
// mailbox; everything below "engine thread" belongs to that thread alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cache/kv_block_pool.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/link/expert_placement.h"
#include "prefetch/link/expert_provider.h"
#include "prefetch/link/host_experts.h"
#include "prefetch/predict/next_gate.h"
#include "prefetch/predict/recall_meter.h"
#include "serving/model/model.h"
#include "serving/online/engine_devices.h"
#include "serving/online/engine_mailbox.h"
#include "serving/online/engine_metrics.h"
#include "serving/online/engine_parts.h"
#include "serving/online/engine_setup.h"
#include "serving/online/learned_state.h"
#include "serving/online/read_health.h"
#include "serving/online/routing_recorder.h"
#include "serving/online/routing_replay.h"
#include "serving/online/scheduler.h"
#include "serving/online/sequence.h"
#include "serving/online/step_sampler.h"
#include "serving/text/tokenizer.h"
#include "tracer/request_tracer.h"

namespace moesaic {

class LocalEngine : public Engine, private RoutingHook {
 public:
  // Loads on the engine's thread and returns when it is ready to serve; rethrows what loading
  // threw.
  LocalEngine(EngineSetup setup, MetricsRegistry& metrics);
  ~LocalEngine() override;

  const ModelConfig& config() const override { return config_; }
  const GenerationDefaults& generation_defaults() const override { return defaults_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  int64_t max_context_tokens() const override { return plan_.max_context_tokens; }
  std::vector<RequestId> Submit(std::vector<EngineRequest> requests,
                                std::vector<std::shared_ptr<OutputSink>> sinks) override;
  void Cancel(RequestId id) override { mailbox_.Cancel(id); }
  void BeginDrain() override { mailbox_.BeginDrain(); }
  EngineStatus Status() const override;
  StepStats Stats() const override { return mailbox_.Stats(); }

 private:
  SequenceContext context() const;

  // Engine thread.
  void Main(std::promise<void> ready);
  void Load();
  void MakePredictor();
  void MakeExperts();
  void MakeDeviceExperts();
  std::unique_ptr<EvictionPolicy> MakePolicy();
  void RestoreState();
  void LoadGates(const ModelWeights& weights);
  void Preload();
  bool TakeMail();  // false: time to stop
  void TryReading();
  LearnedState::Clock::time_point SaveDueAt() const;  // max(): never
  void DropExpired();
  void Step();
  void AddStats(const StepStats& stats);
  void RecordStep(std::span<const ScheduledSlice> plan);
  void RunPlan(std::span<const ScheduledSlice> plan);
  void End(Sequence& sequence, FinishReason reason);
  std::unique_ptr<Sequence> Remove(Sequence& sequence);
  void EndWithError(Sequence& sequence, const Error& error);
  void PublishStatus();
  void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                 std::span<float> weights) override;
  bool OnlyWatches() const override { return replay_ == nullptr; }

  const EngineOptions options_;
  const ModelFiles files_;
  const EnginePlan plan_;
  const ModelConfig& config_;  // of the files
  GenerationDefaults defaults_;
  std::vector<int32_t> eos_token_ids_;
  MetricsRegistry& registry_;
  EngineMetrics metrics_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::atomic<int64_t> outstanding_{0};  // submitted and not ended

  EngineMailbox mailbox_;

  // Engine thread.
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<RoutingReplay> replay_;  // null: the model's own routing
  std::unique_ptr<NextGate> gates_;        // null: no router is asked ahead
  std::unique_ptr<Predictor> predictor_;   // null, as the next two: nothing is predicted
  std::unique_ptr<StepPredictor> step_predictor_;
  std::unique_ptr<RecallMeter> recall_;
  int64_t predict_ns_ = 0;                       // of the running step
  std::unique_ptr<PolicyCounts> policy_counts_;  // null: the eviction policy needs none
  std::unique_ptr<LearnedState> state_;          // null: nothing is kept
  EngineDevices devices_;                        // empty, as the next two, without devices
  std::unique_ptr<ExpertPlacement> placement_;
  std::unique_ptr<HostExperts> home_;
  std::unique_ptr<ExpertProvider> experts_;
  ReadHealth reads_;                 // of experts_
  SlotTable* slot_table_ = nullptr;  // of experts_, for steps of the dense part; may stay null
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvBlockPool> kv_pool_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<RequestTracer> tracer_;
  std::unique_ptr<RoutingRecorder> recorder_;  // null: not recorded
  std::unique_ptr<StepSampler> sampler_;
  std::vector<ScheduledSlice> slices_;  // of the running step
  StepRows rows_;
  std::vector<RoutingSlice> routing_slices_;
  std::vector<RecordedSlice> recorded_slices_;
  std::vector<StepRequest> step_requests_;

  std::thread thread_;
};

}  // namespace moesaic
