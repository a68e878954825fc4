// LatencyStep: a step is one forward pass, whose experts come from a cache: of host memory, filled
// from disk, or of devices, filled from host memory (EngineStep has the contract).
//
// Owned by its EngineLoop.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/thread_pool.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/link/expert_placement.h"
#include "prefetch/link/expert_provider.h"
#include "prefetch/link/host_experts.h"
#include "serving/engine/engine_step.h"
#include "serving/engine/expert_use.h"
#include "serving/model/load_progress.h"
#include "serving/model/model.h"
#include "serving/online/create_engine.h"
#include "serving/online/engine_devices.h"
#include "serving/online/part_options.h"
#include "serving/online/read_health.h"
#include "serving/online/shared_pool.h"
#include "serving/online/step_ways.h"

namespace moesaic {

class LatencyStep final : public EngineStep {
 public:
  // Loads the model, and tells `progress` (may be null) of it. `observers` predict and count for
  // the caches of experts; their gates get the model's routers. kernels, pool and observers outlive
  // it. `on_wait`: see LinkOptions; without devices only.
  LatencyStep(const EngineOptions& options, const EnginePlan& plan, ModelFiles files,
              const CpuKernels& kernels, ThreadPool& pool, const ExpertObservers& observers,
              std::function<void(bool)> on_wait = nullptr, LoadProgress* progress = nullptr);

  // Loads what is pinned by rules, and (`fill`) fills free expert slots. `first`: the experts that
  // are wanted most, in descending order. Returns the bytes that were read.
  uint64_t Preload(const std::vector<ExpertId>& first, bool fill, LoadProgress* progress = nullptr);

  Model& model() { return *model_; }
  ExpertProvider& provider() { return *experts_; }

  StepStats Run(const ForwardBatch& batch, RoutingHook* hook) override;
  StepStats Unfinished() override { return model_->TakeUnfinished(); }
  LayerPass* layer_pass() override { return layer_pass_.get(); }
  bool RunsByLayers(int64_t tokens) const override;
  LayerPass* module_batches() override { return module_batches_.get(); }
  bool RunsAsModuleBatch(int64_t tokens) const override;
  StepStats RunBlock(LayerPass& pass) override;
  AfterFailure Failed(const Error& error) override;
  std::string WhyUnreadable() const override { return reads_.WhyNotReady(); }
  void TryReading() override;
  std::optional<Error> LostDevice() const override;
  void GiveBackKv(int64_t first_block) override { model_->GiveBackKv(first_block); }
  Experts experts() override;
  ResizableSlots* resizable_slots() override { return experts_->resizable_slots(); }

 private:
  void MakeExperts(const EngineOptions& options, const EnginePlan& plan, const ThreadPool& pool,
                   const ExpertObservers& observers, std::function<void(bool)> on_wait);
  void MakeDeviceExperts(const EngineOptions& options, const EnginePlan& plan,
                         const ExpertObservers& observers);
  StepStats Ran(StepStats stats);
  int64_t changing_slots() const { return experts_->slots() - std::ssize(kept_); }

  ModelFiles files_;
  std::vector<ReaderLink> links_;  // as experts() told them last
  const int dense_devices_;
  const std::vector<ExpertIndex> kept_;  // pinned by rules
  EngineDevices devices_;                // empty, as the next two, without devices
  std::unique_ptr<ExpertPlacement> placement_;
  std::unique_ptr<HostExperts> home_;
  std::unique_ptr<SharedPool> pool_;  // null: experts are not shared
  std::unique_ptr<ExpertProvider> experts_;
  SlotTable* slot_table_ = nullptr;  // of experts_, for steps of the dense part; may stay null
  ReadHealth reads_;                 // of experts_
  std::unique_ptr<Model> model_;
  const PrefillPlan prefill_;
  std::unique_ptr<LayerPass> layer_pass_;  // null: prompts run in chunks
  const ModuleBatchPlan module_batch_plan_;
  StepWays ways_;
  FetchOrder foreseen_;
  FetchOrder whole_layers_;
  std::unique_ptr<LayerPass> module_batches_;  // null: the background runs in steps
};

}  // namespace moesaic
