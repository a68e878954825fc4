// SeveralModels: what `moesaic serve` has to do with more than one model: which the command line
// names, their memory, the registry that loads them.
//
// Owned by the command, made before its server and gone after it; one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/base/metrics.h"
#include "serving/cli/command_line.h"
#include "serving/engine/step_turns.h"
#include "serving/http/server.h"
#include "serving/multi/model_entry.h"
#include "serving/multi/model_registry.h"
#include "serving/startup/machine.h"

namespace moesaic {

// The models of --models, or of several arguments, checked together; empty: there is one model, or
// none. Throws Error(kInvalidArgument, kNotFound).
std::vector<ModelEntry> TakeSeveralModels(const CommandLine& line, const Settings& settings);

class SeveralModels {
 public:
  // machine and metrics outlive this.
  SeveralModels(std::vector<ModelEntry> entries, const Machine& machine, MetricsRegistry& metrics);

  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }

  // Plans the memory, less what is the server's own (`reserved_bytes`: requests, connections), and
  // begins to load; returns when every model that is to be there at start is there or has failed.
  // Throws Error (PlanModels), and when none is left that could be used.
  void Start(Server& server, uint64_t reserved_bytes);

  // Ends loading before the server goes, which is told of models till then.
  class Guard {
   public:
    explicit Guard(SeveralModels& models) : models_(models) {}
    ~Guard() {
      if (models_.registry_ != nullptr) models_.registry_->Stop();
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    SeveralModels& models_;
  };

 private:
  ServedModel Load(size_t model, uint64_t bytes, const ModelRegistry::Loading& loading);
  void ShowPools(const ExpertPools& pools);

  std::vector<ModelEntry> entries_;
  const Machine& machine_;
  MetricsRegistry& all_metrics_;
  std::vector<std::unique_ptr<MetricsRegistry>> metrics_;  // [models] with the model's name
  std::vector<ExpertPools::Held> shown_;                   // [models] in metrics; the registry's
  const SteadyClock clock_;
  // Shared by the engines.
  const std::shared_ptr<StepTurns> turns_ = std::make_shared<StepTurns>(clock_);
  std::unique_ptr<ModelRegistry> registry_;  // goes first
};

}  // namespace moesaic
