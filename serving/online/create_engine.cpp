#include "serving/online/create_engine.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "core/config/kv_groups.h"
#include "serving/engine/engine_loop.h"
#include "serving/model/experts_of_model.h"
#include "serving/online/engine_parts.h"
#include "serving/online/kv_plan.h"
#include "serving/online/kv_store_plan.h"
#include "serving/online/latency_step.h"
#include "serving/online/part_options.h"

namespace moesaic {
namespace {

// Those that experts are fetched and evicted by, which are there before the experts.
ExpertObservers MakeObservers(const EngineOptions& options, const EnginePlan& plan,
                              const ModelFiles& files) {
  const ModelConfig& config = files.config;
  ExpertObservers observers;
  if (!options.route_from.empty()) {
    observers.replay = std::make_unique<RoutingReplay>(options.route_from, config);
  }
  if (plan.predictor_bytes > 0 && MayPrefetch(LinkSlots(plan), config.top_k())) {
    const PredictorShape shape = PredictorShapeOf(options, config);
    observers.gates = MakeNextGate(options, config);
    observers.predictor =
        MakePredictor(options.predictor, shape, SelectKernels(), observers.gates.get());
    observers.step_predictor = std::make_unique<StepPredictor>(
        shape, *observers.predictor, PrefetchOptions{},
        SparseLayers(*files.experts, static_cast<int>(config.num_layers())));
    observers.recall = std::make_unique<RecallMeter>(shape);
  }
  if (options.eviction_policy != "auto" && options.eviction_policy != "next-use") {
    observers.policy_counts = std::make_unique<PolicyCounts>(GridOf(config));
  }
  return observers;
}

// One request of the longest context has room in any case.
KvSizes KvSizesOf(const EngineOptions& options, const EnginePlan& plan, const ModelConfig& config) {
  if (plan.most_kv_blocks == 0) return {};
  const int64_t one = plan.kv_needs.Most(plan.max_context_tokens, options.max_num_batched_tokens);
  const int64_t slabs = (one + kKvSlabBlocks - 1) / kKvSlabBlocks;
  return {.block_bytes = Model::KvBlockBytes(config, ChooseKvType(options)),
          .slab_blocks = kKvSlabBlocks,
          .least_blocks = std::min(plan.num_kv_blocks, slabs * kKvSlabBlocks),
          .most_blocks = plan.most_kv_blocks};
}

// What a model with recurrent layers cannot do, or not as often.
void ScheduleState(const EngineOptions& options, const StatePlan& state,
                   SchedulerOptions& scheduling) {
  scheduling.state_slots = state.slots();
  scheduling.state_snapshots = state.snapshots;
  if (state.sequences < scheduling.max_num_seqs) {
    scheduling.max_num_seqs = state.sequences;
    LogInfo(
        "{} requests run at a time, not {} (--max-num-seqs): memory holds no more recurrent state",
        state.sequences, options.max_num_seqs);
  }
  if (scheduling.prefix_cache && state.snapshots == 0) {
    scheduling.prefix_cache = false;
    LogInfo(
        "prefixes are not reused: the state of this model's recurrent layers is not kept "
        "(--state-snapshots, or too little memory)");
  }
}

// Nothing where a model's prefixes cannot be kept.
std::optional<KvStoreOptions> StoreOf(const EngineOptions& options, const ModelConfig& config,
                                      const KvStoreShape& shape, const LoopParts& parts,
                                      Model& model) {
  const char* const setting = options.kv_store.empty() ? "--kv-store-memory" : "--kv-store";
  KvStoreOptions store = {.directory = options.kv_store,
                          .limit_bytes = options.kv_store_bytes,
                          .memory_bytes = options.kv_store_memory_bytes,
                          .key = shape.key,
                          .block_tokens = shape.block_tokens,
                          .memory = model.kv_memory(),
                          .groups = KvGroupsOf(config).count()};
  if (parts.kv_sizes.most_blocks == 0) store.pool_blocks = parts.num_kv_blocks;
  if (!parts.scheduling.prefix_cache) {
    LogWarn(
        "{}: no state of this model's recurrent layers is kept (--state-snapshots), and its keys "
        "and values serve nobody without one; nothing is kept",
        setting);
    return std::nullopt;
  }
  if (store.memory.layers.empty()) {
    LogWarn(
        "{}: keys and values are in a GPU's memory, from where they are not kept yet "
        "(--gpu-dense off leaves them to the host)",
        setting);
    return std::nullopt;
  }
  CHECK_EQ(store.memory.block_bytes(), shape.block_bytes);
  return store;
}

// Whoever waits for experts in its turn leaves the processors to others.
std::function<void(bool)> WaitNotice(const std::shared_ptr<StepTurns::Member>& turn) {
  if (turn == nullptr) return nullptr;
  return [turn](bool waits) { waits ? turn->Block() : turn->Resume(); };
}

void Load(EngineSetup& setup, MetricsRegistry& registry,
          const std::vector<std::shared_ptr<StateSection>>& kept,
          const std::shared_ptr<StepTurns::Member>& turn, const LoadProgress::Tell& on_progress,
          LoopParts& parts) {
  const EngineOptions& options = setup.options;
  const EnginePlan& plan = setup.plan;
  parts.metrics = std::make_unique<EngineMetrics>(registry, options.devices.count > 0);
  if (options.serves_batches) {
    const ModuleBatchPlan& lines = plan.module_batches;
    parts.metrics->SetModuleBatchSizes(lines.tokens, lines.sequences, lines.predicted_tokens_per_s);
  }
  if (!options.state_file.empty()) CheckStatePlace(options.state_file);
  if (!options.kv_store.empty()) CheckKvStorePlace(options.kv_store);
  FillParts(options, setup.files, parts);
  const ModelConfig& config = parts.config;
  parts.max_context_tokens = plan.max_context_tokens;
  parts.max_outstanding = options.max_num_seqs + options.max_queue;
  parts.kv_needs = plan.kv_needs;
  parts.num_kv_blocks = plan.num_kv_blocks;
  parts.kv_sizes = KvSizesOf(options, plan, config);
  parts.scheduling = {.max_num_seqs = options.max_num_seqs,
                      .max_batch_tokens = options.max_num_batched_tokens,
                      .prefix_cache = options.prefix_cache,
                      .share_only_prompts = options.defer_experts > 0,
                      .piece_tokens = plan.prefill.piece_tokens,
                      .module_batch_tokens = plan.module_batches.tokens,
                      .background_seqs = plan.module_batches.sequences};
  parts.piece_turn = std::chrono::milliseconds(options.prefill_turn_ms);
  parts.ledgers = {plan.ledger};
  for (const DevicePlan& device : plan.devices) parts.ledgers.push_back(device.ledger);
  if (plan.state.sequences > 0) ScheduleState(options, plan.state, parts.scheduling);

  ExpertObservers observers = MakeObservers(options, plan, setup.files);
  KvStoreShape store_shape;
  if (KeepsPrefixes(options)) {
    store_shape = KvStoreShapeOf(options, setup.files, plan.weight_type, plan.dense_devices);
  }
  LoadProgress progress(options.model, on_progress);
  auto step = std::make_unique<LatencyStep>(options, plan, std::move(setup.files), parts.kernels,
                                            *parts.pool, observers, WaitNotice(turn), &progress);
  parts.turn = turn;
  std::vector<ExpertId> held;
  if (!options.state_file.empty()) {
    observers.state = std::make_unique<LearnedState>(options.state_file, options.state_interval_s,
                                                     config, observers.Learned(), registry, kept);
    observers.state->Restore();
    held = observers.state->LastResidents();
  }
  observers.tracer = std::make_unique<RequestTracer>(
      static_cast<int>(config.num_layers()), static_cast<int>(config.num_experts()),
      static_cast<int>(options.max_num_seqs + plan.module_batches.sequences));
  if (!options.record_trace.empty()) {
    observers.recorder = std::make_unique<RoutingRecorder>(options.record_trace, config,
                                                           options.model_dir.filename().string(),
                                                           options.max_num_batched_tokens);
  }
  parts.metrics->AddPreload(step->Preload(held, options.preload, &progress));
  Model& model = step->model();
  parts.head = std::make_unique<ModelHead>(model);
  if (KeepsPrefixes(options)) {
    parts.kv_store = StoreOf(options, config, store_shape, parts, model);
  }
  parts.use = std::make_unique<ExpertUse>(std::move(observers), config.top_k(), step->provider(),
                                          [&model] { return model.hidden(); });
  parts.step = std::move(step);
  LogInfo(
      "{}: {} layers, {} experts each, {} of {} experts fit in {}{}; {} tokens of KV cache; {} on "
      "{} threads",
      config.architecture, config.num_layers(), config.num_experts(), plan.expert_slots,
      config.num_sparse_layers() * config.num_experts(), FormatBytes(plan.expert_budget_bytes),
      plan.share == ShareRole::kReads ? " beside the shared ones" : "",
      KvTokens(plan.kv_needs, plan.num_kv_blocks, options.max_num_batched_tokens),
      IsaName(parts.kernels.isa), parts.pool->threads());
}

}  // namespace

// An EngineLoop of LatencySteps, with what watches their experts.
std::unique_ptr<Engine> CreateEngine(const EngineOptions& options, MetricsRegistry& metrics) {
  return CreateEngine(SetUpEngine(options), metrics);
}

std::unique_ptr<Engine> CreateEngine(EngineSetup setup, MetricsRegistry& metrics,
                                     std::vector<std::shared_ptr<StateSection>> kept,
                                     std::shared_ptr<StepTurns::Member> turn,
                                     LoadProgress::Tell on_progress) {
  // Shared, because what loads can be copied.
  auto shared = std::make_shared<EngineSetup>(std::move(setup));
  return std::make_unique<EngineLoop>([shared, &metrics, kept = std::move(kept),
                                       turn = std::move(turn),
                                       on_progress = std::move(on_progress)](LoopParts& parts) {
    Load(*shared, metrics, kept, turn, on_progress, parts);
  });
}

}  // namespace moesaic
