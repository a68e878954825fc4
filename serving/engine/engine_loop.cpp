#include "serving/engine/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "serving/engine/prompt_progress.h"

namespace moesaic {
namespace {

// Of the log's lines on prompts that run layer after layer.
constexpr std::chrono::seconds kPieceLogInterval{10};

// What waits to be written when the engine ends has so long.
constexpr std::chrono::seconds kStoreAtEnd{10};

}  // namespace

EngineLoop::EngineLoop(std::function<void(LoopParts& parts)> load) {
  std::promise<void> ready;
  std::future<void> loaded = ready.get_future();
  thread_ = std::thread([this, load = std::move(load), ready = std::move(ready)]() mutable {
    Main(load, std::move(ready));
  });
  try {
    loaded.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

EngineLoop::~EngineLoop() {
  mailbox_.Stop();
  AskAgain();
  if (thread_.joinable()) thread_.join();
}

SequenceContext EngineLoop::context() const {
  return {parts_.config, *parts_.tokenizer, parts_.eos_token_ids, parts_.max_context_tokens};
}

// A device may be asked from any thread, and an engine that has nothing to do does not ask.
EngineStatus EngineLoop::Status() const {
  EngineStatus status = mailbox_.Status();
  if (!status.not_ready.empty()) return status;
  if (const std::optional<Error> lost = parts_.step->LostDevice()) {
    status.not_ready = lost->what();
    status.not_ready_code = "device_lost";
  }
  return status;
}

std::vector<RequestId> EngineLoop::Submit(std::vector<EngineRequest> requests,
                                          std::vector<std::shared_ptr<OutputSink>> sinks) {
  CHECK_EQ(requests.size(), sinks.size());
  for (const EngineRequest& request : requests) CheckRequest(request, context());
  if (mailbox_.draining()) Fail(ErrorKind::kUnavailable, "the server is shutting down");
  // A request is taken when there is a place for one of its sequences; the others wait behind it,
  // in the order in which requests came, and get theirs as places become free. So one of more
  // sequences than there are places is served, too, and what waits beyond them is one request's.
  // Who has a batch done bounds it himself.
  const std::string client = requests.empty() ? std::string() : requests.front().client;
  const auto count = std::count_if(requests.begin(), requests.end(),
                                   [](const auto& request) { return !request.background; });
  if (count > 0) places_->Take(client, count);
  try {
    std::vector<std::unique_ptr<Sequence>> sequences;
    sequences.reserve(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      CHECK(requests[i].client == client);
      sequences.push_back(MakeSequence(std::move(requests[i]), std::move(sinks[i]), context()));
    }
    std::vector<RequestId> ids = mailbox_.Post(std::move(sequences));
    if (count > 0) AskAgain();
    return ids;
  } catch (...) {
    // None of them is there to give its place back.
    if (count > 0) places_->GiveBack(client, count);
    throw;
  }
}

void EngineLoop::Main(const std::function<void(LoopParts&)>& load, std::promise<void> ready) {
  pthread_setname_np(pthread_self(), "engine");
  try {
    load(parts_);
    places_.emplace(parts_.max_outstanding);
    kv_.emplace(parts_.kv_needs, parts_.num_kv_blocks, parts_.kv_sizes.most_blocks);
    InitKv();
    if (parts_.kv_store) OpenStore();
    scheduler_.emplace(parts_.scheduling, *kv_, stored_ ? &*stored_ : nullptr);
    sampler_.emplace(*parts_.head, parts_.kernels, *parts_.pool);
    rows_.tokens.reserve(static_cast<size_t>(parts_.scheduling.max_batch_tokens));
    live_.emplace(std::move(parts_.ledgers), [this] { mailbox_.Wake(); });
    sampling_.emplace(*live_, parts_.config.num_layers(), parts_.config.num_experts(),
                      LiveSampler::Clock::now());
    parts_.use->SetLive(&*sampling_, [this] { SampleIfDue(); });
    PublishStatus();
    link_meter_.Look(parts_.step->experts());  // what a warm start has loaded is no request's
  } catch (...) {
    ready.set_exception(std::current_exception());
    return;
  }
  ready.set_value();
  while (TakeMail()) {
    DropExpired();
    ResizeKv();
    RunStep(*parts_.step);
    if (stored_) stored_->Pump();
    PublishKv();
    PublishStatus();
    SampleIfDue();
    parts_.use->SaveIfDue(ExpertUse::Clock::now());
  }
  std::vector<Sequence*> left;
  scheduler_->ForEach([&](Sequence& sequence) { left.push_back(&sequence); });
  for (Sequence* sequence : left) End(*sequence, FinishReason::kCancelled);
  if (stored_) stored_->Close(kStoreAtEnd);
  parts_.use->SaveAndClose();
}

// --- blocks of keys and values whose number changes

void EngineLoop::InitKv() {
  const KvSizes& sizes = parts_.kv_sizes;
  const MutexLock lock(kv_mutex_);
  kv_now_ = {.block_bytes = sizes.block_bytes,
             .slab_blocks = sizes.slab_blocks,
             .held = parts_.num_kv_blocks,
             .usable = parts_.num_kv_blocks,
             .least = sizes.least_blocks,
             .most = sizes.most_blocks};
  kv_wait_since_ns_ = clock_.NowNs();
}

KvInUse EngineLoop::LookAtKv() {
  const MutexLock lock(kv_mutex_);
  const KvInUse now = kv_now_;
  kv_now_.most_used = kv_used_;
  return now;
}

void EngineLoop::SetKvBlocks(int64_t blocks) {
  {
    const MutexLock lock(kv_mutex_);
    CHECK(kv_now_.least <= blocks && blocks <= kv_now_.most);
    CHECK_EQ(blocks % kv_now_.slab_blocks, 0);
    kv_now_.usable = blocks;
    // What may be written from now on counts from now on.
    kv_now_.held = std::max(kv_now_.held, blocks);
  }
  mailbox_.Wake();
}

// As it was asked for. What closes is given back in whole slabs from the end.
void EngineLoop::ResizeKv() {
  if (parts_.kv_sizes.most_blocks == 0) return;
  const int64_t slab = parts_.kv_sizes.slab_blocks;
  int64_t wanted = 0;
  int64_t held = 0;
  {
    const MutexLock lock(kv_mutex_);
    wanted = kv_now_.usable;
    held = kv_now_.held;
  }
  if (wanted != kv_->pool().num_blocks()) kv_->SetBlocks(wanted);
  const int64_t open = (kv_->pool().open_end() + slab - 1) / slab * slab;
  if (open >= held) return;
  parts_.step->GiveBackKv(open);
  const MutexLock lock(kv_mutex_);
  kv_now_.held = std::max(open, kv_now_.usable);
}

void EngineLoop::PublishKv() {
  if (parts_.kv_sizes.most_blocks == 0) return;
  const KvBlockPool& pool = kv_->pool();
  const int64_t now_ns = clock_.NowNs();
  kv_waited_ns_ += (now_ns - kv_wait_since_ns_) * kv_waiting_;
  kv_wait_since_ns_ = now_ns;
  kv_waiting_ = scheduler_->waiting_for_blocks();
  const MutexLock lock(kv_mutex_);
  kv_now_.running = scheduler_->running();
  kv_used_ = pool.used_blocks();
  kv_now_.most_used = std::max(kv_now_.most_used, kv_used_);
  kv_now_.revived = pool.counters().revived;
  kv_now_.waited_us = static_cast<uint64_t>(kv_waited_ns_ / 1000);
}

// A disk that fails costs the store.
void EngineLoop::OpenStore() {
  const KvStoreOptions& options = *parts_.kv_store;
  try {
    stored_.emplace(options, *kv_, [this] { mailbox_.Wake(); });
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kInvalidArgument) throw;
    LogWarn("keys and values are not kept: {}", error.what());
    return;
  }
  const KvStore& store = stored_->store();
  const KvStoreCounters counters = store.counters();
  LogInfo("{}: {} of keys and values ({} at most; {} in memory){}",
          options.directory.empty() ? "--kv-store-memory" : options.directory.string(),
          FormatBytes(counters.bytes),
          FormatBytes(static_cast<uint64_t>(store.slots()) * store.slot_bytes()),
          FormatBytes(static_cast<uint64_t>(store.frames()) * store.slot_bytes()),
          store.writable() ? "" : "; read only: another process writes there");
}

bool EngineLoop::TakeMail() {
  if (scheduler_->empty() && mailbox_.empty()) {
    if (parts_.turn) parts_.turn->Rest();
    parts_.step->Idle();
  }
  EngineMailbox::Mail mail = mailbox_.Take(scheduler_->empty() || waits_for_store_,
                                           std::min(parts_.use->SaveDueAt(), sampling_->DueAt()));
  for (auto& sequence : mail.arrived) scheduler_->Add(std::move(sequence));
  for (const RequestId id : mail.cancelled) {
    if (Sequence* sequence = scheduler_->Find(id)) End(*sequence, FinishReason::kCancelled);
  }
  for (const auto& use : mail.uses) use();
  // While experts cannot be read nobody may send requests, so that the engine has to find out by
  // itself when they can.
  if (mail.asked_while_not_ready && scheduler_->empty()) {
    parts_.step->TryReading();
    ReportReadability(*parts_.step);
  }
  return !mail.stop;
}

void EngineLoop::DropExpired() {
  const auto now = std::chrono::steady_clock::now();
  std::vector<Sequence*> expired;
  scheduler_->ForEach([&](Sequence& sequence) {
    if (sequence.request.deadline && *sequence.request.deadline <= now) {
      expired.push_back(&sequence);
    }
  });
  for (Sequence* sequence : expired) {
    EndWithError(*sequence, Error(ErrorKind::kUnavailable, "the request's time ran out"));
  }
}

void EngineLoop::RunStep(EngineStep& step) {
  LookAfterLayers(step);
  if (scheduler_->piece().empty()) BeginPiece(step);
  if (scheduler_->module_batch().empty()) BeginModuleBatch(step);
  const std::span<const ScheduledSlice> plan = scheduler_->Plan();
  EndDisplaced();
  LookAfterLayers(step);
  slices_.assign(plan.begin(), plan.end());
  const bool nothing = slices_.empty() && piece_.empty();
  waits_for_store_ = nothing && module_batch_.empty() && scheduler_->restoring() > 0;
  if (nothing && !module_batch_.empty()) return RunModuleBatch(step);
  if (nothing) {
    if (parts_.turn) parts_.turn->Rest();
    return;
  }
  if (!module_batch_.empty()) PauseModuleBatch(step);
  const bool others = !slices_.empty();
  if (others) {
    const auto begin = std::chrono::steady_clock::now();
    const bool background = slices_.front().sequence->request.background;
    if (background && parts_.turn) PublishStatus();  // it may have to wait for long
    if (!InTurn(background, [&] { RunInTurn(step); })) return scheduler_->Abandon();
    step_time_ = std::chrono::steady_clock::now() - begin;
  }
  LookAfterLayers(step);
  if (piece_.empty()) return;
  InTurn(false, [&] {
    const auto begin = std::chrono::steady_clock::now();
    const auto turn = std::max<std::chrono::steady_clock::duration>(parts_.piece_turn, step_time_);
    do {
      RunPiece(step);
    } while (others && !piece_.empty() && parts_.piece_turn.count() > 0 &&
             std::chrono::steady_clock::now() - begin < turn);
  });
}

// In a turn of the engine's, where several have some. False: one of the background was given up
// before it began, for something that is more urgent.
bool EngineLoop::InTurn(bool background, FunctionRef<void()> body) {
  if (!parts_.turn) {
    body();
    return true;
  }
  const std::optional<int64_t> waited_ns =
      background ? parts_.turn->BeginBackground([this] { return mailbox_.is_urgent(); })
                 : parts_.turn->Begin();
  if (!waited_ns) return false;
  if (parts_.metrics) parts_.metrics->AddTurn(*waited_ns, parts_.turn->used_ns());
  body();
  parts_.turn->End();
  return true;
}

// Throws nothing: what fails ends the step's requests.
void EngineLoop::RunInTurn(EngineStep& step) {
  try {
    Compute(step);
    Deliver(step);
  } catch (const StepGaveWay&) {
    AddStats(step.Unfinished(), slices_);
    parts_.use->StepGaveWay();
    scheduler_->GiveWay();
    if (parts_.metrics) parts_.metrics->AddGivenWay();
  } catch (const Error& error) {
    scheduler_->Abandon();
    FailSlices(step, error);
  }
}

// The requests of slices_.
void EngineLoop::FailSlices(EngineStep& step, const Error& error) {
  const bool again = step.Failed(error) == EngineStep::AfterFailure::kRunAgain;
  ReportReadability(step);
  if (again) return;
  // Which tokens the failure reached cannot be told apart from those that were done: all of the
  // step's requests end, the others go on.
  LogError("step failed: {}", error.what());
  for (const ScheduledSlice& slice : slices_) EndWithError(*slice.sequence, error);
}

// rows_ are those of these slices, whose sequences run from now on.
void EngineLoop::FillRows(std::span<const ScheduledSlice> slices) {
  rows_.Clear();
  const auto now = std::chrono::steady_clock::now();
  for (const ScheduledSlice& slice : slices) {
    BeginSequence(*slice.sequence, now);
    TellPromptProgress(*slice.sequence, slice.sequence->computed_tokens, true, now);
    parts_.use->BeginTrace(*slice.sequence);
    rows_.Add(slice);
  }
  sampling_->BeginStep(std::ssize(rows_.tokens));
}

void EngineLoop::Compute(EngineStep& step) {
  step.Arrange(slices_);
  FillRows(slices_);
  parts_.use->BeginStep(slices_, rows_);
  StepStats stats = step.Run({rows_.tokens, rows_.slices}, HookOf(slices_));
  parts_.use->EndStep(stats);
  AddStats(stats, slices_);  // before the tokens are delivered: who has the last one may ask
  ReportReadability(step);
}

// For whom a step of the background makes way: this engine's requests and other engines'.
bool EngineLoop::OthersCome() const {
  return mailbox_.has_foreground() || (parts_.turn && parts_.turn->OthersCome());
}

// A step is of one kind, of the background or of others (Scheduler). One of a single token runs to
// its end: where others come all the time, a batch still goes on.
RoutingHook* EngineLoop::HookOf(std::span<const ScheduledSlice> slices) {
  RoutingHook* const hook = parts_.use->hook();
  const bool may_end = scheduler_->may_give_way() && rows_.tokens.size() > 1 &&
                       slices.front().sequence->request.background;
  return may_end ? give_way_.Around(hook) : hook;
}

void EngineLoop::Deliver(EngineStep& step) {
  const int64_t begin_ns = clock_.NowNs();
  for (size_t i = 0; i < slices_.size(); ++i) {
    sampler_->CollectPromptLogprobs(*slices_[i].sequence, rows_.slices[i]);
  }
  scheduler_->Advance();
  const auto now = std::chrono::steady_clock::now();
  for (const ScheduledSlice& slice : slices_) {
    TellPromptProgress(*slice.sequence, slice.sequence->computed_tokens, true, now);
    LogPromptProgress(*slice.sequence, now);
  }
  Sample(step, begin_ns);
}

// Of what slices_ and rows_ name. Its time counts from begin_ns on.
void EngineLoop::Sample(EngineStep& step, int64_t begin_ns) {
  sampler_->NextTokens(
      slices_, rows_, [this](Sequence& sequence, FinishReason reason) { End(sequence, reason); },
      [this](Sequence& sequence, const Error& error) { EndWithError(sequence, error); });
  const int64_t end_ns = clock_.NowNs();
  step.HeadRan(begin_ns, end_ns);
  sampling_->Changed();
  StepStats head;
  head.head_us = (end_ns - begin_ns) / 1000;
  head.total_us = head.head_us;
  AddStats(head);
}

void EngineLoop::EndDisplaced() {
  for (Sequence* const displaced : scheduler_->displaced()) parts_.use->EndTrace(*displaced);
}

// Begins one, if there are prompts that had better run layer after layer.
void EngineLoop::BeginPiece(EngineStep& step) {
  LayerPass* const pass = step.layer_pass();
  if (pass == nullptr) return;
  const std::span<const ScheduledSlice> planned =
      scheduler_->PlanPiece([&](int64_t tokens) { return step.RunsByLayers(tokens); });
  EndDisplaced();
  if (planned.empty()) return;
  Begin(piece_, *pass, planned);
  piece_began_ = piece_logged_ = std::chrono::steady_clock::now();
}

// Begins one, if nothing but lines of batches is there and they had better run so.
void EngineLoop::BeginModuleBatch(EngineStep& step) {
  LayerPass* const pass = step.module_batches();
  if (pass == nullptr) return;
  const std::span<const ScheduledSlice> planned =
      scheduler_->PlanModuleBatch([&](int64_t tokens) { return step.RunsAsModuleBatch(tokens); });
  EndDisplaced();
  if (planned.empty()) return;
  Begin(module_batch_, *pass, planned);
  module_batch_paused_ = false;
}

void EngineLoop::Begin(LayerRun& run, LayerPass& pass, std::span<const ScheduledSlice> planned) {
  FillRows(planned);
  int64_t rows = 0;
  for (const ScheduledSlice& slice : planned) {
    rows += slice.num_tokens;
    run.parts.push_back({slice.sequence, slice.sequence->id, slice.sequence->traced, rows - 1});
  }
  run.tokens = rows;
  parts_.use->BeginBeside(run.beside, planned, rows_);
  pass.Begin(rows_.tokens, rows_.slices);
}

// Lets go of what has left the scheduler's piece and module batch.
void EngineLoop::LookAfterLayers(EngineStep& step) {
  LookAfter(piece_, step.layer_pass(), scheduler_->piece());
  LookAfter(module_batch_, step.module_batches(), scheduler_->module_batch());
}

void EngineLoop::LookAfter(LayerRun& run, LayerPass* pass, std::span<const ScheduledSlice> there) {
  if (run.empty()) return;
  auto next = there.begin();  // both have the order in which they were planned
  for (size_t i = 0; i < run.parts.size(); ++i) {
    LayerRun::Part& part = run.parts[i];
    if (part.sequence == nullptr) continue;
    if (next != there.end() && next->sequence == part.sequence) {
      ++next;
      continue;
    }
    part.sequence = nullptr;
    pass->Drop(static_cast<int32_t>(i));
    // One that was preempted is run again.
    Sequence* const sequence = scheduler_->Find(part.id);
    if (sequence != nullptr) parts_.use->TakeBackBeside(run.beside, *sequence);
    parts_.use->LeaveBeside(part.traced);
  }
  CHECK(next == there.end());
  if (!there.empty()) return;
  pass->Abandon();
  parts_.use->EndBeside(run.beside);
  run.parts.clear();
}

// A block of it. Throws nothing: what fails ends its requests.
void EngineLoop::RunPiece(EngineStep& step) {
  try {
    LayerPass& pass = *step.layer_pass();
    RunBlock(step, pass, piece_, scheduler_->piece());
    LogPiece(pass);
    TellPieceProgress(pass);
    if (pass.done()) DeliverPiece(step);
  } catch (const Error& error) {
    slices_.assign(scheduler_->piece().begin(), scheduler_->piece().end());
    scheduler_->AbandonPiece();
    LookAfterLayers(step);
    FailSlices(step, error);
  }
}

// A block of it, or a part of its head when all have run: between two of them others come first,
// and it loses nothing. In a turn of the background's. Throws nothing, likewise.
void EngineLoop::RunModuleBatch(EngineStep& step) {
  if (parts_.turn) PublishStatus();  // it may have to wait for long
  InTurn(true, [&] {
    module_batch_paused_ = false;
    LayerPass& pass = *step.module_batches();
    try {
      if (pass.done()) {
        DeliverModuleBatch(step);
      } else {
        RunBlock(step, pass, module_batch_, scheduler_->module_batch());
      }
    } catch (const Error& error) {
      slices_.assign(scheduler_->module_batch().begin(), scheduler_->module_batch().end());
      scheduler_->AbandonModuleBatch();
      LookAfterLayers(step);
      FailSlices(step, error);
    }
  });
}

void EngineLoop::PauseModuleBatch(EngineStep& step) {
  if (std::exchange(module_batch_paused_, true)) return;
  step.module_batches()->Pause();
  if (parts_.metrics) parts_.metrics->AddModuleBatchPause();
}

void EngineLoop::RunBlock(EngineStep& step, LayerPass& pass, const LayerRun& run,
                          std::span<const ScheduledSlice> there) {
  AddStats(step.RunBlock(pass), there);
  const int64_t layer = pass.ended_layer();
  if (layer >= 0 && parts_.config.is_sparse(layer)) {
    parts_.use->RoutedBeside(run.beside, layer, pass.experts(), pass.weights());
  }
  ReportReadability(step);
}

// Now and then how far it is, and what it took if it was long.
void EngineLoop::LogPiece(const LayerPass& pass) {
  const auto now = std::chrono::steady_clock::now();
  const bool ends = pass.done() && piece_logged_ != piece_began_;
  if (!ends && now - piece_logged_ < kPieceLogInterval) return;
  piece_logged_ = now;
  LogInfo("prompts of {} tokens by layers: {:.0f}% after {:.0f} s", piece_.tokens,
          100 * pass.progress(), std::chrono::duration<double>(now - piece_began_).count());
}

// Of each prompt as large a share as of the piece.
void EngineLoop::TellPieceProgress(const LayerPass& pass) {
  const auto now = std::chrono::steady_clock::now();
  for (const ScheduledSlice& slice : scheduler_->piece()) {
    const double done = pass.progress() * static_cast<double>(slice.num_tokens);
    TellPromptProgress(*slice.sequence,
                       slice.sequence->computed_tokens + static_cast<int64_t>(done), false, now);
  }
}

// rows_ are the last rows of the first `count` that are there, which leave, and last_rows_ where
// they are in the pass.
void EngineLoop::ListLastRows(LayerRun& run, size_t count) {
  rows_.Clear();
  last_rows_.clear();
  for (LayerRun::Part& part : run.parts) {
    if (part.sequence == nullptr) continue;
    if (last_rows_.size() == count) break;
    CHECK(part.sequence == slices_[last_rows_.size()].sequence);
    part.sequence = nullptr;
    SequenceSlice& slice = rows_.slices.emplace_back();
    slice.first_row = std::ssize(last_rows_);
    slice.num_tokens = 1;
    last_rows_.push_back(static_cast<int32_t>(part.last_row));
  }
  CHECK_EQ(last_rows_.size(), count);
}

void EngineLoop::DeliverPiece(EngineStep& step) {
  const int64_t begin_ns = clock_.NowNs();
  slices_.assign(scheduler_->piece().begin(), scheduler_->piece().end());
  ListLastRows(piece_, slices_.size());
  step.layer_pass()->Finish(last_rows_);
  parts_.use->EndBeside(piece_.beside);
  piece_.parts.clear();
  scheduler_->AdvancePiece();
  Sample(step, begin_ns);
}

// Of as many sequences as the head takes at a time.
void EngineLoop::DeliverModuleBatch(EngineStep& step) {
  const int64_t begin_ns = clock_.NowNs();
  const std::span<const ScheduledSlice> there = scheduler_->module_batch();
  const size_t count = std::min(there.size(), static_cast<size_t>(parts_.head->max_rows()));
  slices_.assign(there.begin(), there.begin() + static_cast<std::ptrdiff_t>(count));
  ListLastRows(module_batch_, count);
  step.module_batches()->Show(last_rows_);
  scheduler_->AdvanceModuleBatch(count);
  if (scheduler_->module_batch().empty() && parts_.metrics) parts_.metrics->AddModuleBatch();
  Sample(step, begin_ns);
}

// Of a step or a block that ran these.
void EngineLoop::AddStats(const StepStats& stats, std::span<const ScheduledSlice> slices) {
  AddStats(stats);
  const std::span<const uint64_t> links = link_meter_.Look(parts_.step->experts());
  for (const ScheduledSlice& slice : slices) {
    slice.sequence->experts += stats.experts;
    AddLinkBytes(links, slice.sequence->links);
  }
}

void EngineLoop::AddStats(const StepStats& stats) {
  if (parts_.metrics) parts_.metrics->AddStep(stats);
  mailbox_.AddStats(stats);
}

void EngineLoop::ReportReadability(const EngineStep& step) {
  mailbox_.SetNotReady(step.WhyUnreadable(), "read_failed");
}

void EngineLoop::End(Sequence& sequence, FinishReason reason) {
  sequence.output->Finish();
  OutputDelta delta = TakeDelta(sequence);
  delta.finish = reason;
  delta.trace = parts_.use->TraceOf(sequence);
  delta.experts = sequence.experts;
  delta.links = NamedLinkBytes(parts_.step->experts(), sequence.links);
  sampling_->Ended(sequence, FinishReasonName(reason), LiveSampler::Clock::now(), delta.trace);
  delta.routed = std::move(sequence.routed);
  const std::unique_ptr<Sequence> owned = Remove(sequence);
  owned->sink->OnDelta(std::move(delta));
}

void EngineLoop::EndWithError(Sequence& sequence, const Error& error) {
  sampling_->Ended(sequence, "error", LiveSampler::Clock::now());
  const std::unique_ptr<Sequence> owned = Remove(sequence);
  owned->sink->OnError(error);
}

std::unique_ptr<Sequence> EngineLoop::Remove(Sequence& sequence) {
  parts_.use->EndRequest(sequence);
  if (!sequence.request.background) places_->GiveBack(sequence.request.client, 1);
  return scheduler_->Remove(&sequence);
}

// Of prompts that have begun.
int64_t EngineLoop::PromptTokensLeft() {
  int64_t tokens = 0;
  scheduler_->ForEach([&](const Sequence& sequence) {
    if (sequence.started) {
      tokens += std::max<int64_t>(0, sequence.prompt_tokens - sequence.computed_tokens);
    }
  });
  return tokens;
}

void EngineLoop::PublishStatus() {
  const EngineStep::Experts experts = parts_.step->experts();
  if (parts_.metrics) {
    parts_.metrics->SetExperts(experts.slots, experts.resident);
    parts_.metrics->SetFetchOrders(experts);
    parts_.metrics->SetPreemptions(scheduler_->preemptions());
    parts_.metrics->SetPrefixes(scheduler_->prefixes());
    if (stored_) parts_.metrics->SetKvStore(stored_->store().counters());
    parts_.metrics->SetDevices(experts.devices);
    parts_.metrics->SetLinks(experts.links);
    const bool piece = !piece_.empty();
    parts_.metrics->SetPrefillLeft(PromptTokensLeft());
    parts_.metrics->SetPiece(piece ? piece_.tokens : 0,
                             piece ? parts_.step->layer_pass()->progress() : 0);
    parts_.metrics->SetModuleBatch(
        module_batch_.empty() ? 0 : module_batch_.tokens,
        module_batch_.empty() ? 0 : parts_.step->module_batches()->progress());
  }
  expert_slots_ = experts.slots;
  mailbox_.Publish(*scheduler_, *kv_, experts);
}

void EngineLoop::SampleIfDue() {
  if (!live_->watched()) return;
  const auto now = LiveSampler::Clock::now();
  if (!sampling_->Due(now)) return;
  sampling_->Sample({*scheduler_, *kv_, parts_.use->provider(), mailbox_.Stats(), expert_slots_,
                     parts_.step->WhyUnreadable()},
                    now);
}

std::shared_ptr<const RequestExperts> EngineLoop::ExpertsOf(RequestId id, bool nearest) {
  const Sequence* const sequence = scheduler_->Find(id);
  auto trace = sequence != nullptr ? parts_.use->TraceOf(*sequence) : sampling_->TraceOf(id);
  if (trace == nullptr) return nullptr;
  return parts_.use->ExpertsOf(std::move(trace), nearest);
}

}  // namespace moesaic
