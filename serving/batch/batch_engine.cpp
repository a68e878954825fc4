#include "serving/batch/batch_engine.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/units.h"

namespace moesaic {

BatchEngine::BatchEngine(const EngineOptions& options, const BatchPlan& plan)
    : options_(options), plan_(plan) {
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

BatchEngine::~BatchEngine() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

SequenceContext BatchEngine::context() const {
  return {files_.config, *tokenizer_, eos_token_ids_, max_context_tokens()};
}

std::vector<RequestId> BatchEngine::Submit(std::vector<GenerationRequest> requests,
                                           std::vector<std::shared_ptr<OutputSink>> sinks) {
  CHECK_EQ(requests.size(), sinks.size());
  for (const GenerationRequest& request : requests) CheckRequest(request, context());
  if (draining_.load()) Fail(ErrorKind::kUnavailable, "the engine is shutting down");
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (size_t i = 0; i < requests.size(); ++i) {
    sequences.push_back(MakeSequence(std::move(requests[i]), std::move(sinks[i]), context()));
  }
  std::vector<RequestId> ids;
  const MutexLock lock(mutex_);
  for (auto& sequence : sequences) {
    sequence->id = ++last_id_;
    ids.push_back(sequence->id);
    inbox_.push_back(std::move(sequence));
  }
  wake_.NotifyAll();
  return ids;
}

void BatchEngine::Cancel(RequestId id) {
  const MutexLock lock(mutex_);
  cancels_.push_back(id);
  wake_.NotifyAll();
}

EngineStatus BatchEngine::Status() const {
  const MutexLock lock(mutex_);
  EngineStatus status = status_;
  status.waiting += static_cast<int64_t>(inbox_.size());
  status.draining = draining_.load();
  return status;
}

StepStats BatchEngine::Stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

int64_t BatchEngine::preemptions() const {
  const MutexLock lock(mutex_);
  return preemptions_;
}

void BatchEngine::Main(std::promise<void> ready) {
  pthread_setname_np(pthread_self(), "engine");
  try {
    Load();
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  ready.set_value();
  while (TakeInbox()) {
    Step();
    PublishStatus();
  }
  std::vector<Sequence*> left;
  scheduler_->ForEach([&](Sequence& sequence) { left.push_back(&sequence); });
  for (Sequence* sequence : left) End(*sequence, FinishReason::kCancelled);
}

void BatchEngine::Load() {
  const CpuKernels& kernels = SelectKernels();
  const BatchSizes& sizes = plan_.sizes;
  files_ = OpenModelFiles(options_, kernels);
  const ModelConfig& config = files_.config;
  defaults_ = LoadGenerationDefaults(options_.model_dir);
  eos_token_ids_ = defaults_.eos_token_ids.empty() ? config.eos_token_ids : defaults_.eos_token_ids;
  tokenizer_ = LoadTokenizerOf(options_, config);
  pool_ = std::make_unique<ThreadPool>(options_.threads, options_.pin_cpus);

  StreamingOptions streaming;
  streaming.slots = sizes.expert_slots;
  streaming.buffers = sizes.buffers;
  streaming.backend = options_.io_backend;
  streaming.packet_bytes = options_.packet_bytes;
  streaming.depth = options_.io_depth;
  streaming.timeline = &timeline_;
  experts_ =
      std::make_unique<StreamingExperts>(*files_.experts, static_cast<int>(config.num_layers),
                                         static_cast<int>(config.num_experts), streaming);
  model_ = std::make_unique<Model>(
      config,
      ModelWeights::Load(config, ChooseWeightType(options_), *files_.tensors, kernels, *pool_),
      files_.experts->layout(), *experts_, kernels, *pool_, LimitsOf(options_, sizes));
  kv_pool_ = std::make_unique<KvBlockPool>(sizes.num_kv_blocks, kKvBlockTokens);
  SchedulerOptions scheduling;
  scheduling.max_num_seqs = sizes.max_num_seqs;
  scheduling.max_batch_tokens = sizes.max_batch_tokens;
  scheduling.prefix_cache = options_.prefix_cache;
  scheduler_ = std::make_unique<Scheduler>(scheduling, *kv_pool_);
  sampler_ = std::make_unique<StepSampler>(*model_, kernels, *pool_);
  tokens_.reserve(static_cast<size_t>(sizes.max_batch_tokens));
  PublishStatus();
  LogInfo(
      "{}: batches of {} sequences and {} tokens a pass, {} tokens of KV cache; {} of {} experts "
      "stay in memory, {} buffers of {} for the others; {} on {} threads",
      config.architecture, sizes.max_num_seqs, sizes.max_batch_tokens,
      sizes.num_kv_blocks * kKvBlockTokens, sizes.expert_slots - sizes.buffers,
      config.num_sparse_layers() * config.num_experts, sizes.buffers, FormatBytes(plan_.slot_bytes),
      IsaName(kernels.isa), pool_->threads());
}

bool BatchEngine::TakeInbox() {
  std::vector<std::unique_ptr<Sequence>> arrived;
  std::vector<RequestId> cancelled;
  bool stop = false;
  {
    const MutexLock lock(mutex_);
    if (inbox_.empty() && scheduler_->empty()) {
      experts_->StopPrefetching();
      pass_end_ns_ = 0;
    }
    while (!stop_ && inbox_.empty() && cancels_.empty() && scheduler_->empty()) wake_.Wait(mutex_);
    arrived.swap(inbox_);
    cancelled.swap(cancels_);
    stop = stop_;
  }
  for (auto& sequence : arrived) scheduler_->Add(std::move(sequence));
  for (const RequestId id : cancelled) {
    if (Sequence* sequence = scheduler_->Find(id)) End(*sequence, FinishReason::kCancelled);
  }
  return !stop;
}

void BatchEngine::Step() {
  const std::span<const ScheduledSlice> plan = scheduler_->Plan();
  slices_.assign(plan.begin(), plan.end());
  if (slices_.empty()) return;
  try {
    RunPass();
  } catch (const Error& error) {
    // Which tokens the failure reached cannot be told apart from those that were done.
    LogError("a pass failed: {}", error.what());
    scheduler_->Abandon();
    for (const ScheduledSlice& slice : slices_) EndWithError(*slice.sequence, error);
    pass_end_ns_ = 0;
  }
}

void BatchEngine::RunPass() {
  tokens_.clear();
  model_slices_.clear();
  const auto now = std::chrono::steady_clock::now();
  for (const ScheduledSlice& scheduled : slices_) {
    Sequence& sequence = *scheduled.sequence;
    if (!sequence.started) {
      sequence.started = true;
      sequence.queue_us =
          std::chrono::duration_cast<std::chrono::microseconds>(now - sequence.arrival).count();
    }
    SequenceSlice slice;
    slice.first_row = static_cast<int64_t>(tokens_.size());
    slice.num_tokens = scheduled.num_tokens;
    slice.start_position = sequence.computed_tokens;
    slice.blocks = sequence.blocks;
    slice.request = static_cast<int32_t>(model_slices_.size());
    slice.prefill = sequence.computed_tokens < sequence.prompt_tokens;
    const auto first = sequence.tokens.begin() + sequence.computed_tokens;
    tokens_.insert(tokens_.end(), first, first + scheduled.num_tokens);
    model_slices_.push_back(slice);
  }
  if (pass_end_ns_ > 0) {
    timeline_.Add({Activity::kBetween, pass_end_ns_, clock_.NowNs(), -1, -1, 0});
  }
  experts_->StepBegan();
  const StepStats stats = model_->Forward({tokens_, model_slices_}, nullptr);
  experts_->StepEnded();
  AddStats(stats);  // before the tokens are delivered: who has the last one may ask

  const int64_t head_begin_ns = clock_.NowNs();
  for (size_t i = 0; i < slices_.size(); ++i) {
    sampler_->CollectPromptLogprobs(*slices_[i].sequence, model_slices_[i]);
  }
  scheduler_->Advance();
  SampleRows();
  pass_end_ns_ = clock_.NowNs();
  timeline_.Add({Activity::kHead, head_begin_ns, pass_end_ns_, -1, -1, 0});
  StepStats head;
  head.head_us = (pass_end_ns_ - head_begin_ns) / 1000;
  head.total_us = head.head_us;
  AddStats(head);
}

// Sequences whose last known token was computed get their next one.
void BatchEngine::SampleRows() {
  std::vector<Sequence*> sampling;
  std::vector<int32_t> rows;
  for (size_t i = 0; i < slices_.size(); ++i) {
    Sequence& sequence = *slices_[i].sequence;
    if (sequence.computed_tokens < static_cast<int64_t>(sequence.tokens.size())) continue;
    if (sequence.request.max_tokens <= 0) {
      End(sequence, FinishReason::kLength);
      continue;
    }
    sampling.push_back(&sequence);
    rows.push_back(
        static_cast<int32_t>(model_slices_[i].first_row + model_slices_[i].num_tokens - 1));
  }
  sampler_->Sample(sampling, rows, [&](Sequence& sequence, std::optional<GeneratedToken> token) {
    if (!token) {
      EndWithError(sequence,
                   Error(ErrorKind::kInternal,
                         "the model's logits are not finite; the checkpoint may be damaged"));
    } else if (const auto finish = AppendToken(sequence, std::move(*token))) {
      End(sequence, *finish);
    } else {
      sequence.sink->OnDelta(TakeDelta(sequence));
    }
  });
}

void BatchEngine::AddStats(const StepStats& stats) {
  const MutexLock lock(mutex_);
  stats_ += stats;
}

void BatchEngine::End(Sequence& sequence, FinishReason reason) {
  sequence.output->Finish();
  OutputDelta delta = TakeDelta(sequence);
  delta.finish = reason;
  const std::unique_ptr<Sequence> owned = scheduler_->Remove(&sequence);
  owned->sink->OnDelta(std::move(delta));
}

void BatchEngine::EndWithError(Sequence& sequence, const Error& error) {
  const std::unique_ptr<Sequence> owned = scheduler_->Remove(&sequence);
  owned->sink->OnError(error);
}

void BatchEngine::PublishStatus() {
  const int64_t resident = experts_->resident();
  const MutexLock lock(mutex_);
  status_.running = scheduler_->running();
  status_.waiting = scheduler_->waiting();
  status_.kv_usage =
      static_cast<double>(kv_pool_->used_blocks()) / static_cast<double>(kv_pool_->num_blocks());
  status_.expert_slots = experts_->slots();
  status_.experts_resident = resident;
  preemptions_ = scheduler_->preemptions();
}

}  // namespace moesaic
