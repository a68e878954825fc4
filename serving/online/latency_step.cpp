#include "serving/online/latency_step.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/logging.h"
#include "prefetch/link/device_experts.h"
#include "prefetch/link/expert_loader.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/host_dense.h"
#include "serving/model/numa_slices.h"

namespace moesaic {
namespace {

// Null without counts: what the step predictor finds worth least, or the least recently used
// without one.
std::unique_ptr<EvictionPolicy> MakePolicy(std::string_view name, const PolicyCounts* counts) {
  return counts != nullptr ? MakeCountingPolicy(name, *counts) : nullptr;
}

void LoadGates(const ModelConfig& config, const ModelWeights& weights, ThreadPool& pool,
               NextGate& gates) {
  std::vector<NextGate::Router> routers;
  for (int64_t l = 0; l < config.num_layers(); ++l) {
    if (!config.is_sparse(l)) continue;
    const LayerWeights& layer = weights.layers[static_cast<size_t>(l)];
    routers.push_back({.norm = layer.post_attention_norm,
                       .weights = layer.router,
                       .bias = layer.router_bias,
                       .correction = layer.router_correction,
                       .score = config.layer(l).experts().router.score,
                       .centred = config.layer(l).norm.centred});
  }
  gates.Load(routers, config.layers.front().norm.eps, pool);
}

// Of all experts, in slots.
uint64_t ExpertBytes(const ModelFiles& files) {
  return files.experts->layout().slot_bytes * static_cast<uint64_t>(GridOf(files.config).total());
}

// Until the model is ready.
uint64_t BytesToRead(const EngineOptions& options, const EnginePlan& plan,
                     const ModelFiles& files) {
  const uint64_t dense = ModelWeights::Bytes(files.config, plan.weight_type);
  if (!plan.devices.empty()) return dense + ExpertBytes(files);
  if (plan.share == ShareRole::kReads) return dense;
  const auto experts = static_cast<uint64_t>(
      options.preload ? std::min<int64_t>(plan.expert_slots, GridOf(files.config).total())
                      : std::ssize(plan.placed.kept));
  return dense + experts * files.experts->layout().slot_bytes;
}

// Where devices compute or add some later, there is one way.
StepWays WaysOf(const EngineOptions& options, const ModelConfig& config) {
  const bool one = options.devices.count > 0 || options.defer_experts > 0;
  return {one ? ModuleBatches::kOff : options.module_batches,
          {config.num_sparse_layers(), config.num_experts(), config.top_k()}};
}

}  // namespace

LatencyStep::LatencyStep(const EngineOptions& options, const EnginePlan& plan, ModelFiles files,
                         const CpuKernels& kernels, ThreadPool& pool,
                         const ExpertObservers& observers, std::function<void(bool)> on_wait,
                         LoadProgress* progress)
    : files_(std::move(files)),
      dense_devices_(plan.dense_devices),
      kept_(plan.placed.kept),
      prefill_(plan.prefill),
      module_batch_plan_(plan.module_batches),
      ways_(WaysOf(options, files_.config)) {
  const ModelConfig& config = files_.config;
  if (!plan.devices.empty()) {
    devices_ = BackendOf(options.devices.kind).Make(options.devices, plan.devices);
    LogInfo("{}", DeviceLedgerText(plan.devices));
  }
  if (progress != nullptr) progress->Expect(BytesToRead(options, plan, files_));
  // Before the experts: dense weights that go to devices are given back, and the experts' home has
  // their memory.
  ModelWeights weights =
      ModelWeights::Load(config, plan.weight_type, *files_.tensors, kernels, pool, progress);
  const ModelLimits limits = LimitsOf(options, plan);
  std::unique_ptr<DeviceDense> on_devices =
      MakeDense(options, devices_, plan.dense_devices, config, weights, limits);
  if (!plan.why_dense_on_host.empty()) {
    LogInfo("attention and all else that is dense stays on the CPU: {}", plan.why_dense_on_host);
  }
  if (observers.gates) LoadGates(config, weights, pool, *observers.gates);
  if (on_devices != nullptr) weights = {};
  MakeExperts(options, plan, pool, observers, std::move(on_wait));
  if (progress != nullptr && home_ != nullptr) progress->Read(ExpertBytes(files_));
  const ExpertLayout& layout = files_.experts->layout();
  std::unique_ptr<DensePart> dense;
  if (on_devices != nullptr) {
    if (slot_table_ != nullptr) on_devices->CaptureSteps(layout, *slot_table_);
    dense = std::move(on_devices);
  } else {
    dense = std::make_unique<HostDense>(config, std::move(weights), kernels, pool, limits);
  }
  model_ = std::make_unique<Model>(config, std::move(dense), layout, *experts_, kernels, pool,
                                   limits, MakeOperators(options, devices_, layout, config));
  if (prefill_.piece_tokens > 0) {
    layer_pass_ = std::make_unique<LayerPass>(*model_, prefill_.piece_tokens);
  }
  if (module_batch_plan_.tokens > 0) {
    module_batches_ = std::make_unique<LayerPass>(*model_, module_batch_plan_.tokens);
  }
}

void LatencyStep::MakeExperts(const EngineOptions& options, const EnginePlan& plan,
                              const ThreadPool& pool, const ExpertObservers& observers,
                              std::function<void(bool)> on_wait) {
  if (!plan.devices.empty()) {
    MakeDeviceExperts(options, plan, observers);
    return;
  }
  ExpertLoaderOptions loading = LoaderOptionsOf(options, plan.expert_budget_bytes);
  loading.step_predictor = observers.step_predictor.get();
  loading.on_wait = std::move(on_wait);
  loading.link_bytes_per_s = options.link_bytes_per_s;
  const std::vector<NodeStretch> stretches =
      SlotStretches(files_.experts->layout(), pool.node_ids());
  loading.slot_stretches = stretches;
  loading.kept = plan.placed.kept;
  loading.most_budget_bytes = plan.most_expert_bytes;
  if (plan.share != ShareRole::kNone) {
    pool_ = std::make_unique<SharedPool>(options, plan, files_, stretches);
    pool_->Prepare(loading);
  }
  auto loader = std::make_unique<ExpertLoader>(
      *files_.experts, static_cast<int>(files_.config.num_layers()),
      static_cast<int>(files_.config.num_experts()),
      MakePolicy(options.eviction_policy, observers.policy_counts.get()), loading);
  experts_ = pool_ == nullptr ? std::move(loader) : pool_->Share(std::move(loader));
}

void LatencyStep::MakeDeviceExperts(const EngineOptions& options, const EnginePlan& plan,
                                    const ExpertObservers& observers) {
  const ExpertGrid grid = GridOf(files_.config);
  const std::vector<Device*> devices = devices_.pointers();
  placement_ = std::make_unique<ExpertPlacement>(
      PlaceExperts(options.devices, files_.config, plan.placed.fixed));
  home_ = MakeHome(options, files_, *placement_, devices_);
  DeviceExpertsOptions loading;
  loading.miss = MissModeOf(options);
  for (const DevicePlan& device : plan.devices) loading.slots.push_back(device.slots);
  StartFromProfiles(options, files_.experts->layout(), loading);
  loading.step_predictor = observers.step_predictor.get();
  loading.make_policy = [name = options.eviction_policy, counts = observers.policy_counts.get()] {
    return MakePolicy(name, counts);
  };
  loading.looked_up = LooksUpExperts(plan);
  loading.kept = plan.placed.kept;
  auto experts = std::make_unique<DeviceExperts>(*home_, grid, *placement_, devices, loading);
  slot_table_ = experts->slot_table();
  experts_ = std::move(experts);
}

// Pinned experts come first, then `first`, then layer after layer. The most worthy is loaded last:
// to a policy that goes by age, it is the youngest.
uint64_t LatencyStep::Preload(const std::vector<ExpertId>& first, bool fill,
                              LoadProgress* progress) {
  const ModelConfig& config = files_.config;
  const ExpertGrid grid = GridOf(config);
  std::vector<ExpertId> experts;
  for (const ExpertIndex expert : kept_) experts.push_back(grid.Id(expert));
  if (fill) {
    const std::vector<ExpertId> all = AllExperts(config);
    experts.insert(experts.end(), first.begin(), first.end());
    experts.insert(experts.end(), all.begin(), all.end());
  }
  std::vector<uint8_t> seen(static_cast<size_t>(grid.total()), 0);
  std::erase_if(experts, [&](ExpertId id) {
    return std::exchange(seen[static_cast<size_t>(grid.Index(id))], uint8_t{1}) != 0;
  });
  if (home_ == nullptr) {
    const auto slots = static_cast<size_t>(experts_->slots());
    if (experts.size() > slots) experts.resize(slots);
    std::reverse(experts.begin(), experts.end());
  }  // else each device takes the first of its own
  const uint64_t slot_bytes = files_.experts->layout().slot_bytes;
  std::function<bool(int64_t)> tell;
  if (progress != nullptr && home_ == nullptr) {  // with devices it is their home that was read
    tell = [&, before = int64_t{0}](int64_t loaded) mutable {
      progress->Read(static_cast<uint64_t>(loaded - before) * slot_bytes);
      before = loaded;
      return true;
    };
  }
  return static_cast<uint64_t>(experts_->Preload(experts, tell)) * slot_bytes;
}

// Beside prompts that run layer after layer the order of need is theirs.
StepStats LatencyStep::Run(const ForwardBatch& batch, RoutingHook* hook) {
  const int64_t rows = std::ssize(batch.tokens);
  const bool decodes = rows == std::ssize(batch.slices);
  const bool by_layers = layer_pass_ != nullptr && layer_pass_->running();
  const bool as_module_batch =
      !by_layers && model_->runs_layers() &&
      ways_.AsModuleBatch(rows, decodes, changing_slots() < module_batch_plan_.changing);
  StepStats stats = Ran(model_->Forward(batch, hook, as_module_batch));
  if (!by_layers) ways_.Ran(as_module_batch, rows, decodes, stats);
  FetchOrder& order = as_module_batch ? whole_layers_ : foreseen_;
  ++order.steps;
  order.tokens += rows;
  order.total_us += stats.total_us;
  return stats;
}

// As many experts are missing as there are slots now.
bool LatencyStep::RunsByLayers(int64_t tokens) const {
  if (experts_->resizable_slots() == nullptr) return prefill_.ByLayers(tokens);
  PrefillPlan now = prefill_;
  now.slots = changing_slots();
  return now.ByLayers(tokens);
}

bool LatencyStep::RunsAsModuleBatch(int64_t tokens) const {
  return module_batch_plan_.Worth(tokens, changing_slots());
}

StepStats LatencyStep::RunBlock(LayerPass& pass) { return Ran(pass.RunBlock()); }

StepStats LatencyStep::Ran(StepStats stats) {
  if (pool_ != nullptr) pool_->Watch();
  if (stats.experts.bytes_read > 0) {
    if (!reads_.ready()) LogInfo("experts can be read again");
    reads_.Succeeded();
  }
  return stats;
}

EngineStep::AfterFailure LatencyStep::Failed(const Error& error) {
  const auto* unread = dynamic_cast<const ExpertError*>(&error);
  // With devices every expert was read when the engine started; what fails is a device.
  if (unread != nullptr && home_ == nullptr) reads_.Failed(*unread);
  return AfterFailure::kEndRequests;
}

// A layer of the one expert that failed.
void LatencyStep::TryReading() {
  const std::optional<ExpertId> expert = reads_.LastFailed();
  if (!expert) return;
  try {
    experts_->BeginLayer({&*expert, 1}, 1);
    std::vector<PinnedExpert> ready;
    while (experts_->NextReady(ready)) {
      for (const PinnedExpert& pinned : ready) experts_->Release(pinned);
      ready.clear();
    }
    reads_.Succeeded();
    LogInfo("experts can be read again");
  } catch (const ExpertError& error) {
    reads_.Failed(error);
  }
  experts_->EndLayer();
  experts_->StopPrefetching();
}

std::optional<Error> LatencyStep::LostDevice() const {
  for (int d = 0; d < dense_devices_; ++d) {
    if (auto lost = devices_.devices[static_cast<size_t>(d)]->lost()) return lost;
  }
  return std::nullopt;
}

EngineStep::Experts LatencyStep::experts() {
  experts_->Links(links_);
  return {experts_->slots(), experts_->resident(), experts_->devices(), links_, ways_.least_rows(),
          foreseen_,         whole_layers_};
}

}  // namespace moesaic
