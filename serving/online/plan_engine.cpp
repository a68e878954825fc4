#include <algorithm>
#include <string>

#include "core/base/error.h"
#include "core/base/units.h"
#include "kernels/cpu/kernels.h"
#include "serving/model/dense_operator.h"
#include "serving/model/dense_shards.h"
#include "serving/model/expert_sources.h"
#include "serving/model/model.h"
#include "serving/model/weights.h"
#include "serving/online/create_engine.h"
#include "serving/online/engine_devices.h"
#include "serving/online/engine_parts.h"

namespace moesaic {
namespace {

// KV memory on `auto`: never more than this share of what dense weights and workspace leave,
// because the experts' cache is what the machine is short of.
constexpr double kKvShare = 0.25;

constexpr int64_t kDefaultContextTokens = 32768;

uint64_t TokensToKvBytes(const ModelConfig& config, WeightType kv_type, int64_t tokens) {
  const auto blocks = static_cast<uint64_t>((tokens + kKvBlockTokens - 1) / kKvBlockTokens);
  return CheckedMul(blocks, Model::KvBlockBytes(config, kv_type), "KV memory");
}

// Keys and values of `left_bytes`, which is what they share with the experts, in a memory of
// `whole_bytes`; at most `context` tokens a request. Sets what the plan says of them, and returns
// their bytes.
uint64_t PlanKv(const EngineOptions& options, const ModelConfig& config, int64_t context,
                uint64_t left_bytes, uint64_t whole_bytes, EnginePlan& plan) {
  const WeightType kv_type = ChooseKvType(options);
  const uint64_t block_bytes = Model::KvBlockBytes(config, kv_type);
  uint64_t kv_bytes = 0;
  if (options.kv_memory.is_auto()) {
    const uint64_t one_context = TokensToKvBytes(config, kv_type, context);
    const uint64_t all_contexts =
        CheckedMul(one_context, static_cast<uint64_t>(options.max_num_seqs), "KV");
    kv_bytes =
        std::min(all_contexts, static_cast<uint64_t>(static_cast<double>(left_bytes) * kKvShare));
    if (options.max_model_len > 0) kv_bytes = std::max(kv_bytes, one_context);
    // Where not even that is left the memory is too small, which the ledger says: no flag of the
    // cache's own would help.
    kv_bytes = std::max(kv_bytes, block_bytes);
  } else {
    kv_bytes = options.kv_memory.BytesOf(whole_bytes);
  }
  plan.num_kv_blocks = static_cast<int64_t>(kv_bytes / block_bytes);
  if (plan.num_kv_blocks < 1) {
    Fail(ErrorKind::kResourceExhausted,
         "--kv-memory: {} hold no KV block; one block of {} tokens takes {}", FormatBytes(kv_bytes),
         kKvBlockTokens, FormatBytes(block_bytes));
  }
  plan.max_context_tokens = std::min(context, plan.num_kv_blocks * kKvBlockTokens);
  if (options.max_model_len > plan.max_context_tokens) {
    Fail(ErrorKind::kResourceExhausted,
         "--max-model-len: {} tokens need {} of KV memory but --kv-memory gives {}", context,
         FormatBytes(TokensToKvBytes(config, kv_type, context)), FormatBytes(kv_bytes));
  }
  return static_cast<uint64_t>(plan.num_kv_blocks) * block_bytes;
}

// The dense part on the first `count` devices, whose memory it shares with the experts there.
// Throws as PlanDevices and the dense part do.
void PlanDenseOnDevices(const EngineOptions& options, const ModelConfig& config,
                        const ExpertLayout& layout, int64_t context, uint64_t machine_bytes,
                        int count, EnginePlan& plan) {
  const WeightType type = ChooseWeightType(options);
  if (count == 1) {
    DenseOperator::CheckSupported(config, type, ChooseKvType(options));
  } else {
    DenseShards::CheckSupported(config, type, ChooseKvType(options), count);
  }
  ModelLimits limits = LimitsOf(options, plan);
  limits.max_context_tokens = context;
  limits.num_kv_blocks = 1;
  const DenseLedger least = DenseLedgerOf(config, type, limits, count);
  std::vector<DevicePlan> without;
  if (!options.devices.memory.is_auto()) without = PlanDevices(options, config, layout);
  const bool emulated = options.devices.kind == DeviceKind::kEmulated;
  // Keys and values of all devices together: what they may be of, and what is left for them when
  // every device has its heads' share of them.
  uint64_t whole_bytes = 0;
  uint64_t left_bytes = UINT64_MAX;
  bool fits = true;
  for (int d = 0; d < count; ++d) {
    const auto device = static_cast<size_t>(d);
    uint64_t fixed_bytes = DeviceOperator::DeviceBytes(config, options.max_num_batched_tokens);
    for (const LedgerEntry& entry : least[device]) fixed_bytes += entry.bytes;
    if (!without.empty()) {
      fixed_bytes += static_cast<uint64_t>(without[device].slots) * layout.slot_bytes;
    }
    uint64_t limit_bytes = DeviceLimitBytes(options.devices, device);
    if (emulated) limit_bytes = std::min(limit_bytes, machine_bytes);
    fits = fits && limit_bytes >= fixed_bytes;
    whole_bytes += std::min(limit_bytes, UINT64_MAX - whole_bytes);
    const int64_t kv_heads = KvHeadSlice(config, count, d).count();
    if (kv_heads == 0) continue;
    const double of_all = static_cast<double>(limit_bytes - std::min(limit_bytes, fixed_bytes)) *
                          static_cast<double>(config.num_kv_heads) / static_cast<double>(kv_heads);
    if (of_all < static_cast<double>(left_bytes)) left_bytes = static_cast<uint64_t>(of_all);
  }
  if (emulated) whole_bytes = std::min(whole_bytes, machine_bytes);
  if (!fits && options.kv_memory.is_auto()) {
    PlanDevices(options, config, layout, least);  // says what is missing
  }
  PlanKv(options, config, context, left_bytes, whole_bytes, plan);
  plan.devices = PlanDevices(options, config, layout,
                             DenseLedgerOf(config, type, LimitsOf(options, plan), count));
  plan.dense_devices = count;
}

// The devices, and where the dense part is.
void PlanWithDevices(const EngineOptions& options, const ModelConfig& config,
                     const ExpertLayout& layout, int64_t context, uint64_t machine_bytes,
                     EnginePlan& plan) {
  const DenseMode mode = options.devices.dense;
  CheckDevices(options, config, layout);
  if (mode != DenseMode::kOff && KernelsOf(options.devices) != nullptr) {
    try {
      if (options.defer_experts > 0) {
        Fail(
            ErrorKind::kUnsupported,
            "--gpu-dense: --defer-experts {} is for a dense part on the CPU; leave one of them out",
            options.defer_experts);
      }
      EnginePlan with_dense = plan;
      PlanDenseOnDevices(options, config, layout, context, machine_bytes,
                         mode == DenseMode::kSharded ? options.devices.count : 1, with_dense);
      plan = std::move(with_dense);
      return;
    } catch (const Error& error) {
      const bool other_place =
          error.kind() == ErrorKind::kUnsupported || error.kind() == ErrorKind::kResourceExhausted;
      if (mode != DenseMode::kAuto || !other_place) throw;
      plan.why_dense_on_host = error.what();
    }
  }
  plan.devices = PlanDevices(options, config, layout);
}

// Nothing is predicted when all experts fit, or so few that none may be fetched ahead.
uint64_t PredictorBytes(const EngineOptions& options, const ModelConfig& config,
                        const EnginePlan& plan) {
  if (options.predictor == "none" || plan.expert_budget_bytes >= plan.all_experts_bytes ||
      !MayPrefetch(LinkSlots(plan), config.top_k)) {
    return 0;
  }
  const PredictorShape shape = PredictorShapeOf(options, config);
  const std::unique_ptr<NextGate> gates = MakeNextGate(options, config);
  return MakePredictor(options.predictor, shape, SelectKernels(), gates.get())->memory_bytes() +
         (gates != nullptr ? gates->memory_bytes() : 0);
}

void CheckDeferral(const EngineOptions& options, const ModelConfig& config) {
  if (options.defer_experts == 0) return;
  if (!options.exact_numerics) {
    Fail(ErrorKind::kInvalidArgument,
         "--defer-experts {}: with --numerics fast host and GPUs share the experts of a layer, "
         "which is not tried together; leave one of them out",
         options.defer_experts);
  }
  if (config.top_k <= 2) {
    Fail(ErrorKind::kInvalidArgument,
         "--defer-experts {}: this model takes {} expert{} for each token, and two at least are "
         "never deferred; leave it out",
         options.defer_experts, config.top_k, config.top_k == 1 ? "" : "s");
  }
}

// Names --memory, and of what would take less only what was given: what is chosen is as small as
// can be already.
[[noreturn]] void FailTooSmall(const EngineOptions& options, const EnginePlan& plan,
                               uint64_t machine_bytes) {
  std::string lower;
  if (!plan.devices.empty()) {
    lower = "--device-memory (or leave --devices out: experts may stay on disk then), ";
  } else if (!options.expert_memory.is_auto()) {
    lower = "--expert-memory, ";
  }
  if (!options.kv_memory.is_auto()) lower += "--kv-memory, ";
  std::string lines;
  for (const LedgerEntry& entry : plan.ledger) {
    lines += fmt::format("\n  {:<22} {:>12}", entry.name, FormatBytes(entry.bytes));
  }
  Fail(ErrorKind::kResourceExhausted,
       "the model needs {} but this process may use {} (--memory, or what the machine or its "
       "control group has): {} are missing; raise --memory, or lower {}--max-model-len or "
       "--max-num-batched-tokens{}",
       FormatBytes(plan.total_bytes), FormatBytes(machine_bytes),
       FormatBytes(plan.total_bytes - machine_bytes), lower, lines);
}

}  // namespace

WeightType ChooseWeightType(const EngineOptions& options) {
  return options.dtype.value_or(WeightType::kBf16);
}

WeightType ChooseKvType(const EngineOptions& options) {
  const bool exact = ChooseWeightType(options) == WeightType::kF32;
  return options.kv_cache_dtype.value_or(exact ? WeightType::kF32 : WeightType::kBf16);
}

ModelLimits LimitsOf(const EngineOptions& options, const EnginePlan& plan) {
  ModelLimits limits;
  limits.max_batch_tokens = options.max_num_batched_tokens;
  limits.max_context_tokens = plan.max_context_tokens;
  limits.num_kv_blocks = plan.num_kv_blocks;
  limits.kv_type = ChooseKvType(options);
  limits.max_logit_rows = std::min<int64_t>(options.max_num_batched_tokens, 64);
  limits.max_sequences = options.max_num_seqs;
  limits.defer_experts = options.defer_experts;
  return limits;
}

PredictorShape PredictorShapeOf(const EngineOptions& options, const ModelConfig& config) {
  return {static_cast<int>(config.num_sparse_layers()), static_cast<int>(config.num_experts),
          static_cast<int>(config.top_k), static_cast<int>(options.max_num_seqs)};
}

int64_t LinkSlots(const EnginePlan& plan) {
  int64_t slots = 0;
  for (const DevicePlan& device : plan.devices) slots = std::max(slots, device.slots);
  return plan.devices.empty() ? static_cast<int64_t>(plan.expert_budget_bytes / plan.slot_bytes)
                              : slots;
}

bool LooksUpExperts(const EnginePlan& plan) { return plan.dense_devices == 1; }

std::unique_ptr<NextGate> MakeNextGate(const EngineOptions& options, const ModelConfig& config) {
  if (options.gate_look_ahead <= 0 || !options.route_from.empty() ||
      (options.predictor != "blend" && options.predictor != "next-gate") ||
      config.num_sparse_layers() < 2 || config.num_experts <= config.top_k) {
    return nullptr;
  }
  return std::make_unique<NextGate>(PredictorShapeOf(options, config), config.hidden_size,
                                    options.gate_look_ahead, F32KernelsOf(SelectKernels()));
}

ExpertLoaderOptions LoaderOptionsOf(const EngineOptions& options, uint64_t budget_bytes) {
  ExpertLoaderOptions loader;
  loader.budget_bytes = budget_bytes;
  loader.backend = options.io_backend;
  loader.packet_bytes = options.packet_bytes;
  loader.depth = options.io_depth;
  loader.pack_threads = options.io_threads - 1;
  return loader;
}

ModelFiles OpenModelFiles(const EngineOptions& options, const CpuKernels& kernels) {
  ModelFiles files;
  files.config = LoadModelConfig(options.model_dir);
  const WeightType type = ChooseWeightType(options);
  if (options.load_format == LoadFormat::kDummy) {
    files.tensors = MakeDummyTensorSource(options.seed);
  } else {
    files.checkpoint = std::make_unique<Checkpoint>(Checkpoint::Open(options.model_dir));
    files.tensors = MakeCheckpointTensorSource(*files.checkpoint, files.config.fp8_blocks);
  }
  if (!options.expert_store.empty()) {
    files.experts = MakeStoreExpertSource(files.config, type, files.tensors->Fingerprint(),
                                          options.expert_store);
  } else if (files.checkpoint != nullptr) {
    files.experts = MakeCheckpointExpertSource(files.config, type, *files.checkpoint, kernels);
  } else {
    Fail(ErrorKind::kInvalidArgument,
         "--load-format dummy: random experts need a place on disk; write them with `moesaic pack "
         "--load-format dummy MODEL -o DIR` and give --expert-store DIR");
  }
  return files;
}

ModelFiles OpenModelFiles(const EngineOptions& options) {
  return OpenModelFiles(options, SelectKernels(ChooseWeightType(options)));
}

EnginePlan PlanEngine(const EngineOptions& options) {
  return PlanEngine(options, OpenModelFiles(options));
}

EnginePlan PlanEngine(const EngineOptions& options, const ModelFiles& files) {
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    Fail(ErrorKind::kInvalidArgument,
         "--max-num-batched-tokens ({}) is below --max-num-seqs ({}): a step could not give every "
         "running "
         "sequence its token; raise the first or lower the second",
         options.max_num_batched_tokens, options.max_num_seqs);
  }
  if (options.eviction_policy == "next-use" && options.predictor == "none") {
    Fail(ErrorKind::kInvalidArgument,
         "--eviction-policy next-use evicts by predictions: give --predictor, or use lru");
  }
  const ModelConfig& config = files.config;
  CheckDeferral(options, config);
  const WeightType type = ChooseWeightType(options);
  const WeightType kv_type = ChooseKvType(options);
  const CpuKernels& kernels = SelectKernels(type);
  const ExpertLayout& layout = files.experts->layout();
  const uint64_t machine_bytes =
      options.machine_memory_bytes > 0 ? options.machine_memory_bytes : UINT64_MAX;

