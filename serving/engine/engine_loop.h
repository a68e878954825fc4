// EngineLoop: the Engine of this machine (engine.h has the contract). It takes requests, schedules
// them, has each step computed by an EngineStep, samples, delivers, and ends what ends.
//
// Threads: Submit, Cancel and the rest come from anywhere and meet the engine's thread in the
// mailbox; everything below "engine thread" belongs to that thread alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cache/kv_manager.h"
#include "core/base/clock.h"
#include "core/base/function_ref.h"
#include "core/base/mutex.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "serving/engine/engine.h"
#include "serving/engine/engine_mailbox.h"
#include "serving/engine/engine_metrics.h"
#include "serving/engine/engine_step.h"
#include "serving/engine/expert_use.h"
#include "serving/engine/give_way.h"
#include "serving/engine/link_meter.h"
#include "serving/engine/live_sampler.h"
#include "serving/engine/live_view.h"
#include "serving/engine/queue_places.h"
#include "serving/engine/request_experts.h"
#include "serving/engine/resizable_kv.h"
#include "serving/engine/scheduler.h"
#include "serving/engine/sequence.h"
#include "serving/engine/step_sampler.h"
#include "serving/engine/step_turns.h"
#include "serving/engine/stored_prefixes.h"
#include "serving/text/tokenizer.h"

namespace moesaic {

// How many blocks of keys and values there may be while it runs (resizable_kv.h).
struct KvSizes {
  uint64_t block_bytes = 0;
  int64_t slab_blocks = 1;
  int64_t least_blocks = 0;
  int64_t most_blocks = 0;  // 0: their number stays
};

// What a loop runs with. Members stay where they are while it does.
struct LoopParts {
  ModelConfig config;
  GenerationDefaults defaults;
  std::vector<int32_t> eos_token_ids;
  std::unique_ptr<Tokenizer> tokenizer;
  int64_t max_context_tokens = 0;

  // Sequences that were submitted and have not ended, before requests are refused.
  int64_t max_outstanding = std::numeric_limits<int64_t>::max();
  SchedulerOptions scheduling;
  KvNeeds kv_needs;
  int64_t num_kv_blocks = 0;  // as the model has them, at first
  KvSizes kv_sizes;
  // Where prefixes are kept beyond the pool; its memory is that of the step's model.
  std::optional<KvStoreOptions> kv_store;

  CpuKernels kernels;
  std::unique_ptr<ThreadPool> pool;
  std::vector<MemoryLedger> ledgers;  // for who looks on: the host's memory, then each device's
  std::unique_ptr<EngineMetrics> metrics;                          // null: none are published
  std::unique_ptr<ExpertUse> use = std::make_unique<ExpertUse>();  // outlives the step
  std::unique_ptr<EngineStep> step;
  std::unique_ptr<StepHead> head;  // of the model that steps run
  // While a piece (scheduler.h) runs and others decode, it has so much time between two steps, or
  // as much as the last step took if that is more: blocks begin until it is over. 0: one block.
  std::chrono::microseconds piece_turn{100'000};
  // Null: no other engine runs beside this one. Shared with what waits within a step.
  std::shared_ptr<StepTurns::Member> turn;
};

class EngineLoop : public Engine, public ResizableKv {
 public:
  // `load` fills in the parts on the engine's thread. Returns when they are there; rethrows what it
  // threw.
  explicit EngineLoop(std::function<void(LoopParts& parts)> load);
  ~EngineLoop() override;

  const ModelConfig& config() const override { return parts_.config; }
  const GenerationDefaults& generation_defaults() const override { return parts_.defaults; }
  const Tokenizer& tokenizer() const override { return *parts_.tokenizer; }
  int64_t max_context_tokens() const override { return parts_.max_context_tokens; }
  std::vector<RequestId> Submit(std::vector<EngineRequest> requests,
                                std::vector<std::shared_ptr<OutputSink>> sinks) override;
  void Cancel(RequestId id) override {
    mailbox_.Cancel(id);
    AskAgain();
  }
  void WithCollection(std::function<void(EamCollection*)> use) override {
    Post([this, use = std::move(use)] { parts_.use->WithCollection(use); });
  }
  void WithResidents(std::function<void(std::span<const ResidentExpert>)> use) override {
    Post([this, use = std::move(use)] { use(parts_.use->Residents()); });
  }
  void WithRequest(RequestId id, bool nearest,
                   std::function<void(std::shared_ptr<const RequestExperts>)> use) override {
    Post([=, this, use = std::move(use)] { use(ExpertsOf(id, nearest)); });
  }
  void BeginDrain() override { mailbox_.BeginDrain(); }
  EngineStatus Status() const override;
  StepStats Stats() const override { return mailbox_.Stats(); }
  LiveView* live() override { return &*live_; }
  ResizableSlots* resizable_slots() override { return parts_.step->resizable_slots(); }
  ResizableKv* resizable_kv() override { return parts_.kv_sizes.most_blocks > 0 ? this : nullptr; }
  KvInUse LookAtKv() override EXCLUDES(kv_mutex_);
  void SetKvBlocks(int64_t blocks) override EXCLUDES(kv_mutex_);

