#include "serving/batch/batch_engine.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "kernels/cpu/product_choice.h"
#include "serving/batch/pass_groups.h"

namespace moesaic {

namespace {

// Of a pass, after a failure of the device that has the dense part, before its requests end.
constexpr int kDenseRetries = 2;

}  // namespace

BatchEngine::BatchEngine(BatchSetup setup)
    : options_(std::move(setup.options)),
      files_(std::move(setup.files)),
      plan_(std::move(setup.plan)) {
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
  mailbox_.Stop();
  if (thread_.joinable()) thread_.join();
}

SequenceContext BatchEngine::context() const {
  return {files_.config, *tokenizer_, eos_token_ids_, max_context_tokens()};
}

std::vector<RequestId> BatchEngine::Submit(std::vector<EngineRequest> requests,
                                           std::vector<std::shared_ptr<OutputSink>> sinks) {
  CHECK_EQ(requests.size(), sinks.size());
  for (const EngineRequest& request : requests) CheckRequest(request, context());
  if (mailbox_.draining()) Fail(ErrorKind::kUnavailable, "the engine is shutting down");
  std::vector<std::unique_ptr<Sequence>> sequences;
  sequences.reserve(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    sequences.push_back(MakeSequence(std::move(requests[i]), std::move(sinks[i]), context()));
  }
  return mailbox_.Post(std::move(sequences));
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
  while (TakeMail()) {
    Step();
    PublishStatus();
  }
  std::vector<Sequence*> left;
  scheduler_->ForEach([&](Sequence& sequence) { left.push_back(&sequence); });
  for (Sequence* sequence : left) End(*sequence, FinishReason::kCancelled);
}

void BatchEngine::Load() {
  const CpuKernels& kernels = *files_.kernels;
  const BatchSizes& sizes = plan_.sizes;
  const ModelConfig& config = files_.config;
  defaults_ = LoadGenerationDefaults(options_.model_dir);
  eos_token_ids_ = defaults_.eos_token_ids.empty() ? config.eos_token_ids : defaults_.eos_token_ids;
  tokenizer_ = LoadTokenizerOf(options_, config);
  pool_ = std::make_unique<ThreadPool>(options_.threads, options_.thread_layout);

  experts_ = std::make_unique<BatchExperts>(options_, plan_, files_, *pool_, timeline_);
  ModelWeights weights =
      ModelWeights::Load(config, ChooseWeightType(options_), *files_.tensors, kernels, *pool_);
  std::unique_ptr<DenseOperator> dense = experts_->MakeDense(options_, plan_, config, weights);
  model_ = std::make_unique<Model>(config, std::move(weights), files_.experts->layout(),
                                   experts_->TakePlaces(), kernels, *pool_,
                                   LimitsOf(options_, plan_), std::move(dense));
  model_->PopulateKvCache();  // it has room for the job, not more
  runner_ = std::make_unique<PassRunner>(*model_, *pool_, experts_->streams(),
                                         experts_->dense_device(), sizes.schedule, &timeline_);
  kv_pool_ = std::make_unique<KvBlockPool>(sizes.num_kv_blocks, kKvBlockTokens);
  SchedulerOptions scheduling;
  scheduling.max_num_seqs = sizes.max_num_seqs;
  scheduling.max_batch_tokens = sizes.max_batch_tokens;
  scheduling.prefix_cache = options_.prefix_cache;
  scheduler_ = std::make_unique<Scheduler>(scheduling, *kv_pool_);
  sampler_ = std::make_unique<StepSampler>(*model_, kernels, *pool_);
  rows_.tokens.reserve(static_cast<size_t>(sizes.max_batch_tokens));
  PublishStatus();
  LogInfo(
      "{}: batches of {} sequences and {} tokens a pass, {} tokens of KV cache; {} of {} experts "
      "stay in memory, {} buffers of {} for the others; {} on {} threads",
      config.architecture, sizes.max_num_seqs, sizes.max_batch_tokens,
      sizes.num_kv_blocks * kKvBlockTokens, plan_.residents(),
      config.num_sparse_layers() * config.num_experts, sizes.buffers, FormatBytes(plan_.slot_bytes),
      IsaName(kernels.isa), pool_->threads());
}

bool BatchEngine::TakeMail() {
  if (scheduler_->empty() && mailbox_.empty()) {
    experts_->StopPrefetching();
    pass_end_ns_ = 0;
  }
  EngineMailbox::Mail mail =
      mailbox_.Take(scheduler_->empty(), EngineMailbox::Clock::time_point::max());
  for (auto& sequence : mail.arrived) scheduler_->Add(std::move(sequence));
  for (const RequestId id : mail.cancelled) {
    if (Sequence* sequence = scheduler_->Find(id)) End(*sequence, FinishReason::kCancelled);
  }
  return !mail.stop;
}

void BatchEngine::Step() {
  const std::span<const ScheduledSlice> plan = scheduler_->Plan();
  slices_.assign(plan.begin(), plan.end());
  if (slices_.empty()) return;
  try {
    RunPass();
  } catch (const Error& error) {
    pass_end_ns_ = 0;
    const bool failed = model_->TakeDenseFailure();
    const bool lost = experts_->NoteLostDevices();
    if (lost && experts_->dense_lost()) model_->LoseDense();
    if (lost || (failed && ++dense_failures_ <= kDenseRetries)) {
      scheduler_->Abandon();  // planned again, and computed without what is lost
      return;
    }
    dense_failures_ = 0;
    // Which tokens the failure reached cannot be told apart from those that were done.
    LogError("a pass failed: {}", error.what());
    scheduler_->Abandon();
    for (const ScheduledSlice& slice : slices_) EndWithError(*slice.sequence, error);
  }
}

void BatchEngine::RunPass() {
  const std::vector<SliceRange> groups = GroupSlices(plan_.sizes.micro_batches, slices_);
  rows_.Clear();
  const auto now = std::chrono::steady_clock::now();
  for (const ScheduledSlice& scheduled : slices_) {
    BeginSequence(*scheduled.sequence, now);
    rows_.Add(scheduled);
  }
  if (pass_end_ns_ > 0) {
    timeline_.Add({Activity::kBetween, pass_end_ns_, clock_.NowNs(), -1, -1, 0});
  }
  const StepStats stats = runner_->Run({rows_.tokens, rows_.slices}, groups);
  dense_failures_ = 0;
  mailbox_.AddStats(stats);  // before the tokens are delivered: who has the last one may ask

  const int64_t head_begin_ns = clock_.NowNs();
  for (size_t i = 0; i < slices_.size(); ++i) {
    sampler_->CollectPromptLogprobs(*slices_[i].sequence, rows_.slices[i]);
  }
  scheduler_->Advance();
  sampler_->NextTokens(
      slices_, rows_, [this](Sequence& sequence, FinishReason reason) { End(sequence, reason); },
      [this](Sequence& sequence, const Error& error) { EndWithError(sequence, error); });
  pass_end_ns_ = clock_.NowNs();
  timeline_.Add({Activity::kHead, head_begin_ns, pass_end_ns_, -1, -1, 0});
  StepStats head;
  head.head_us = (pass_end_ns_ - head_begin_ns) / 1000;
  head.total_us = head.head_us;
  mailbox_.AddStats(head);
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
  mailbox_.Publish(*scheduler_, *kv_pool_, experts_->slots(), experts_->resident(),
                   experts_->devices());
  preemptions_.store(scheduler_->preemptions());
}

}  // namespace moesaic
