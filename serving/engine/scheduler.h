// Scheduler: which sequences run in the next step and on how many tokens: continuous batching with
// chunked prefill over paged keys and values (kv_manager.h); what no
// later token of a sequence attends to is given back as it runs.
//
// A plain state machine: no threads, no clock, no model. The engine's thread owns it.
//
// Every step has a token budget. Running sequences that decode get one token each; what is left
// goes to prefill, oldest first, and then to waiting requests (request_queue.h). When a
// running sequence needs a KV block, whichever group of layers it is for, and none is free, the
// newest running sequence is preempted: its blocks are released and it waits again at the head of
// the queue, to be computed anew with what it has generated. The oldest sequence is never preempted
// for another, so every request that fits the pool alone ends.
//
// Sequences of a lower rank (RequestRank: their priority) come first in all of this, as if they
// were older, and one that waits takes the place and the blocks of those of higher ranks that run.
//
// Sequences of the background (EngineRequest::background) have the highest rank, and rest while
// others are there: they keep their blocks and are not planned. Steps of theirs may have a smaller
// budget, so that one that gives way to others (give_way.h) loses less.
//
// A module batch is another way for those: the next tokens of all that run and prompts that join,
// more sequences and tokens than a step has, which go through the model layer after layer
// (serving/model/layer_pass). Steps of others run between its blocks, and it goes on behind them as
// if nothing had been; who is preempted meanwhile leaves it. No more of a prompt is in it than in a
// step. Sequences that want the log-probabilities of their prompts are in none, nor are others
// while there are such.
//
// A piece is what runs beside steps: prompts whose tokens go through the model layer after layer,
// more of them than a step's budget. While there is one, steps are planned of sequences that decode
// alone, and nobody joins those that run. Background sequences are in no piece, nor are those that
// want the log-probabilities of their prompts. All tokens of a piece have blocks until it has run,
// also those that will be behind a window: where there is no room for that, a prompt runs in
// several pieces.
//
// Of a model with recurrent layers a sequence that runs has a slot of state besides
// (state_slots.h), which a preempted one gives back as well. A prefix is reused up to where its
// state was kept: at the last whole block of each prompt and, while it runs, of each answer, and
// where a prompt leaves the blocks of an earlier one.
//
// What the pool lacks of a prefix may be had from a store (prefix_store.h). A sequence that is
// admitted with such a prefix has its blocks read first, a step's worth of tokens at a time, then
// the state behind them where there is one, and is not planned meanwhile; the others go on.
#pragma once

#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_manager.h"
#include "cache/state_slots.h"
#include "core/base/function_ref.h"
#include "serving/engine/prefix_store.h"
#include "serving/engine/request_queue.h"
#include "serving/engine/sequence.h"

namespace moesaic {

struct SchedulerOptions {
  int64_t max_num_seqs = 64;
  int64_t max_batch_tokens = 512;
  bool prefix_cache = true;
  // Decoded tokens are computed otherwise than a prompt's (expert deferral): only blocks before
  // Sequence::decode_from are shared, so that nobody's prompt gets them.
  bool share_only_prompts = false;
  // Of recurrent state; 0: the model has none, else as many as sequences run at least.
  int64_t state_slots = 0;
  int64_t state_snapshots = 0;      // of the slots, for prefix_cache
  int64_t piece_tokens = 0;         // of a piece at most; 0: there are none
  int64_t module_batch_tokens = 0;  // of a module batch at most; 0: there are none
  // Of the background, that run at once, beside max_num_seqs others; 0: they share places with all,
  // as of a model with recurrent layers.
  int64_t background_seqs = 0;
};

// Tokens of prompts whose keys and values were there when the prompt was first run, by where.
struct PrefixCounters {
  int64_t from_pool = 0;
  int64_t from_memory = 0;  // the store's
  int64_t from_store = 0;   // its disk
};

struct ScheduledSlice {
  Sequence* sequence = nullptr;
  int64_t num_tokens = 0;  // tokens [computed_tokens, computed_tokens + num_tokens) run
};

class Scheduler {
 public:
  // `store` (which outlives it) may be null.
  Scheduler(const SchedulerOptions& options, KvManager& kv, PrefixStore* store = nullptr);