  EnginePlan plan;
  plan.weight_type = type;
  plan.step_cost = StepCostOf(config, type, kv_type, layout.blob_bytes);
  plan.slot_bytes = layout.slot_bytes;
  plan.all_experts_bytes =
      static_cast<uint64_t>(config.num_sparse_layers() * config.num_experts) * layout.slot_bytes;

  // Context: what was asked for, or the model's, within what is sensible by default.
  int64_t context = options.max_model_len;
  if (context > config.max_position && config.rope.kind == RopeKind::kDefault) {
    Fail(ErrorKind::kInvalidArgument, "--max-model-len: {} is more than the model's {} positions",
         context, config.max_position);
  }
  if (context == 0) context = std::min(config.max_position, kDefaultContextTokens);

  const uint64_t staging_bytes = ExpertLoader::StagingBytes(
      *files.experts, static_cast<int>(config.num_layers), static_cast<int>(config.num_experts),
      LoaderOptionsOf(options, plan.all_experts_bytes));
  uint64_t devices_host_bytes = 0;
  CheckDenseMode(options.devices);
  if (options.devices.count > 0) {
    PlanWithDevices(options, config, layout, context, machine_bytes, plan);
    for (const DevicePlan& device : plan.devices) {
      plan.expert_budget_bytes += static_cast<uint64_t>(device.slots) * layout.slot_bytes;
    }
    devices_host_bytes = DevicesHostBytes(options, config, plan.devices) +
                         DenseHostBytes(config, LimitsOf(options, plan), plan.dense_devices);
    if (LooksUpExperts(plan)) {
      devices_host_bytes += DeviceExperts::TableBytes(
          ExpertGrid(static_cast<int>(config.num_layers), static_cast<int>(config.num_experts)));
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
  uint64_t fixed_bytes =
      dense_bytes + workspace_bytes + staging_bytes + kProcessBytes + options.request_bytes;
  if (options.devices.count > 0) fixed_bytes += plan.all_experts_bytes + devices_host_bytes;
  const uint64_t left = machine_bytes > fixed_bytes ? machine_bytes - fixed_bytes : 0;
  const uint64_t kv_bytes =
      dense_elsewhere ? 0 : PlanKv(options, config, context, left, machine_bytes, plan);

  // What is saved is in memory twice more: the copy of what was learned, and the file's bytes.
  const uint64_t copies = options.state_file.empty() ? 0 : 2;
  if (!plan.devices.empty()) {
    plan.predictor_bytes = PredictorBytes(options, config, plan);
  } else if (options.expert_memory.is_auto()) {
    plan.expert_budget_bytes =
        std::min(plan.all_experts_bytes, left > kv_bytes ? left - kv_bytes : 0);
    plan.predictor_bytes = PredictorBytes(options, config, plan);
    // A small model's predictor may be as large as its experts: the memory is better theirs.
    if ((1 + copies) * plan.predictor_bytes > plan.expert_budget_bytes / 4) {
      plan.predictor_bytes = 0;
    }
    plan.expert_budget_bytes -= (1 + copies) * plan.predictor_bytes;
  } else {
    plan.expert_budget_bytes =
        std::min(plan.all_experts_bytes, options.expert_memory.BytesOf(plan.all_experts_bytes));
    plan.predictor_bytes = PredictorBytes(options, config, plan);
  }
  plan.expert_slots = static_cast<int64_t>(plan.expert_budget_bytes / layout.slot_bytes);
  const uint64_t slots_bytes =
      std::max<uint64_t>(1, static_cast<uint64_t>(plan.expert_slots)) * layout.slot_bytes;

  if (!dense_elsewhere) plan.ledger.push_back({"dense weights", dense_bytes});
  if (plan.devices.empty()) {
    plan.ledger.push_back({"expert cache", slots_bytes});
  } else {
    plan.ledger.push_back({"experts in host memory", plan.all_experts_bytes});
    plan.ledger.push_back(
        {options.devices.kind == DeviceKind::kEmulated ? "emulated devices" : "staging of devices",
         devices_host_bytes});
  }
  plan.ledger.insert(plan.ledger.end(), {{"expert staging", staging_bytes},
                                         {"predictor", plan.predictor_bytes},
                                         {"KV cache", kv_bytes},
                                         {"workspace", workspace_bytes},
                                         {"process", kProcessBytes}});
  if (options.request_bytes > 0) plan.ledger.push_back({"requests", options.request_bytes});
  if (copies * plan.predictor_bytes > 0) {
    plan.ledger.push_back({"state to save", copies * plan.predictor_bytes});
  }
  for (const LedgerEntry& entry : plan.ledger) plan.total_bytes += entry.bytes;
  // Dense weights on their way to devices are read before the experts, into the memory that those,
  // their staging and the workspace will have.
  const uint64_t later_bytes = plan.all_experts_bytes + staging_bytes + workspace_bytes;
  if (dense_elsewhere && read_bytes > later_bytes) {
    plan.ledger.push_back({"reading dense weights", read_bytes - later_bytes});
    plan.total_bytes += plan.ledger.back().bytes;
  }
  if (plan.total_bytes > machine_bytes) FailTooSmall(options, plan, machine_bytes);
  if (plan.expert_slots < 1) {
    Fail(ErrorKind::kResourceExhausted,
         "--expert-memory: {} hold no expert; one takes {} ({} experts take {})",
         FormatBytes(plan.expert_budget_bytes), FormatBytes(layout.slot_bytes),
         config.num_sparse_layers() * config.num_experts, FormatBytes(plan.all_experts_bytes));
  }
  return plan;
}

}  // namespace moesaic