 private:
  SequenceContext context() const;
  void Post(std::function<void()> use) {
    mailbox_.PostUse(std::move(use));
    AskAgain();
  }
  // A step of a batch that waits for its turn does so no longer where there is something urgent.
  void AskAgain() {
    if (parts_.turn) parts_.turn->Ask();
  }

  // Engine thread.
  void Main(const std::function<void(LoopParts&)>& load, std::promise<void> ready);
  bool TakeMail();  // false: time to stop
  void OpenStore();
  void DropExpired();
  void RunStep(EngineStep& step);
  void RunInTurn(EngineStep& step);
  void FailSlices(EngineStep& step, const Error& error);
  void FillRows(std::span<const ScheduledSlice> slices);
  void Compute(EngineStep& step);
  RoutingHook* HookOf(std::span<const ScheduledSlice> slices);
  void Deliver(EngineStep& step);
  void Sample(EngineStep& step, int64_t begin_ns);
  void EndDisplaced();
  void BeginPiece(EngineStep& step);
  void BeginModuleBatch(EngineStep& step);
  void LookAfterLayers(EngineStep& step);
  void RunPiece(EngineStep& step);
  void RunModuleBatch(EngineStep& step);
  void PauseModuleBatch(EngineStep& step);
  void DeliverPiece(EngineStep& step);
  void DeliverModuleBatch(EngineStep& step);
  void LogPiece(const LayerPass& pass);
  void TellPieceProgress(const LayerPass& pass);
  int64_t PromptTokensLeft();
  bool InTurn(bool background, FunctionRef<void()> body);
  bool OthersCome() const;
  void AddStats(const StepStats& stats);
  void AddStats(const StepStats& stats, std::span<const ScheduledSlice> slices);
  void ReportReadability(const EngineStep& step);
  void End(Sequence& sequence, FinishReason reason);
  void EndWithError(Sequence& sequence, const Error& error);
  std::unique_ptr<Sequence> Remove(Sequence& sequence);
  void InitKv() EXCLUDES(kv_mutex_);
  void ResizeKv() EXCLUDES(kv_mutex_);
  void PublishKv() EXCLUDES(kv_mutex_);
  void PublishStatus();
  void SampleIfDue();
  std::shared_ptr<const RequestExperts> ExpertsOf(RequestId id, bool nearest);

  LoopParts parts_;
  EngineMailbox mailbox_;
  std::optional<QueuePlaces> places_;  // made with the parts

  std::optional<LiveView> live_;  // made with the parts

  // Engine thread.
  const SteadyClock clock_;
  std::optional<LiveSampler> sampling_;
  int64_t expert_slots_ = 0;
  LinkMeter link_meter_;
  std::optional<KvManager> kv_;
  std::optional<StoredPrefixes> stored_;  // none: prefixes end with the pool
  std::optional<Scheduler> scheduler_;
  bool waits_for_store_ = false;  // nothing could be planned, though there are sequences
  std::optional<StepSampler> sampler_;
  std::vector<ScheduledSlice> slices_;  // of the running step
  StepRows rows_;
  GiveWay give_way_{[this] { return OthersCome(); }};
  std::chrono::steady_clock::duration step_time_{};  // of the last one
  // What runs layer after layer: a piece, or a module batch.
  struct LayerRun {
    // In the order of its requests' numbers.
    struct Part {
      Sequence* sequence = nullptr;  // null: it has left
      RequestId id = 0;
      TracedRequest traced = -1;
      int64_t last_row = 0;
    };
    ExpertUse::Beside beside;
    std::vector<Part> parts = {};
    int64_t tokens = 0;
    bool empty() const { return parts.empty(); }
  };
  void Begin(LayerRun& run, LayerPass& pass, std::span<const ScheduledSlice> planned);
  void LookAfter(LayerRun& run, LayerPass* pass, std::span<const ScheduledSlice> there);
  void RunBlock(EngineStep& step, LayerPass& pass, const LayerRun& run,
                std::span<const ScheduledSlice> there);
  void ListLastRows(LayerRun& run, size_t count);

  LayerRun piece_{.beside = ExpertUse::Beside::kPiece};
  std::chrono::steady_clock::time_point piece_began_;
  std::chrono::steady_clock::time_point piece_logged_;
  LayerRun module_batch_{.beside = ExpertUse::Beside::kModuleBatch};
  bool module_batch_paused_ = false;
  std::vector<int32_t> last_rows_;

  // Of keys and values whose number changes: as it was looked at and is to be.
  Mutex kv_mutex_;
  KvInUse kv_now_ GUARDED_BY(kv_mutex_);
  int64_t kv_used_ GUARDED_BY(kv_mutex_) = 0;  // blocks, after the last step
  int64_t kv_wait_since_ns_ = 0;               // the engine thread's, as the next two
  int64_t kv_waited_ns_ = 0;
  int64_t kv_waiting_ = 0;  // sequences that wait for blocks alone, since then

  std::thread thread_;
};

}  // namespace moesaic
