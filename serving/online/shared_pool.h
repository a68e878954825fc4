// SharedPool: the memory of experts that several processes of one machine have together
// (--share-experts), as an engine has it: the first process makes it, keeps its cache of experts
// there and reads from disk; the others compute with what they find in it, and read what they do
// not find into a few slots of their own.
//
// Owned by the engine's step; its experts go before it. Thread contract: its owner's.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cache/expert_grid.h"
#include "cache/shared_slots.h"
#include "core/device/numa_memory.h"
#include "core/io/shared_memory.h"
#include "prefetch/link/expert_loader.h"
#include "prefetch/link/expert_provider.h"
#include "serving/online/engine_options.h"
#include "serving/online/engine_plan.h"
#include "serving/online/model_files.h"

namespace moesaic {

// What processes must have alike to share experts: the checkpoint and config.json, and how the
// weights of an expert lie in its blob. Not their kernels: who computes what, and how, is each
// process's own.
std::string SharedPoolKey(const EngineOptions& options, const ModelFiles& files);

class SharedPool {
 public:
  // As the plan says (ShareRole). Another process waits here until the first one offers the memory.
  // `files` has the claim, outlives this. `stretches`: see LinkOptions. Throws Error as
  // SharedMemory and SharedMemoryView.
  SharedPool(const EngineOptions& options, const EnginePlan& plan, const ModelFiles& files,
             std::span<const NodeStretch> stretches);

  // Before the loader is made, and behind it: what the engine takes for its provider of experts.
  void Prepare(ExpertLoaderOptions& loading);
  std::unique_ptr<ExpertProvider> Share(std::unique_ptr<ExpertLoader> loader);

  // Between steps: says once when the process that fills the memory has ended.
  void Watch();

 private:
  const std::string name_;
  const std::string key_;
  const ExpertGrid grid_;
  // The first process's. The thread of the memory tells the slots who has ended, so that it goes
  // first.
  std::optional<SharedSlots> filled_;
  std::optional<SharedMemory> memory_;
  // Another one's.
  std::optional<SharedMemoryView> view_;
  uint64_t slot_bytes_ = 0;
  bool filler_lives_ = true;
};

}  // namespace moesaic
