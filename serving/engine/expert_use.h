// ExpertUse: what watches the experts that an engine's requests use, and what is learned of them:
// the EAMs of each request, the recording of routing (or a recorded one in place of the model's),
// the prediction that experts are fetched by with the meter of its recall, the counts of eviction
// policies, and the state file that keeps what was learned.
//
// Owned by an EngineLoop, used by its thread. The threads of links read predictions and counts: it
// outlives the experts that it is given.
//
//   per step: BeginTrace(sequence) of each that runs; BeginStep; OnRouting of
//   each layer; EndStep, unless the step failed.  When a request ends: EndRequest(sequence).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/config/model_config.h"
#include "prefetch/evict/eviction_policies.h"
#include "prefetch/link/expert_provider.h"
#include "prefetch/predict/next_gate.h"
#include "prefetch/predict/predictor.h"
#include "prefetch/predict/recall_meter.h"
#include "prefetch/predict/step_predictor.h"
#include "serving/engine/learned_state.h"
#include "serving/engine/live_sampler.h"
#include "serving/engine/request_experts.h"
#include "serving/engine/routing_recorder.h"
#include "serving/engine/routing_replay.h"
#include "serving/engine/scheduler.h"
#include "serving/engine/sequence.h"
#include "serving/engine/step_sampler.h"
#include "serving/model/model.h"
#include "serving/model/step_stats.h"
#include "tracer/request_tracer.h"

namespace moesaic {

// All but the tracer may be null: not wanted.
struct ExpertObservers {
  std::unique_ptr<RequestTracer> tracer;  // gives requests the numbers that the others know them by
  std::unique_ptr<RoutingRecorder> recorder;
  std::unique_ptr<RoutingReplay> replay;
  std::unique_ptr<NextGate> gates;  // of the predictor
  std::unique_ptr<Predictor> predictor;
  std::unique_ptr<StepPredictor> step_predictor;  // with a predictor, as the meter
  std::unique_ptr<RecallMeter> recall;
  std::unique_ptr<PolicyCounts> policy_counts;
  std::unique_ptr<LearnedState> state;

  // What outlives the process.
  std::vector<StateSection*> Learned();
};

class ExpertUse final : private RoutingHook {
 public:
  using Clock = LearnedState::Clock;

  // Nobody watches.
  ExpertUse() = default;
  // `experts` is there as long as anything but the destructor is called. hidden: the residual
  // stream as the router of the layer that is observed sees it (Model::hidden); empty without
  // gates.
  ExpertUse(ExpertObservers observers, int64_t top_k, ExpertProvider& experts,
            std::function<const float*()> hidden);

  // A step is going to run the sequence for the first time.
  // Of a sequence that is in the step's plan, unless it has begun.
  void BeginTrace(Sequence& sequence);
  // Of one that gives up its place among those that run, which are as many as there are traces.
  // What it does later is another trace.
  void EndTrace(Sequence& sequence);
  // A step begins. What a preempted sequence computes again is not observed again. Both arguments
  // stay until the step has ended or failed.
  void BeginStep(std::span<const ScheduledSlice> plan, const StepRows& rows);
  // For the step, null when nobody watches: OnRouting of each layer.
  RoutingHook* hook() { return watches() ? this : nullptr; }
  // The step ran: adds what predicting cost, and how good it was.
  void EndStep(StepStats& stats);
  // Or it did not run to its end, and its positions are observed when they are run again: traces
  // do not have what it has shown of its first layers. (Predictors have learned of it.)
  void StepGaveWay();
  // Beside steps, what runs layer after layer (LayerPass): a piece, a module batch (scheduler.h) or
  // both, of sequences of which each is in no step meanwhile. One begins (both arguments as
  // BeginStep's, which may change then); the routing of a layer is known, [rows, top_k] of all of
  // its rows; it is over, whatever came of it. It replaces no routing and is not recorded:
  // observes_layers().
  enum class Beside { kPiece, kModuleBatch };
  void BeginBeside(Beside which, std::span<const ScheduledSlice> plan, const StepRows& rows);
  void RoutedBeside(Beside which, int64_t layer, std::span<const int32_t> experts,
                    std::span<const float> weights);
  // A sequence leaves before all layers have run: its positions are observed when they are run
  // again, as in StepGaveWay.
  void TakeBackBeside(Beside which, Sequence& sequence);
  // One of them (Sequence::traced) leaves, wherever it is: its rows are not run any more.
  void LeaveBeside(TracedRequest request);
  void EndBeside(Beside which);
  bool observes_layers() const { return !observers_.replay && !observers_.recorder; }
  // The sequence ends, wherever it is.
  void EndRequest(Sequence& sequence);
  // What it has used; null when that is not known.
  std::shared_ptr<const RequestTrace> TraceOf(const Sequence& sequence) const;

  // `sampler` (outlives it) counts the routing of layers; `sample` is called before each of them,
  // for samples in the middle of long steps.
  void SetLive(LiveSampler* sampler, std::function<void()> sample) {
    live_ = sampler;
    sample_ = std::move(sample);
  }
  const ExpertProvider* provider() const { return experts_; }

  // Between steps: with the entry of the predictor's collection that is nearest to it, if `nearest`
  // and there is one. `trace` is not null.
  std::shared_ptr<const RequestExperts> ExpertsOf(std::shared_ptr<const RequestTrace> trace,
                                                  bool nearest) const;

  // Between steps: what the predictor learns of whole requests, to be looked at or changed; null:
  // it learns otherwise, or there is none.
  void WithCollection(const std::function<void(EamCollection*)>& use);
  // Between steps: who is in fast memory. Empty when nobody watches.
  std::vector<ResidentExpert> Residents() const;

  // When the next SaveIfDue saves; max(): not before more is learned.
  Clock::time_point SaveDueAt() const;
  void SaveIfDue(Clock::time_point now);
  void SaveAndClose();

 private:
  bool watches() const { return observers_.tracer != nullptr; }
  void OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                 std::span<float> weights) override;
  bool OnlyWatches() const override { return observers_.replay == nullptr; }
  void Replay(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
              std::span<float> weights) const;
  void Predict(int layer, std::span<const int32_t> experts);

  ExpertObservers observers_;
  int64_t top_k_ = 0;
  ExpertProvider* experts_ = nullptr;  // null when nobody watches
  std::function<const float*()> hidden_;
  LiveSampler* live_ = nullptr;
  std::function<void()> sample_;

  struct RoutedSlice {
    RoutedExperts* routed = nullptr;
    int64_t position = 0;
    int64_t first_row = 0;
    int64_t num_rows = 0;
    TracedRequest request = -1;
  };
  // What is observed of a pass.
  struct Observed {
    std::vector<RoutingSlice> routing;
    std::vector<StepRequest> requests;
    std::vector<RoutedSlice> routed;                    // of requests that want to know
    std::vector<std::pair<Sequence*, int64_t>> begins;  // and from which position on
  };
  void Observe(std::span<const ScheduledSlice> plan, const StepRows& rows, Observed& observed);
  void ExpectRouted(Sequence& sequence, const RoutedSlice& slice, Observed& observed);
  void Count(int64_t layer, const Observed& observed, std::span<const int32_t> experts,
             std::span<const float> weights);

  // Of the running step.
  std::span<const ScheduledSlice> plan_;
  const StepRows* rows_ = nullptr;
  Observed step_;
  int64_t predict_ns_ = 0;
  std::array<Observed, 2> beside_;  // by Beside
  Observed& Of(Beside which) { return beside_[static_cast<size_t>(which)]; }
};

}  // namespace moesaic
