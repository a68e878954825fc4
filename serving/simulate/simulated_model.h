// SimulatedModel: a model of SimulateShared while it is loaded: its requests, the step that it
// runs, and the flow of its experts. Whoever owns it lends it processors and a link.
//
// One thread. Trace and clock must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/expert_grid.h"
#include "core/base/clock.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/link/expert_flow.h"
#include "prefetch/link/resizable_slots.h"
#include "prefetch/predict/predictor.h"
#include "prefetch/predict/step_predictor.h"
#include "serving/simulate/shared_simulator.h"

namespace moesaic {

class SimulatedModel final : public ResizableSlots {
 public:
  // `most_slots`: as many as SetSlots may give it; 0: the number stays.
  SimulatedModel(const SharedModel& model, const SharedOptions& options, int64_t slots,
                 int64_t most_slots, const CpuKernels& kernels, const Clock& clock);

  // --- requests
  // The `sequence`-th request of the model, `number` of all.
  void Add(size_t number, int64_t sequence, const SharedRequest& request);
  bool has_work() const { return !running_.empty() || !queue_.empty(); }

  // --- a step, while it has work
  bool in_step() const { return state_ != State::kResting; }
  bool blocked() const { return blocked_; }
  bool computes() const { return in_step() && !blocked_; }
  void BeginStep();
  // How long it computes from now on, with the processors to itself, until Go is due.
  double work_ns() const { return work_ns_; }
  void Work(double ns) { work_ns_ -= ns; }
  // What it computed has ended, or what a blocked layer waits for is there (`Ready`). Afterwards it
  // computes, is blocked, or the step is over: `ended` gets the requests that end with it.
  void Go(std::vector<size_t>& ended);
  bool Ready() const { return flow_->ready() || flow_->waiting() == 0; }

  // --- the link
  // Has experts from now on, as many as there are slots, as a server that has just started.
  void Fill();
  // Loads it as a whole: what it has besides experts, then experts, as many as there are slots.
  void BeginLoading();
  // When it begins to read; until then its link rests.
  int64_t reads_from_ns() const { return reads_from_ns_; }
  bool loading() const { return loading_; }
  struct Moving {
    uint64_t bytes = 0;
    std::optional<ExpertFlow::Packet> packet;  // nullopt: none of an expert
  };
  std::optional<Moving> NextPacket();
  void Arrived(const Moving& moved);

  // --- ResizableSlots
  SlotsInUse LookAtSlots(std::vector<uint32_t>& uses) const override;
  void SetSlots(int64_t slots) override;

  void CountInto(SharedResult::Model& result) const;

 private:
  int64_t Now() const { return clock_.NowNs(); }
  enum class State { kResting, kDense, kExperts };
  struct Running {
    size_t number = 0;
    const TraceSequence* sequence = nullptr;
    int64_t prompt_tokens = 0;
    int64_t tokens = 0;  // that it computes in all
    int64_t computed = 0;
    int64_t in_step = 0;
    int slot = -1;  // of the predictor; -1: it waits
  };

  int64_t TokenOf(const Running& request, int64_t position) const;
  void PlanStep();
  void OpenLayer();
  bool TakeReady();
  void EndStep(std::vector<size_t>& ended);
  void CloseSlots();
  std::vector<ExpertIndex> FirstExperts() const;

  const Clock& clock_;
  const SharedModel model_;
  const SharedOptions options_;
  const RoutingTrace& trace_;
  const PredictorShape shape_;
  const ExpertGrid grid_;
  const int32_t packets_;  // of an expert
  std::unique_ptr<Predictor> predictor_;
  std::unique_ptr<StepPredictor> step_predictor_;
  std::unique_ptr<ExpertFlow> flow_;

  std::deque<Running> queue_;
  std::vector<Running> running_;  // the oldest first
  std::vector<int> free_slots_;   // of the predictor
  std::vector<StepRequest> step_;

  State state_ = State::kResting;
  bool blocked_ = false;
  int64_t blocked_since_ns_ = 0;
  int layer_ = 0;
  double work_ns_ = 0;
  ExpertIndex computing_ = kNoExpert;
  std::vector<ExpertIndex> taken_;  // handed out and not computed, from next_ on
  size_t next_ = 0;

  bool loading_ = false;
  int64_t reads_from_ns_ = 0;
  uint64_t left_to_load_ = 0;  // bytes of what is no expert

  SharedResult::Model counted_;
  std::vector<int32_t> routed_;      // [rows, top_k]
  std::vector<ExpertIndex> needed_;  // distinct
};

}  // namespace moesaic
