#include "serving/online/engine_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/io/shared_memory.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/link/device_experts.h"
#include "prefetch/link/expert_loader.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/model.h"
#include "serving/model/weights.h"
#include "serving/online/dense_place.h"
#include "serving/online/device_plan.h"
#include "serving/online/engine_checks.h"
#include "serving/online/kv_plan.h"
#include "serving/online/kv_store_plan.h"
#include "serving/online/part_options.h"

namespace moesaic {
namespace {

// Of the memory that experts and the KV cache share: the rows of prompts that run layer after
// layer.
constexpr double kPieceShare = 0.02;

ShareRole RoleOf(const EngineOptions& options, const ModelFiles& files) {
  if (options.share_experts.empty()) return ShareRole::kNone;
  const bool fills = files.share != nullptr ? files.share->fills()
                                            : ShareClaim::Look(options.share_experts).fills();
  return fills ? ShareRole::kFills : ShareRole::kReads;
}

// Nothing is predicted when all experts fit and stay, or so few that none may be fetched ahead.
uint64_t PredictorBytes(const EngineOptions& options, const ModelConfig& config,
                        const EnginePlan& plan) {
  const bool all_stay =
      plan.most_expert_bytes == 0 && plan.expert_budget_bytes >= plan.all_experts_bytes;
  if (options.predictor == "none" || all_stay || !MayPrefetch(LinkSlots(plan), config.top_k())) {
    return 0;
  }
  const PredictorShape shape = PredictorShapeOf(options, config);
  const std::unique_ptr<NextGate> gates = MakeNextGate(options, config);
  return MakePredictor(options.predictor, shape, SelectKernels(), gates.get())->memory_bytes() +
         (gates != nullptr ? gates->memory_bytes() : 0);
}

// Names --memory, and of what would take less only what was given: what is chosen is as small as
// can be already.
[[noreturn]] void FailTooSmall(const EngineOptions& options, const EnginePlan& plan) {
  std::string lower;
  if (!plan.devices.empty()) {
    lower = "--device-memory (or leave --devices out: experts may stay on disk then), ";
  } else if (!options.expert_memory.is_auto()) {
    lower = "--expert-memory, ";
  }
  if (!options.kv_memory.is_auto()) lower += "--kv-memory, ";
  if (!plan.placed.kept.empty()) lower += "the number of pinned experts (--place), ";
  Fail(ErrorKind::kResourceExhausted,
       "the model needs {} but this process may use {} (--memory, or what the machine or its "
       "control group has): {} are missing; raise --memory, or lower {}--max-model-len or "
       "--max-num-batched-tokens{}",
       FormatBytes(plan.ledger.total_bytes()), FormatBytes(plan.ledger.limit_bytes),
       FormatBytes(plan.ledger.missing_bytes()), lower, LedgerLines(plan.ledger));
}

}  // namespace

EnginePlan PlanEngine(const EngineOptions& options) {
  return PlanEngine(options, OpenModelFiles(options));
}

EnginePlan PlanEngine(const EngineOptions& asked, const ModelFiles& files) {
  const ModelConfig& config = files.config;
  CheckEngineOptions(asked, config);
  CheckDenseMode(asked);
  const EngineOptions options = WithDenseByRules(asked, config);
  const WeightType type = ChooseWeightType(options);
  const WeightType kv_type = ChooseKvType(options);
  const CpuKernels& kernels = SelectKernels(type);
  const ExpertLayout& layout = files.experts->layout();
  const uint64_t machine_bytes =
      options.machine_memory_bytes > 0 ? options.machine_memory_bytes : UINT64_MAX;

  EnginePlan plan;
  plan.ledger.limit_bytes = machine_bytes;
  plan.weight_type = type;
  plan.step_cost = StepCostOf(config, type, kv_type, layout.blob_bytes);
  plan.slot_bytes = layout.slot_bytes;
  plan.all_experts_bytes =
      static_cast<uint64_t>(config.num_sparse_layers() * config.num_experts()) * layout.slot_bytes;

  if (options.devices.count == 0) {
    plan.most_expert_bytes = std::min(plan.all_experts_bytes, options.most_expert_bytes);
  }

  plan.kv_needs = KvNeedsOf(config);
  plan.placed = PlaceExpertsByRules(options, config);
  plan.share = RoleOf(options, files);
  const bool reads_shared = plan.share == ShareRole::kReads;
  if (reads_shared) plan.placed.kept.clear();
  const int64_t kept = std::ssize(plan.placed.kept);
  // What is not pinned needs a slot to come and go.
  const int64_t all_experts = config.num_sparse_layers() * config.num_experts();
  const int64_t least_slots = std::max<int64_t>(1, std::min(kept + 1, all_experts));
  const uint64_t least_bytes = static_cast<uint64_t>(least_slots) * layout.slot_bytes;

  const int64_t context = WantedContext(options, config);
  const uint64_t staging_bytes = ExpertLoader::StagingBytes(
      *files.experts, static_cast<int>(config.num_layers()), static_cast<int>(config.num_experts()),
      LoaderOptionsOf(options, plan.all_experts_bytes));
  uint64_t devices_host_bytes = 0;
  CheckDenseMode(options);
  if (options.devices.count > 0) {
    PlanWithDevices(options, config, layout, context, machine_bytes, plan);
    for (const DevicePlan& device : plan.devices) {
      plan.expert_budget_bytes += static_cast<uint64_t>(device.slots) * layout.slot_bytes;
    }
    devices_host_bytes = DevicesHostBytes(options, config, plan.devices) +
                         DenseHostBytes(config, LimitsOf(options, plan), plan.dense_devices);
    if (LooksUpExperts(plan)) {
      devices_host_bytes += DeviceExperts::TableBytes(GridOf(config));
    }
  }
  // Devices that have the dense part have its weights, which the host gives back when it has read
  // them.
  const bool dense_elsewhere = plan.dense_devices > 0;
  const uint64_t read_bytes = ModelWeights::Bytes(config, type);
  const uint64_t dense_bytes = dense_elsewhere ? 0 : read_bytes;
  ModelLimits limits = LimitsOf(options, plan);
  limits.max_context_tokens = context;
  const uint64_t workspace_bytes =
      Model::WorkspaceBytes(config, kernels, limits, options.threads, 1, dense_elsewhere) +
      static_cast<uint64_t>(limits.max_logit_rows + options.threads * 4) *
          static_cast<uint64_t>(config.vocab_size) * sizeof(float);
  // What is saved is in memory twice more: the copy of what was learned, and the file's bytes.
  const uint64_t copies = options.state_file.empty() ? 0 : 2;
  const uint64_t kv_store_bytes = dense_elsewhere ? 0 : KvStoreMemoryBytes(options, config);
  uint64_t fixed_bytes = kv_store_bytes + dense_bytes + workspace_bytes + staging_bytes +
                         kProcessBytes + options.request_bytes + options.grammar_bytes +
                         options.connection_bytes + (1 + copies) * options.replay_bytes;
  if (options.devices.count > 0) fixed_bytes += plan.all_experts_bytes + devices_host_bytes;
  uint64_t left = machine_bytes > fixed_bytes ? machine_bytes - fixed_bytes : 0;
  plan.state = PlanState(options, config, left);
  const uint64_t state_bytes =
      static_cast<uint64_t>(plan.state.slots()) * Model::StateSlotBytes(config);
  left -= std::min(left, state_bytes);
  KvPlan kv;  // none here where devices have it
  if (!dense_elsewhere) {
    kv = PlanKv(options, config, context, left, machine_bytes);
    plan.num_kv_blocks = kv.num_blocks;
    plan.most_kv_blocks = kv.most_blocks;
    plan.max_context_tokens = kv.max_context_tokens;
  }

  // Of shared memory as much as this process would make: what the other one has is not known yet.
  const auto slots_in_reach = [&] {
    uint64_t bytes = plan.expert_budget_bytes;
    if (reads_shared) {
      bytes = options.expert_memory.is_auto()
                  ? plan.all_experts_bytes
                  : options.expert_memory.BytesOf(plan.all_experts_bytes);
    }
    return static_cast<int64_t>(std::min(bytes, plan.all_experts_bytes) / layout.slot_bytes);
  };
  const auto plan_prefill = [&](uint64_t spare_bytes) {
    const auto share = static_cast<uint64_t>(static_cast<double>(left) * kPieceShare);
    plan.prefill = PlanPrefill(options, config, slots_in_reach(), kept, plan.max_context_tokens,
                               std::min(share, spare_bytes));
    plan.module_batches =
        PlanModuleBatches(options, config, kept, std::min(share, spare_bytes - plan.prefill.bytes));
  };
  if (!plan.devices.empty()) {
    plan.predictor_bytes = PredictorBytes(options, config, plan);
  } else if (reads_shared) {
    // Nothing is read ahead: what is worth it the other process reads.
    plan.expert_budget_bytes =
        static_cast<uint64_t>(std::min(2 * config.top_k(), all_experts)) * layout.slot_bytes;
    plan_prefill(left - std::min(left, kv.bytes + plan.expert_budget_bytes));
  } else if (options.expert_memory.is_auto()) {
    // What is there beyond all experts pays for the rest first.
    uint64_t free_bytes = left - std::min(left, kv.bytes);
    const auto expert_bytes = [&] { return std::min(plan.all_experts_bytes, free_bytes); };
    plan.expert_budget_bytes = expert_bytes();
    plan_prefill(free_bytes - std::min(free_bytes, least_bytes));
    free_bytes -= plan.prefill.bytes + plan.module_batches.bytes;
    plan.expert_budget_bytes = expert_bytes();
    plan.predictor_bytes = PredictorBytes(options, config, plan);
    // A small model's predictor may be as large as its experts: the memory is better theirs.
    if ((1 + copies) * plan.predictor_bytes > plan.expert_budget_bytes / 4 ||
        (1 + copies) * plan.predictor_bytes + least_bytes > free_bytes) {
      plan.predictor_bytes = 0;
    }
    free_bytes -= (1 + copies) * plan.predictor_bytes;
    plan.expert_budget_bytes = expert_bytes();
    plan.unused_bytes = free_bytes - plan.expert_budget_bytes;
  } else {
    plan.expert_budget_bytes =
        std::min(plan.all_experts_bytes, options.expert_memory.BytesOf(plan.all_experts_bytes));
    plan.predictor_bytes = PredictorBytes(options, config, plan);
    const uint64_t taken_bytes =
        kv.bytes + plan.expert_budget_bytes + (1 + copies) * plan.predictor_bytes;
    plan_prefill(left - std::min(left, taken_bytes));
  }
  plan.expert_slots = static_cast<int64_t>(plan.expert_budget_bytes / layout.slot_bytes);
  const uint64_t slots_bytes =
      static_cast<uint64_t>(std::max(least_slots, plan.expert_slots)) * layout.slot_bytes;
  const uint64_t kept_bytes = static_cast<uint64_t>(kept) * layout.slot_bytes;

  MemoryLedger& ledger = plan.ledger;
  if (!dense_elsewhere) ledger.Add("dense weights", dense_bytes);
  if (plan.devices.empty()) {
    if (kept > 0) ledger.Add("pinned experts", kept_bytes);
    const char* const name = plan.share == ShareRole::kNone    ? "expert cache"
                             : plan.share == ShareRole::kFills ? "shared expert cache"
                                                               : "own experts";
    ledger.Add(name, slots_bytes - kept_bytes);
  } else {
    ledger.Add("experts in host memory", plan.all_experts_bytes);
    ledger.Add(DevicesHostName(options.devices), devices_host_bytes);
  }
  ledger.Add("expert staging", staging_bytes);
  ledger.Add("predictor", plan.predictor_bytes);
  ledger.Add("KV cache", kv.bytes);
  if (kv_store_bytes > 0) ledger.Add("KV store", kv_store_bytes);
  if (state_bytes > 0) ledger.Add("recurrent state", state_bytes);
  ledger.Add("workspace", workspace_bytes);
  if (plan.prefill.bytes > 0) ledger.Add("prompts by layers", plan.prefill.bytes);
  if (plan.module_batches.bytes > 0) ledger.Add("module batches", plan.module_batches.bytes);
  ledger.Add("process", kProcessBytes);
  if (options.request_bytes > 0) ledger.Add("requests", options.request_bytes);
  if (options.connection_bytes > 0) ledger.Add("connections", options.connection_bytes);
  if (options.grammar_bytes > 0) ledger.Add("grammars", options.grammar_bytes);
  if (options.replay_bytes > 0) ledger.Add("replay", options.replay_bytes);
  const uint64_t saved_bytes = plan.predictor_bytes + options.replay_bytes;
  if (copies * saved_bytes > 0) ledger.Add("state to save", copies * saved_bytes);
  // Dense weights on their way to devices are read before the experts, into the memory that those,
  // their staging and the workspace will have.
  const uint64_t later_bytes = plan.all_experts_bytes + staging_bytes + workspace_bytes;
  if (dense_elsewhere && read_bytes > later_bytes) {
    ledger.Add("reading dense weights", read_bytes - later_bytes);
  }
  if (!ledger.fits()) FailTooSmall(options, plan);
  if (plan.expert_slots < 1 && kept == 0 && plan.devices.empty()) {
    Fail(ErrorKind::kResourceExhausted,
         "--expert-memory: {} hold no expert; one takes {} ({} experts take {})",
         FormatBytes(plan.expert_budget_bytes), FormatBytes(layout.slot_bytes), all_experts,
         FormatBytes(plan.all_experts_bytes));
  }
  if (plan.devices.empty() && plan.expert_slots < least_slots) {
    Fail(ErrorKind::kResourceExhausted,
         "--expert-memory: {} are too little: {} pinned experts (--place){} take {}; raise it or "
         "pin fewer{}",
         FormatBytes(plan.expert_budget_bytes), kept,
         kept < all_experts ? " and a slot for the others" : "", FormatBytes(least_bytes),
         LedgerLines(ledger));
  }
  return plan;
}

}  // namespace moesaic
