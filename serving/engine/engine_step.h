// EngineStep: how a step of an EngineLoop computes what the scheduler planned for it. LatencyStep
// (serving/online) runs one forward pass, PassStep (serving/batch) the tasks of a schedule; what
// comes before and behind that, and what becomes of the requests, is the loop's and the same.
//
// The loop takes the step that it is given each time anew, so that steps of several kinds may
// serve the same sequences.
//
// Thread contract: the loop's thread, but for LostDevice.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "prefetch/link/expert_provider.h"
#include "serving/engine/scheduler.h"
#include "serving/model/layer_pass.h"
#include "serving/model/model.h"
#include "serving/model/step_stats.h"

namespace moesaic {

class EngineStep {
 public:
  enum class AfterFailure { kEndRequests, kRunAgain };

  // Steps whose experts were fetched in one of two orders (StepWays), since the start.
  struct FetchOrder {
    int64_t steps = 0;
    int64_t tokens = 0;
    int64_t total_us = 0;
  };

  struct Experts {
    int64_t slots = 0;
    int64_t resident = 0;
    // Valid until the next call of anything.
    std::span<const DeviceStatus> devices;   // empty: none
    std::span<const ReaderLink> links = {};  // of several stores; empty: there is one
    // From so many rows on steps that decode are faster as module batches; 0: nowhere.
    int64_t module_batch_rows = 0;
    FetchOrder foreseen = {};
    FetchOrder whole_layers = {};
  };

  virtual ~EngineStep() = default;

  // Puts the slices of a plan into the order that Run wants their rows in.
  virtual void Arrange(std::vector<ScheduledSlice>& /*slices*/) {}
  // Runs all layers. `hook` may be null. Throws Error when that fails: the new positions of the
  // batch are then not usable, everything else is.
  virtual StepStats Run(const ForwardBatch& batch, RoutingHook* hook) = 0;
  // What the last Run has done that has thrown, once; it counts no step and no tokens.
  virtual StepStats Unfinished() { return {}; }
  // What runs prompts layer after layer, a block at a time, beside Run; null: this step does not.
  virtual LayerPass* layer_pass() { return nullptr; }
  // Whether prompts of so many tokens in all are predicted to read less so than by Run.
  virtual bool RunsByLayers(int64_t /*tokens*/) const { return false; }
  // What runs module batches (scheduler.h), beside all others; null: this step does not.
  virtual LayerPass* module_batches() { return nullptr; }
  // Whether so many tokens of the background are predicted to be done sooner so than by Run.
  virtual bool RunsAsModuleBatch(int64_t /*tokens*/) const { return false; }
  // LayerPass::RunBlock, of one of the two. What it throws goes to Failed.
  virtual StepStats RunBlock(LayerPass& pass) { return pass.RunBlock(); }
  // Logits were made and sampled, and the tokens delivered; in times of the steady clock.
  virtual void HeadRan(int64_t /*begin_ns*/, int64_t /*end_ns*/) {}
  // Run or the head threw. kRunAgain: the same sequences can be planned again, and will do better.
  virtual AfterFailure Failed(const Error& error) = 0;

  // Nothing runs and nothing waits.
  virtual void Idle() {}
  // Why no step can succeed: experts cannot be read. Empty: they can, as far as is known.
  virtual std::string WhyUnreadable() const { return {}; }
  // Finds out whether they can be read again. Called while nothing runs.
  virtual void TryReading() {}
  // Of a device without which no step can succeed. Any thread.
  virtual std::optional<Error> LostDevice() const { return std::nullopt; }

  // HostMixer::GiveBackKv.
  virtual void GiveBackKv(int64_t /*first_block*/) {}

  virtual Experts experts() = 0;
  // ExpertProvider::resizable_slots. Any thread.
  virtual ResizableSlots* resizable_slots() { return nullptr; }
};

}  // namespace moesaic
