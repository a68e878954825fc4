// LiveSampler: makes the samples of a LiveView, out of what the engine's thread has anyway: the
// totals of its steps, its sequences, the experts' provider and the routing of its layers.
//
// While nobody watches, a layer and a step cost a look at an atomic each.
//
// Thread contract: the engine's thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_manager.h"
#include "prefetch/link/expert_provider.h"
#include "serving/engine/live_view.h"
#include "serving/engine/scheduler.h"
#include "serving/engine/sequence.h"
#include "tracer/request_tracer.h"

namespace moesaic {

class LiveSampler {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kInterval{250};
  static constexpr size_t kEndedRequests = 8;

  // `view` must outlive it.
  LiveSampler(LiveView& view, int64_t num_layers, int64_t num_experts, Clock::time_point now);

  // A step of so many tokens begins.
  void BeginStep(int64_t tokens);
  // Whether somebody watched when it began: its layers are to be counted.
  bool counting() const { return counts_; }
  // The routing of one of them. experts: [rows, top_k]
  void CountUse(int64_t layer, std::span<const int32_t> experts);
  // Since the last sample something has become different.
  void Changed() { changed_ = true; }
  // A request ends now. why: a FinishReasonName, or "error". trace: what it has used, or null
  void Ended(const Sequence& sequence, std::string why, Clock::time_point now,
             std::shared_ptr<const RequestTrace> trace = nullptr);
  // Of one that has ended and is still listed; null: there is none, or it has none.
  std::shared_ptr<const RequestTrace> TraceOf(RequestId id) const;

  // Whether a sample is to be made now, and when one will be if nothing else happens.
  bool Due(Clock::time_point now) const { return DueAt() <= now; }
  Clock::time_point DueAt() const;

  // What the engine's loop knows. provider: null: nobody knows where the experts are.
  struct State {
    Scheduler& scheduler;
    const KvManager& kv;
    const ExpertProvider* provider;
    StepStats totals;
    int64_t expert_slots = 0;
    std::string not_ready;
  };
  void Sample(const State& state, Clock::time_point now);

  // What is listed of a sequence that has not ended.
  static LiveRequest RequestOf(const Sequence& sequence, Clock::time_point now);

 private:
  struct EndedRequest {
    LiveRequest listed;
    std::shared_ptr<const RequestTrace> trace;  // shared with who asks for it
  };

  void CountLogged();
  void FillExperts(const State& state, LiveSample& sample);
  void FillUse(LiveSample& sample);

  LiveView& view_;
  const int64_t num_experts_;
  const size_t cells_;
  const Clock::time_point start_;
  Clock::time_point not_before_;
  bool counts_ = false;  // somebody watched when the running step began
  bool changed_ = true;
  int64_t tokens_ = 0;         // of the steps counted since the last sample
  std::vector<int32_t> uses_;  // [layers, experts] by these; empty before anybody watched
  // Cells that were used and are not in uses_ yet. A decode step writes here, in one place, rather
  // than into lines all over uses_ which the model's weights have driven out of the cache.
  std::vector<int32_t> logged_uses_;
  double weight_ = 0;                   // of the tokens in weighted_uses_
  std::vector<float> weighted_uses_;    // [layers, experts]
  std::vector<ExpertPresence> places_;  // [layers, experts] in the last sample
  std::deque<EndedRequest> ended_;      // newest last
};

}  // namespace moesaic
