#include "serving/online/local_engine.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/logging.h"
#include "core/base/units.h"
#include "kernels/cpu/product_choice.h"
#include "prefetch/link/device_experts.h"
#include "serving/model/expert_sources.h"
#include "serving/model/numa_slices.h"
#include "serving/online/engine_parts.h"

namespace moesaic {

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "unknown";
}

std::unique_ptr<Engine> CreateEngine(const EngineOptions& options, MetricsRegistry& metrics) {
  return CreateEngine(SetUpEngine(options), metrics);
}

std::unique_ptr<Engine> CreateEngine(EngineSetup setup, MetricsRegistry& metrics) {
  return std::make_unique<LocalEngine>(std::move(setup), metrics);
}

LocalEngine::LocalEngine(EngineSetup setup, MetricsRegistry& metrics)
    : options_(std::move(setup.options)),
      files_(std::move(setup.files)),
      plan_(std::move(setup.plan)),
      config_(files_.config),
      registry_(metrics),
      metrics_(metrics, options_.devices.count > 0) {
  std::promise<void> ready;
  std::future<void> loaded = ready.get_future();
  thread_ = std::thread([this, ready = std::move(ready)]() mutable { Main(std::move(ready)); });
  try {
    loaded.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

LocalEngine::~LocalEngine() {
  mailbox_.Stop();
  if (thread_.joinable()) thread_.join();
}

SequenceContext LocalEngine::context() const {
  return {config_, *tokenizer_, eos_token_ids_, max_context_tokens()};
}

// Devices may be asked from any thread, and an engine that has nothing to do does not ask.
EngineStatus LocalEngine::Status() const {
  EngineStatus status = mailbox_.Status();
  for (int d = 0; d < plan_.dense_devices && status.not_ready.empty(); ++d) {
    const std::optional<Error> lost = devices_.devices[static_cast<size_t>(d)]->lost();
    if (!lost) continue;
    status.not_ready = lost->what();
    status.not_ready_code = "device_lost";
  }
  return status;
}

std::vector<RequestId> LocalEngine::Submit(std::vector<EngineRequest> requests,
                                           std::vector<std::shared_ptr<OutputSink>> sinks) {
  CHECK_EQ(requests.size(), sinks.size());
  for (const EngineRequest& request : requests) CheckRequest(request, context());
  if (mailbox_.draining()) Fail(ErrorKind::kUnavailable, "the server is shutting down");
  // A request is taken when there is a place for one of its sequences; the others wait behind it,
  // in the order in which requests came, and get theirs as places become free. So one of more
  // sequences than there are places is served, too, and what waits beyond them is one request's.
  const auto count = static_cast<int64_t>(requests.size());
  const int64_t limit = options_.max_num_seqs + options_.max_queue;
  int64_t outstanding = outstanding_.load();
  do {
    if (outstanding >= limit) {
      Fail(ErrorKind::kUnavailable, "the request queue is full ({} of {}); try again later",
           outstanding, limit);
    }
  } while (!outstanding_.compare_exchange_weak(outstanding, outstanding + count));

  try {
    std::vector<std::unique_ptr<Sequence>> sequences;
    sequences.reserve(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      sequences.push_back(MakeSequence(std::move(requests[i]), std::move(sinks[i]), context()));
    }
    return mailbox_.Post(std::move(sequences));
  } catch (...) {
    outstanding_.fetch_sub(count);  // none of them is there to give its place back
    throw;
  }
}

void LocalEngine::Main(std::promise<void> ready) {
  pthread_setname_np(pthread_self(), "engine");
  try {
    Load();
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  ready.set_value();
  while (TakeMail()) {
    DropExpired();
    Step();
    PublishStatus();
    if (SaveDueAt() <= LearnedState::Clock::now()) state_->Save(experts_->Residents());
  }
  std::vector<Sequence*> left;
  scheduler_->ForEach([&](Sequence& sequence) { left.push_back(&sequence); });
  for (Sequence* sequence : left) End(*sequence, FinishReason::kCancelled);
  if (state_ != nullptr) state_->SaveAndClose(experts_->Residents());
}

void LocalEngine::Load() {
  if (!options_.state_file.empty()) CheckStatePlace(options_.state_file);
  const WeightType type = ChooseWeightType(options_);
  const CpuKernels& kernels = *files_.kernels;
  defaults_ = LoadGenerationDefaults(options_.model_dir);
  eos_token_ids_ =
      defaults_.eos_token_ids.empty() ? config_.eos_token_ids : defaults_.eos_token_ids;
  tokenizer_ = LoadTokenizerOf(options_, config_);
  pool_ = std::make_unique<ThreadPool>(options_.threads, options_.thread_layout);
  if (!options_.route_from.empty()) {
    replay_ = std::make_unique<RoutingReplay>(options_.route_from, config_);
  }
  MakePredictor();
  if (!plan_.devices.empty()) {
    devices_ = MakeDevices(options_.devices, plan_.devices);
    LogInfo("{}", DeviceLedgerText(plan_.devices));
  }
  // Before the experts: dense weights that go to devices are given back, and the experts' home has
  // their memory.
  ModelWeights weights = ModelWeights::Load(config_, type, *files_.tensors, kernels, *pool_);
  const ModelLimits limits = LimitsOf(options_, plan_);
  std::unique_ptr<DensePart> dense =
      MakeDense(options_, devices_, plan_.dense_devices, config_, weights, limits);
  if (!plan_.why_dense_on_host.empty()) {
    LogInfo("attention and all else that is dense stays on the CPU: {}", plan_.why_dense_on_host);
  }
  if (gates_) LoadGates(weights);
  if (dense != nullptr) weights = ModelWeights::Shapes(config_, type);
  MakeExperts();
  if (!options_.state_file.empty()) RestoreState();
  if (dense != nullptr && slot_table_ != nullptr) {
    dense->CaptureSteps(files_.experts->layout(), *slot_table_);
  }
  model_ = std::make_unique<Model>(
      config_, std::move(weights), files_.experts->layout(), *experts_, kernels, *pool_, limits,
      MakeOperators(options_, devices_, files_.experts->layout(), config_), std::move(dense));
  kv_pool_ = std::make_unique<KvBlockPool>(plan_.num_kv_blocks, kKvBlockTokens);
  SchedulerOptions scheduling;
  scheduling.max_num_seqs = options_.max_num_seqs;
  scheduling.max_batch_tokens = options_.max_num_batched_tokens;
  scheduling.prefix_cache = options_.prefix_cache;
  scheduling.share_only_prompts = options_.defer_experts > 0;
  scheduler_ = std::make_unique<Scheduler>(scheduling, *kv_pool_);
  tracer_ = std::make_unique<RequestTracer>(static_cast<int>(config_.num_layers),
                                            static_cast<int>(config_.num_experts),
                                            static_cast<int>(options_.max_num_seqs));
  if (!options_.record_trace.empty()) {
    recorder_ = std::make_unique<RoutingRecorder>(options_.record_trace, config_,
                                                  options_.model_dir.filename().string(),
                                                  limits.max_batch_tokens);
  }
  sampler_ = std::make_unique<StepSampler>(*model_, kernels, *pool_);
  rows_.tokens.reserve(static_cast<size_t>(limits.max_batch_tokens));
  if (options_.preload) Preload();
  PublishStatus();
  LogInfo(
      "{}: {} layers, {} experts each, {} of {} experts fit in {}; {} tokens of KV cache; {} on {} "
      "threads",
      config_.architecture, config_.num_layers, config_.num_experts, plan_.expert_slots,
      config_.num_sparse_layers() * config_.num_experts, FormatBytes(plan_.expert_budget_bytes),
      plan_.num_kv_blocks * kKvBlockTokens, IsaName(kernels.isa), pool_->threads());
}

void LocalEngine::MakePredictor() {
  if (plan_.predictor_bytes == 0 || !MayPrefetch(LinkSlots(plan_), config_.top_k)) return;
  const PredictorShape shape = PredictorShapeOf(options_, config_);
  gates_ = MakeNextGate(options_, config_);
  predictor_ = moesaic::MakePredictor(options_.predictor, shape, SelectKernels(), gates_.get());
  step_predictor_ = std::make_unique<StepPredictor>(
      shape, *predictor_, PrefetchOptions{},
      SparseLayers(*files_.experts, static_cast<int>(config_.num_layers)));
  recall_ = std::make_unique<RecallMeter>(shape);
}

void LocalEngine::MakeExperts() {
  const auto layers = static_cast<int>(config_.num_layers);
  if (!plan_.devices.empty()) {
    MakeDeviceExperts();
    return;
  }
  ExpertLoaderOptions options = LoaderOptionsOf(options_, plan_.expert_budget_bytes);
  options.step_predictor = step_predictor_.get();
  const std::vector<NodeStretch> stretches =
      SlotStretches(files_.experts->layout(), pool_->node_ids());
  options.slot_stretches = stretches;
  experts_ = std::make_unique<ExpertLoader>(
      *files_.experts, layers, static_cast<int>(config_.num_experts), MakePolicy(), options);
}

void LocalEngine::MakeDeviceExperts() {
  const ExpertGrid grid(static_cast<int>(config_.num_layers),
                        static_cast<int>(config_.num_experts));
  const std::vector<Device*> devices = devices_.pointers();
  placement_ = std::make_unique<ExpertPlacement>(PlaceExperts(options_.devices, config_));
  home_ = std::make_unique<HostExperts>(*files_.experts, grid, *placement_, devices,
                                        LoaderOptionsOf(options_, 0));
  if (const std::optional<Error> why = home_->why_not_pinned()) LogInfo("{}", why->what());
  DeviceExpertsOptions options;
  options.miss = MissModeOf(options_);
  for (const DevicePlan& device : plan_.devices) options.slots.push_back(device.slots);
  StartFromProfiles(options_, files_.experts->layout(), options);
  options.step_predictor = step_predictor_.get();
  options.make_policy = [this] { return MakePolicy(); };
  options.looked_up = LooksUpExperts(plan_);
  auto experts = std::make_unique<DeviceExperts>(*home_, grid, *placement_, devices, options);
  slot_table_ = experts->slot_table();
  experts_ = std::move(experts);
}

// Null: what the step predictor finds worth least, or the least recently used without one.
std::unique_ptr<EvictionPolicy> LocalEngine::MakePolicy() {
  const std::string& name = options_.eviction_policy;
  if (name == "auto" || name == "next-use") return nullptr;
  if (!policy_counts_) {
    policy_counts_ = std::make_unique<PolicyCounts>(
        ExpertGrid(static_cast<int>(config_.num_layers), static_cast<int>(config_.num_experts)));
  }
  return MakeCountingPolicy(name, *policy_counts_);
}

void LocalEngine::RestoreState() {
  std::vector<StateSection*> learned;
  if (predictor_ != nullptr) learned = predictor_->Sections();
  if (policy_counts_ != nullptr) learned.push_back(&policy_counts_->section());
  state_ = std::make_unique<LearnedState>(options_.state_file, options_.state_interval_s, config_,
                                          std::move(learned), registry_);
  state_->Restore();
}

void LocalEngine::LoadGates(const ModelWeights& weights) {
  std::vector<NextGate::Router> routers;
  for (const LayerWeights& layer : weights.layers) {
    if (layer.router.n > 0) routers.push_back({layer.post_attention_norm, layer.router});
  }
  gates_->Load(routers, config_.rms_norm_eps, *pool_);
}

// What the last process held comes first, then layer after layer. The most worthy is loaded last:
// to a policy that goes by age, it is the youngest.
void LocalEngine::Preload() {
  std::vector<ExpertId> experts;
  if (state_ != nullptr) experts = state_->LastResidents();
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    if (!config_.layer_is_sparse[static_cast<size_t>(layer)]) continue;
    for (int64_t index = 0; index < config_.num_experts; ++index) {
      ExpertId id;
      id.layer = static_cast<uint16_t>(layer);
      id.index = static_cast<uint16_t>(index);
      experts.push_back(id);
    }
  }
  std::vector<uint8_t> seen(static_cast<size_t>(config_.num_layers * config_.num_experts), 0);
  std::erase_if(experts, [&](ExpertId id) {
    const int64_t at = id.layer * config_.num_experts + id.index;
    return std::exchange(seen[static_cast<size_t>(at)], uint8_t{1}) != 0;
  });
  if (plan_.devices.empty()) {
    const auto slots = static_cast<size_t>(experts_->slots());
    if (experts.size() > slots) experts.resize(slots);
    std::reverse(experts.begin(), experts.end());
  }  // else each device takes the first of its own
  experts_->Preload(experts, nullptr);
}

LearnedState::Clock::time_point LocalEngine::SaveDueAt() const {
  if (state_ == nullptr) return LearnedState::Clock::time_point::max();
  return state_->DueAt().value_or(LearnedState::Clock::time_point::max());
}

bool LocalEngine::TakeMail() {
  EngineMailbox::Mail mail = mailbox_.Take(scheduler_->empty(), SaveDueAt());
  for (auto& sequence : mail.arrived) scheduler_->Add(std::move(sequence));
  for (const RequestId id : mail.cancelled) {
    if (Sequence* sequence = scheduler_->Find(id)) End(*sequence, FinishReason::kCancelled);
  }
  if (mail.asked_while_not_ready && scheduler_->empty()) TryReading();
  return !mail.stop;
}

// While the engine is not ready nobody may send requests, so that it has to find out by itself
// that reading works again: a layer of the one expert that failed.
void LocalEngine::TryReading() {
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
  mailbox_.SetNotReady(reads_.WhyNotReady(), "read_failed");
}

void LocalEngine::DropExpired() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<Sequence*> expired;
  scheduler_->ForEach([&](Sequence& sequence) {
    if (sequence.request.deadline && *sequence.request.deadline <= now)
      expired.push_back(&sequence);
  });
  for (Sequence* sequence : expired) {
    EndWithError(*sequence, Error(ErrorKind::kUnavailable, "the request's time ran out"));
  }
}

void LocalEngine::Step() {
  const std::span<const ScheduledSlice> plan = scheduler_->Plan();
  slices_.assign(plan.begin(), plan.end());
  if (slices_.empty()) return;
  try {
    RunPlan(slices_);
  } catch (const Error& error) {
    // Which tokens the failure reached cannot be told apart from those that were done: all of the
    // step's requests end, the others go on.
    LogError("step failed: {}", error.what());
    const auto* unread = dynamic_cast<const ExpertError*>(&error);
    // With devices every expert was read when the engine started; what fails is a device.
    if (unread != nullptr && plan_.devices.empty()) {
      reads_.Failed(*unread);
      mailbox_.SetNotReady(reads_.WhyNotReady(), "read_failed");
    }
    scheduler_->Abandon();
    for (const ScheduledSlice& slice : slices_) EndWithError(*slice.sequence, error);
  }
}

void LocalEngine::RunPlan(std::span<const ScheduledSlice> plan) {
  rows_.Clear();
  routing_slices_.clear();
  step_requests_.clear();
  const auto now = std::chrono::steady_clock::now();
  for (const ScheduledSlice& scheduled : plan) {
    Sequence& sequence = *scheduled.sequence;
    if (BeginSequence(sequence, now)) {
      sequence.traced = tracer_->Begin();
      if (step_predictor_) step_predictor_->BeginRequest(sequence.traced);
      if (policy_counts_) policy_counts_->BeginRequest(sequence.traced);
    }
    const SequenceSlice& slice = rows_.Add(scheduled);
    const int64_t end = sequence.computed_tokens + scheduled.num_tokens;
    const int64_t begin = std::max(sequence.computed_tokens, sequence.observed_tokens);
    if (begin >= end) continue;
    const int64_t first_row = slice.first_row + begin - sequence.computed_tokens;
    const int64_t rows = end - begin;
    routing_slices_.push_back({sequence.traced, first_row, rows, begin < sequence.prompt_tokens});
    step_requests_.push_back(
        {sequence.traced,
         rows == 1 ? sequence.tokens[static_cast<size_t>(begin)] : Predictor::kUnknownToken,
         first_row, rows});
    sequence.observed_tokens = end;
  }
  tracer_->BeginIteration(routing_slices_);
  if (recorder_ != nullptr) recorder_->BeginStep(static_cast<int64_t>(rows_.tokens.size()));
  if (policy_counts_) {
    for (const StepRequest& request : step_requests_) {
      policy_counts_->BeginIteration(request.request, request.num_rows);
    }
  }
  if (step_predictor_) {
    step_predictor_->BeginStep(step_requests_);
    recall_->BeginStep(rows_.tokens.size() == step_requests_.size());
    recall_->Predicted(-1, *step_predictor_);
    experts_->StepBegan();
  }
  StepStats stats = model_->Forward({rows_.tokens, rows_.slices}, this);
  stats.predict_us = std::exchange(predict_ns_, 0) / 1000;
  if (recall_) stats.recall = recall_->Take();
  AddStats(stats);  // before the tokens are delivered: who has the last one may ask
  if (stats.experts.bytes_read > 0) {
    if (!reads_.ready()) LogInfo("experts can be read again");
    reads_.Succeeded();
    mailbox_.SetNotReady({}, {});
  }
  if (recorder_ != nullptr) RecordStep(plan);
  const auto head_start = std::chrono::steady_clock::now();
  for (size_t i = 0; i < plan.size(); ++i) {
    sampler_->CollectPromptLogprobs(*plan[i].sequence, rows_.slices[i]);
  }
  scheduler_->Advance();

  sampler_->NextTokens(
      plan, rows_, [this](Sequence& sequence, FinishReason reason) { End(sequence, reason); },
      [this](Sequence& sequence, const Error& error) { EndWithError(sequence, error); });
  StepStats head;
  head.head_us = std::chrono::duration_cast<std::chrono::microseconds>(
                     std::chrono::steady_clock::now() - head_start)
                     .count();
  head.total_us = head.head_us;
  AddStats(head);
  if (state_ != nullptr) state_->Learned();
}

void LocalEngine::AddStats(const StepStats& stats) {
  metrics_.AddStep(stats);
  mailbox_.AddStats(stats);
}

void LocalEngine::RecordStep(std::span<const ScheduledSlice> plan) {
  recorded_slices_.clear();
  for (size_t i = 0; i < plan.size(); ++i) {
    const Sequence& sequence = *plan[i].sequence;
    const SequenceSlice& slice = rows_.slices[i];
    recorded_slices_.push_back({sequence.id, sequence.request.id, sequence.request.domain,
                                slice.first_row, slice.start_position, sequence.prompt_tokens,
                                std::span<const int32_t>(rows_.tokens)
                                    .subspan(static_cast<size_t>(slice.first_row),
                                             static_cast<size_t>(slice.num_tokens))});
  }
  recorder_->EndStep(recorded_slices_);
}

void LocalEngine::End(Sequence& sequence, FinishReason reason) {
  sequence.output->Finish();
  OutputDelta delta = TakeDelta(sequence);
  delta.finish = reason;
  if (sequence.started) {
    delta.trace = std::make_shared<const RequestTrace>(tracer_->trace(sequence.traced));
  }
  const std::unique_ptr<Sequence> owned = Remove(sequence);
  owned->sink->OnDelta(std::move(delta));
}

void LocalEngine::EndWithError(Sequence& sequence, const Error& error) {
  const std::unique_ptr<Sequence> owned = Remove(sequence);
  owned->sink->OnError(error);
}

std::unique_ptr<Sequence> LocalEngine::Remove(Sequence& sequence) {
  if (sequence.started) {
    tracer_->End(sequence.traced);
    if (policy_counts_) policy_counts_->EndRequest(sequence.traced);
    if (step_predictor_) {
      step_predictor_->EndRequest(sequence.traced);
      if (step_predictor_->idle()) experts_->StopPrefetching();
    }
  }
  if (recorder_ != nullptr) recorder_->EndRequest(sequence.id);
  outstanding_.fetch_sub(1);
  return scheduler_->Remove(&sequence);
}

void LocalEngine::PublishStatus() {
  metrics_.SetExperts(experts_->slots(), experts_->resident());
  metrics_.SetPreemptions(scheduler_->preemptions());
  metrics_.SetDevices(experts_->devices());
  mailbox_.Publish(*scheduler_, *kv_pool_, *experts_);
}

void LocalEngine::OnRouting(int64_t layer, const ForwardBatch& batch, std::span<int32_t> experts,
                            std::span<float> weights) {
  if (replay_ != nullptr) {
    const auto top_k = static_cast<size_t>(config_.top_k);
    for (const SequenceSlice& slice : batch.slices) {
      const Sequence& sequence = *slices_[static_cast<size_t>(slice.request)].sequence;
      for (int64_t i = 0; i < slice.num_tokens; ++i) {
        const auto first = static_cast<size_t>(slice.first_row + i) * top_k;
        replay_->Route(sequence.id, slice.start_position + i, layer, experts.subspan(first, top_k),
                       weights.subspan(first, top_k));
      }
    }
  }
  Routing routing;
  routing.layer = static_cast<int32_t>(layer);
  routing.top_k = static_cast<int32_t>(config_.top_k);
  routing.experts = experts;
  routing.weights = weights;
  routing.slices = routing_slices_;
  tracer_->Observe(routing);
  if (recorder_ != nullptr) recorder_->Observe(routing);
  if (policy_counts_) {
    policy_counts_->BeginLayer(static_cast<int>(layer));
    for (const StepRequest& request : step_requests_) {
      policy_counts_->Observe(request.request, request.Part(experts, config_.top_k));
    }
  }
  if (!step_predictor_) return;
  const auto start = std::chrono::steady_clock::now();
  const int number = step_predictor_->layers().number(static_cast<int>(layer));
  if (gates_) gates_->Look(number, step_requests_, model_->hidden());
  recall_->Used(number, experts);
  step_predictor_->OnRouting(static_cast<int>(layer), experts);
  recall_->Predicted(number, *step_predictor_);
  predict_ns_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
}

}  // namespace moesaic