  void Add(std::unique_ptr<Sequence> sequence);
  // Plans a step: allocates the blocks of what it plans. Empty when nothing can run: there is
  // nothing at all, or all that runs waits for the store. Valid until the next call of any method.
  std::span<const ScheduledSlice> Plan();
  // Without a piece: makes one of prompts that run or wait, oldest first, if `worth` says that so
  // many tokens had better run so; else it is empty.
  std::span<const ScheduledSlice> PlanPiece(FunctionRef<bool(int64_t tokens)> worth);
  // Who is in it still: a sequence that is removed or preempted leaves.
  std::span<const ScheduledSlice> piece() const { return piece_; }
  // It has run, as Advance; or it has failed, as Abandon.
  void AdvancePiece();
  void AbandonPiece();
  // Without a module batch, and while nobody but the background is there: makes one, if `worth`
  // says that so many tokens had better run so; else it is empty.
  std::span<const ScheduledSlice> PlanModuleBatch(FunctionRef<bool(int64_t tokens)> worth);
  // Who is in it still, as piece().
  std::span<const ScheduledSlice> module_batch() const { return module_batch_; }
  // The first `count` of these have run, as Advance, and leave; or all of it has failed.
  void AdvanceModuleBatch(size_t count);
  void AbandonModuleBatch();
  // Those that were preempted and whose place among those that have begun (max_num_seqs) others
  // have taken in the last plan, of either kind. Who is preempted and stays next keeps it.
  std::span<Sequence* const> displaced() const { return displaced_; }
  // After the step ran: the slices' tokens are computed; full blocks become findable.
  void Advance();
  // The plan is not run, because others have come: as Abandon, and the next one of the background
  // has half as many tokens. Each that is run then has an eighth more again.
  void GiveWay();
  // Sequences of the background keep what they have when a step is not run.
  bool may_give_way() const { return !states_.any(); }
  // Takes a sequence out, wherever it is, and releases its blocks.
  std::unique_ptr<Sequence> Remove(Sequence* sequence);
  // After a step that failed: nothing of the plan counts as computed. Of recurrent state nobody
  // knows how far it came: those sequences are computed anew.
  void Abandon();

  Sequence* Find(RequestId id);
  int64_t running() const { return static_cast<int64_t>(running_.size()); }
  int64_t restoring() const;  // of these: wait for the store
  int64_t waiting() const { return waiting_.size(); }
  int64_t preemptions() const { return preemptions_; }
  // Sequences that waited at the last plan because there were no blocks; those of the background
  // are not counted.
  int64_t waiting_for_blocks() const { return waiting_for_blocks_; }
  const PrefixCounters& prefixes() const { return prefixes_; }
  bool empty() const { return running_.empty() && waiting_.empty(); }
  // All sequences, running ones first.
  void ForEach(const std::function<void(Sequence&)>& visit);

 private:
  bool Rests(const Sequence& sequence) const {
    return foreground_ > 0 && sequence.request.background;
  }
  int64_t BackgroundTokens() const;
  bool MakePlace(const Sequence& sequence);
  bool MakeRoom(Sequence& sequence);
  void JoinRunning(Sequence& sequence);
  bool EnsureBlocks(Sequence& sequence, int64_t num_tokens);
  void PlanRestores();
  void Restore(Sequence& sequence);
  void TakeRestored(Sequence& sequence);
  void ReadState(Sequence& sequence);
  void TakeState(Sequence& sequence);
  void CountRestored(Sequence& sequence);
  void ComputeAnew(Sequence& sequence);
  bool BeginRestore(Sequence& sequence);
  void PlanStep(int64_t most_tokens, int64_t most_slices);
  void PlanDecodes();
  void PlanPrefills();
  void Admit();
  int64_t ShareableTokens(const Sequence& sequence) const;
  int64_t ReusableTokens(const Sequence& sequence) const;
  void ReusePrefix(Sequence& sequence);
  int64_t StepTokens(const Sequence& sequence) const;
  int64_t ChunkTokens(const Sequence& sequence) const;
  void PlanSnapshot(Sequence& sequence, int64_t tokens);
  void Schedule(Sequence& sequence, int64_t tokens);
  bool JoinPiece(Sequence& sequence);
  int64_t PieceTokens(const Sequence& sequence) const;
  void Advance(const ScheduledSlice& slice);
  void Abandon(std::vector<ScheduledSlice>& plan);
  bool full() const { return budget_ <= 0 || std::ssize(plan_) >= most_slices_; }
  void PreemptNewest() { Preempt(running_.size() - 1); }
  void Preempt(size_t running);
  void Charge(Sequence& sequence, int64_t tokens);
  void Displace();
  int64_t WaitingForeground() const;
  void ReleaseBlocks(Sequence& sequence);

  SchedulerOptions options_;
  KvManager& kv_;
  StateSlots states_;
  PrefixStore* const store_;
  RequestQueue waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;  // by rank, the oldest first
  std::vector<Sequence*> preempted_seqs_;           // that wait and were not displaced
  int64_t foreground_ = 0;                          // of both, not of the background
  std::vector<ScheduledSlice> plan_;
  std::vector<ScheduledSlice> piece_;
  std::vector<ScheduledSlice> module_batch_;
  std::vector<Sequence*> displaced_;
  int64_t background_prompt_logprobs_ = 0;  // sequences, running or not
  int64_t budget_ = 0;
  int64_t most_slices_ = 0;
  int64_t background_budget_ = 0;
  bool preempted_ = false;  // in this plan
  int64_t preemptions_ = 0;
  bool short_of_blocks_ = false;  // in this plan
  int64_t waiting_for_blocks_ = 0;
  PrefixCounters prefixes_;
};

}  // namespace moesaic
