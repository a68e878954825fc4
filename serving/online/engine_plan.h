// EnginePlan: what an engine's options come to, before anything is allocated: its memory, line by
// line, and the sizes that follow from it.
//
// Plain data and functions of their arguments.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/memory_ledger.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/step_cost.h"
#include "serving/online/engine_options.h"
#include "serving/online/kv_plan.h"
#include "serving/online/model_files.h"
#include "serving/online/module_batch_plan.h"
#include "serving/online/place_rules.h"
#include "serving/online/prefill_plan.h"

namespace moesaic {

// A device's part of the plan.
struct DevicePlan {
  int64_t experts = 0;  // that the placement gives it
  int64_t kept = 0;     // of these, pinned by rules
  int64_t slots = 0;
  MemoryLedger ledger;  // of its memory, within --gpu-memory
};

// Program text, libraries, stacks, tokenizer, allocator slack: measured as resident size of an idle
// server less its ledger (about 90 MiB with a 150,000-token vocabulary).
constexpr uint64_t kProcessBytes = uint64_t{96} << 20;

// Of a process whose experts are in memory that is shared.
enum class ShareRole {
  kNone,   // they are not
  kFills,  // it makes the memory, which its ledger has
  kReads,  // another process does; its ledger has the few experts of its own
};

struct EnginePlan {
  MemoryLedger ledger;               // of the host's memory, within --memory
  uint64_t expert_budget_bytes = 0;  // for slots
  uint64_t most_expert_bytes = 0;    // what that may become while the engine runs; 0: it stays
  uint64_t all_experts_bytes = 0;    // what 100% is
  uint64_t unused_bytes = 0;         // beyond all experts, with --expert-memory auto
  uint64_t slot_bytes = 0;
  int64_t expert_slots = 0;  // of all devices together, when there are any
  ShareRole share = ShareRole::kNone;
  PlacedExperts placed;             // by rules; those of the process that fills shared memory
  std::vector<DevicePlan> devices;  // empty: none
  int dense_devices = 0;            // that share the dense part, the first ones; 0: the host has it
  std::string why_dense_on_host;    // with DenseMode::kAuto, when it could not be; else empty
  uint64_t predictor_bytes = 0;     // 0: nothing is predicted
  PrefillPlan prefill;
  ModuleBatchPlan module_batches;
  KvNeeds kv_needs;
  int64_t num_kv_blocks = 0;   // of all groups of layers together
  int64_t most_kv_blocks = 0;  // what that may become while the engine runs; 0: it stays
  StatePlan state;
  int64_t max_context_tokens = 0;
  WeightType weight_type = WeightType::kBf16;
  StepCost step_cost;
};
// Throws Error(kResourceExhausted) that says how much is missing and which flag to change, and
// kInvalidArgument for options that exclude each other.
EnginePlan PlanEngine(const EngineOptions& options, const ModelFiles& files);
// Opens the files, too.
EnginePlan PlanEngine(const EngineOptions& options);

}  // namespace moesaic
