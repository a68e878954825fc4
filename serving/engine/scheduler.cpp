#include "serving/engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {
namespace {

// Sequences whose prefix is read at a time: one disk is not faster for more, and what they will
// take of the pool is not taken yet.
constexpr int64_t kMostRestoring = 2;

// Of slices.
constexpr int64_t kAnyNumber = std::numeric_limits<int64_t>::max();

int64_t PendingTokens(const Sequence& sequence) {
  return static_cast<int64_t>(sequence.tokens.size()) - sequence.computed_tokens;
}

bool IsLineWithPromptLogprobs(const Sequence& sequence) {
  return sequence.request.background && sequence.wants_prompt_logprobs();
}

// End of the last block that leaves a token to compute.
int64_t LastWholeBlock(const Sequence& sequence) {
  const auto known = static_cast<int64_t>(sequence.tokens.size());
  return (known - 1) / kKvBlockTokens * kKvBlockTokens;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, KvManager& kv, PrefixStore* store)
    : options_(options),
      kv_(kv),
      states_(options.state_slots, options.state_snapshots),
      store_(options.prefix_cache ? store : nullptr) {
  CHECK(options.state_slots == 0 || options.state_slots - options.state_snapshots >=
                                        options.max_num_seqs + options.background_seqs);
  background_budget_ = options.max_batch_tokens;
  plan_.reserve(static_cast<size_t>(options.max_num_seqs));
  module_batch_.reserve(static_cast<size_t>(options.background_seqs));
  if (store_ != nullptr && states_.any()) store_->UseStates(states_);
}

void Scheduler::Add(std::unique_ptr<Sequence> sequence) {
  foreground_ += sequence->request.background ? 0 : 1;
  background_prompt_logprobs_ += IsLineWithPromptLogprobs(*sequence) ? 1 : 0;
  waiting_.Add(std::move(sequence));
}

// One that waits.
void Scheduler::JoinRunning(Sequence& sequence) {
  std::erase(preempted_seqs_, &sequence);
  const auto behind = std::find_if(running_.begin(), running_.end(), [&](const auto& other) {
    return RankOf(sequence.request) < RankOf(other->request);
  });
  running_.insert(behind, waiting_.Take(sequence));
}

std::span<const ScheduledSlice> Scheduler::Plan() {
  plan_.clear();
  displaced_.clear();
  preempted_ = false;
  short_of_blocks_ = false;
  if (store_ != nullptr) PlanRestores();
  // What is in a module batch has its turn already.
  if (foreground_ > 0) {
    PlanStep(options_.max_batch_tokens, kAnyNumber);
  } else if (module_batch_.empty()) {
    PlanStep(background_budget_, options_.background_seqs > 0 ? options_.max_num_seqs : kAnyNumber);
  }
  waiting_for_blocks_ = short_of_blocks_ ? WaitingForeground() : 0;
  Displace();
  return plan_;
}

int64_t Scheduler::WaitingForeground() const {
  const auto running = std::count_if(running_.begin(), running_.end(), [](const auto& sequence) {
    return !sequence->request.background;
  });
  return foreground_ - running;
}

void Scheduler::PlanStep(int64_t most_tokens, int64_t most_slices) {
  budget_ = most_tokens;
  most_slices_ = most_slices;
  PlanDecodes();
  if (!piece_.empty()) return;
  PlanPrefills();
  // Who was just preempted lacks room, unless another one holds the same prefix; nobody joins then
  // in any case, as the planner's simulation has it (serving/plan/scheduler_simulation).
  if (!preempted_) Admit();
}

std::span<const ScheduledSlice> Scheduler::PlanModuleBatch(
    FunctionRef<bool(int64_t tokens)> worth) {
  CHECK(module_batch_.empty());
  displaced_.clear();
  if (options_.module_batch_tokens <= 0 || foreground_ > 0 || background_prompt_logprobs_ > 0) {
    return {};
  }
  const int64_t tokens = BackgroundTokens();
  if (tokens == 0 || !worth(tokens)) return {};
  plan_.clear();
  preempted_ = false;
  PlanStep(options_.module_batch_tokens, kAnyNumber);
  Displace();
  std::swap(plan_, module_batch_);
  return module_batch_;
}

// Of a module batch at most, if there are blocks for all who have places.
int64_t Scheduler::BackgroundTokens() const {
  const int64_t most = options_.module_batch_tokens;
  int64_t places = options_.background_seqs > 0 ? options_.background_seqs : options_.max_num_seqs;
  int64_t tokens = 0;
  const auto add = [&](const Sequence& sequence) {
    if (places-- <= 0 || tokens >= most || sequence.restored_until > 0) return;
    tokens += std::min(PendingTokens(sequence), options_.max_batch_tokens);
  };
  for (const auto& sequence : running_) add(*sequence);
  waiting_.ForEach(add);
  return std::min(tokens, most);
}

// Preemption shortens running_ from the back, as in the next two.
void Scheduler::PlanRestores() {
  for (size_t i = 0; i < running_.size(); ++i) {
    if (running_[i]->restored_until > 0) Restore(*running_[i]);
  }
}

int64_t Scheduler::restoring() const {
  return std::count_if(running_.begin(), running_.end(),
                       [](const auto& sequence) { return sequence->restored_until > 0; });
}

// Whether the store has more of the sequence's prefix than the pool had: it is being read then, if
// the sequence was not preempted for want of blocks (restored_until is 0).
bool Scheduler::BeginRestore(Sequence& sequence) {
  if (store_ == nullptr || sequence.wants_prompt_logprobs()) return false;
  const int64_t stored = store_->Begin(sequence, ReusableTokens(sequence) / kKvBlockTokens);
  if (stored <= sequence.blocks.sealed || options_.max_batch_tokens < kKvBlockTokens) return false;
  sequence.restored_until = stored * kKvBlockTokens;
  Restore(sequence);
  return true;
}

// Takes over what has been read, and asks for the next part: as many tokens as a step may compute,
// for which there is room.
void Scheduler::Restore(Sequence& sequence) {
  if (sequence.stored.reads_state) return TakeState(sequence);
  if (sequence.blocks_asked > 0) TakeRestored(sequence);
  if (sequence.blocks_asked > 0 || sequence.restored_until == 0) return;
  if (sequence.computed_tokens == sequence.restored_until) return ReadState(sequence);
  const int64_t left = (sequence.restored_until - sequence.computed_tokens) / kKvBlockTokens;
  const int64_t count = std::min(left, options_.max_batch_tokens / kKvBlockTokens);
  if (!EnsureBlocks(sequence, count * kKvBlockTokens)) return;
  sequence.blocks_asked = count;
  store_->Read(sequence, sequence.blocks.sealed, count, sequence.restored_until / kKvBlockTokens);
}

void Scheduler::TakeRestored(Sequence& sequence) {
  const PrefixStore::Progress progress = store_->Poll(sequence);
  if (!progress.ended) return;
  store_->Stop(sequence);
  const bool all = progress.done == sequence.blocks_asked;
  for (int64_t block = 0; block < progress.done; ++block) {
    const size_t first = static_cast<size_t>(sequence.blocks.sealed * kKvBlockTokens);
    kv_.Seal(sequence.blocks,
             {sequence.tokens.data() + first, static_cast<size_t>(kKvBlockTokens)});
  }
  const int64_t tokens = progress.done * kKvBlockTokens;
  sequence.computed_tokens += tokens;
  sequence.blocks_asked = 0;
  kv_.GiveBackBehind(sequence.blocks, sequence.computed_tokens);
  sequence.stored.from_memory += progress.from_memory * kKvBlockTokens;
  if (states_.any()) {
    if (!all) ComputeAnew(sequence);
    return;
  }
  CountRestored(sequence);
  if (!all) store_->Begin(sequence, sequence.blocks.sealed);  // what was lost is written anew
  if (!all || sequence.computed_tokens == sequence.restored_until) sequence.restored_until = 0;
}

// One that was preempted before it ran may be reading what it had been told of.
void Scheduler::CountRestored(Sequence& sequence) {
  const int64_t cached = std::min(sequence.computed_tokens, sequence.prompt_tokens);
  const int64_t from_memory = std::exchange(sequence.stored.from_memory, 0);
  if (sequence.started || cached <= sequence.cached_tokens) return;
  const int64_t restored = cached - std::exchange(sequence.cached_tokens, cached);
  prefixes_.from_memory += std::min(restored, from_memory);
  prefixes_.from_store += restored - std::min(restored, from_memory);
}

// All blocks are there. The state that the pool's part of the prefix had, if any, is behind that.
void Scheduler::ReadState(Sequence& sequence) {
  states_.AwaitFill(sequence.state);
  store_->ReadState(sequence, sequence.blocks.sealed, sequence.state.slot);
}

void Scheduler::TakeState(Sequence& sequence) {
  const PrefixStore::Progress progress = store_->Poll(sequence);
  if (!progress.ended) return;
  store_->Stop(sequence);
  if (progress.done == 0) return ComputeAnew(sequence);
  states_.Filled(sequence.state);
  sequence.restored_until = 0;
  CountRestored(sequence);
}

// Blocks without the state behind them serve nobody.
void Scheduler::ComputeAnew(Sequence& sequence) {
  ReleaseBlocks(sequence);
  if (!sequence.started) sequence.cached_tokens = 0;
  store_->Begin(sequence, 0);
}

void Scheduler::PlanDecodes() {
  // Preemption shortens running_ from the back while this walks it.
  for (size_t i = 0; i < running_.size() && !full(); ++i) {
    Sequence& sequence = *running_[i];
    if (Rests(sequence)) return;
    if (PendingTokens(sequence) != 1 || sequence.restored_until > 0) continue;
    if (!EnsureBlocks(sequence, 1)) continue;
    Schedule(sequence, 1);
  }
}

void Scheduler::PlanPrefills() {
  for (size_t i = 0; i < running_.size() && !full(); ++i) {
    Sequence& sequence = *running_[i];
    if (Rests(sequence)) return;
    if (PendingTokens(sequence) == 1 || sequence.restored_until > 0) continue;
    const int64_t tokens = ChunkTokens(sequence);
    if (!EnsureBlocks(sequence, tokens)) continue;
    Schedule(sequence, tokens);
  }
}

std::span<const ScheduledSlice> Scheduler::PlanPiece(FunctionRef<bool(int64_t tokens)> worth) {
  CHECK(piece_.empty());
  displaced_.clear();
  if (options_.piece_tokens <= 0) return {};
  budget_ = options_.piece_tokens;
  int64_t tokens = 0;  // at most, until prefixes were looked for
  for (const auto& sequence : running_) {
    if (Rests(*sequence)) break;
    if (PendingTokens(*sequence) == 1 || sequence->restored_until > 0) continue;
    // Prompts run in the order in which they came: one that must run in chunks goes first.
    if (sequence->request.background || sequence->wants_prompt_logprobs()) return {};
    tokens += PendingTokens(*sequence);
  }
  // A sequence that waits does not go in front of others, wherever it would run.
  const auto may_join = [](const Sequence& sequence) {
    return PendingTokens(sequence) > 1 && !sequence.request.background &&
           !sequence.wants_prompt_logprobs();
  };
  const bool one_waits = !waiting_.empty() && may_join(waiting_.front());
  if (one_waits) tokens += PendingTokens(waiting_.front());
  if (tokens == 0 || !worth(std::min(tokens, options_.piece_tokens))) return {};

  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (Rests(sequence)) break;
    if (PendingTokens(sequence) == 1 || sequence.restored_until > 0) continue;
    if (!JoinPiece(sequence)) break;
  }
  while (!waiting_.empty() && budget_ > 0 && restoring() < kMostRestoring) {
    Sequence& sequence = waiting_.front();
    if (!may_join(sequence) || !MakeRoom(sequence)) break;
    JoinRunning(sequence);
    const bool restores = BeginRestore(sequence);
    if (restores && sequence.restored_until == 0) break;  // there were no blocks for it
    if (!sequence.admitted) prefixes_.from_pool += sequence.cached_tokens;
    sequence.admitted = true;
    if (restores) continue;                                           // it runs behind the piece
    if (PendingTokens(sequence) == 1 || !JoinPiece(sequence)) break;  // it runs in steps
  }
  tokens = 0;
  for (const ScheduledSlice& slice : piece_) tokens += slice.num_tokens;
  if (tokens == 0 || !worth(tokens)) piece_.clear();
  for (const ScheduledSlice& slice : piece_) PlanSnapshot(*slice.sequence, slice.num_tokens);
  Displace();
  return piece_;
}

// False where there is no place or no blocks for it.
bool Scheduler::JoinPiece(Sequence& sequence) {
  if (std::ssize(piece_) >= options_.max_batch_tokens) return false;  // a row of each is sampled
  const int64_t tokens = PieceTokens(sequence);
  if (tokens == 0) return false;
  CHECK(kv_.Grow(sequence.blocks, sequence.computed_tokens + tokens));
  states_.Open(sequence.state);
  piece_.push_back({&sequence, tokens});
  Charge(sequence, tokens);
  budget_ -= tokens;
  return true;
}

// As many as there are blocks for at once, if there are enough for all that is pending in steps. Of
// what is free beyond those a half at most is taken for what windows give back afterwards: others
// need blocks while the piece runs.
int64_t Scheduler::PieceTokens(const Sequence& sequence) const {
  const int64_t start = sequence.computed_tokens;
  const int64_t tokens = StepTokens(sequence);
  const int64_t free = kv_.pool().free_blocks();
  const int64_t needed =
      kv_.Missing(sequence.blocks, start + tokens, std::min(tokens, options_.max_batch_tokens));
  if (needed > free) return 0;
  const int64_t spare = running_.size() > 1 ? (free - needed) / 2 : free - needed;
  const auto fits = [&](int64_t count) {
    return kv_.Missing(sequence.blocks, start + count, count) <= needed + spare;
  };
  if (fits(tokens)) return tokens;
  int64_t steps = tokens / options_.max_batch_tokens;  // whole ones
  while (steps > 0 && !fits(steps * options_.max_batch_tokens)) --steps;
  return steps * options_.max_batch_tokens;
}

// Of what is pending, at most what the budget has left, up to where a state is to be kept that is
// not the last whole block's.
int64_t Scheduler::StepTokens(const Sequence& sequence) const {
  const int64_t tokens = std::min(PendingTokens(sequence), budget_);
  const int64_t to_branch = sequence.branches_at - sequence.computed_tokens;
  if (to_branch <= 0 || sequence.branches_at == LastWholeBlock(sequence)) return tokens;
  return std::min(tokens, to_branch);
}

// Likewise, and no more than a step's: there are blocks for that.
int64_t Scheduler::ChunkTokens(const Sequence& sequence) const {
  return std::min(StepTokens(sequence), options_.max_batch_tokens);
}

void Scheduler::Schedule(Sequence& sequence, int64_t tokens) {
  PlanSnapshot(sequence, tokens);
  plan_.push_back({&sequence, tokens});
  Charge(sequence, tokens);
  budget_ -= tokens;
}

// For its next so many tokens, once: what is computed again after a preemption is not the client's
// fault.
void Scheduler::Charge(Sequence& sequence, int64_t tokens) {
  const int64_t begin = std::max(sequence.charged_tokens, sequence.computed_tokens);
  const int64_t end = sequence.computed_tokens + tokens;
  if (end <= begin) return;
  waiting_.Charge(sequence, end - begin);
  sequence.charged_tokens = end;
}

// Keeps the state behind the last whole block of what is known of the sequence, one token at least
// being left to compute, or where its prefix branches off.
void Scheduler::PlanSnapshot(Sequence& sequence, int64_t tokens) {
  if (!options_.prefix_cache || !states_.keeps_snapshots()) return;
  const int64_t start = sequence.computed_tokens;
  const int64_t last = LastWholeBlock(sequence);
  if (start > 0 && (start == last || start == sequence.branches_at)) {
    // Behind what may be shared blocks are not sealed.
    if (sequence.blocks.sealed * kKvBlockTokens == start) {
      const bool rolling = start >= sequence.prompt_tokens;
      const PrefixId prefix = sequence.blocks.prefix;
      if (states_.KeepBefore(sequence.state, prefix, rolling) && store_ != nullptr) {
        store_->StateKept(sequence, sequence.blocks.sealed, prefix, rolling);
      }
    }
  } else if (start < last && last < start + tokens && last <= ShareableTokens(sequence)) {
    states_.Reserve(sequence.state, last - start);
  }
}

void Scheduler::Admit() {
  while (!waiting_.empty() && !full()) {
    Sequence& sequence = waiting_.front();
    // Those that wait for the store have not got all of their blocks yet.
    if (restoring() >= kMostRestoring) return;
    if (Rests(sequence) || !MakeRoom(sequence)) return;
    JoinRunning(sequence);
    const int64_t tokens = ChunkTokens(sequence);
    const bool restores = BeginRestore(sequence);
    if (restores ? sequence.restored_until == 0 : !EnsureBlocks(sequence, tokens)) return;
    if (!sequence.admitted) prefixes_.from_pool += sequence.cached_tokens;
    sequence.admitted = true;
    if (!restores) Schedule(sequence, tokens);
  }
}

// A place among those that run: the newest of a higher rank that has such a place leaves for it.
bool Scheduler::MakePlace(const Sequence& sequence) {
  const bool background = sequence.request.background;
  size_t begin = 0;
  size_t end = running_.size();
  int64_t places = options_.max_num_seqs;
  if (options_.background_seqs > 0) {
    const auto border = std::find_if(running_.begin(), running_.end(),
                                     [](const auto& other) { return other->request.background; });
    (background ? begin : end) = static_cast<size_t>(border - running_.begin());
    if (background) places = options_.background_seqs;
  }
  if (static_cast<int64_t>(end - begin) < places) return true;
  if (!(RankOf(sequence.request) < RankOf(running_[end - 1]->request))) return false;
  Preempt(end - 1);
  return true;
}

// A place and blocks for a sequence that waits; those of higher ranks that run leave for it. Finds
// its prefix.
bool Scheduler::MakeRoom(Sequence& sequence) {
  const auto can_preempt = [&] {
    return !running_.empty() && RankOf(sequence.request) < RankOf(running_.back()->request);
  };
  if (!MakePlace(sequence)) return false;
  ReusePrefix(sequence);
  // Room for all that is pending, not just for this chunk: a prompt that is admitted and preempted
  // half way has cost its work twice.
  const auto has_room = [&] {
    return kv_.HasRoom(sequence.blocks, std::ssize(sequence.tokens), options_.max_batch_tokens);
  };
  while (!has_room() && can_preempt()) PreemptNewest();
  if (has_room() || running_.empty()) return true;
  ReleaseBlocks(sequence);
  short_of_blocks_ = true;
  return false;
}

// The first so many positions have the keys and values that any sequence with these tokens has.
int64_t Scheduler::ShareableTokens(const Sequence& sequence) const {
  return options_.share_only_prompts ? sequence.decode_from() : std::numeric_limits<int64_t>::max();
}

// One token at least is computed: its logits are wanted.
int64_t Scheduler::ReusableTokens(const Sequence& sequence) const {
  int64_t limit =
      std::min(static_cast<int64_t>(sequence.tokens.size()) - 1, ShareableTokens(sequence));
  if (sequence.request.routed_from >= 0) limit = std::min(limit, sequence.request.routed_from);
  return limit;
}

void Scheduler::ReusePrefix(Sequence& sequence) {
  if (!options_.prefix_cache || sequence.computed_tokens > 0 || sequence.wants_prompt_logprobs())
    return;
  const auto tokens = [&](int64_t count) {
    return std::span<const int32_t>(sequence.tokens).first(static_cast<size_t>(count));
  };
  const std::vector<KvManager::Prefix> found =
      kv_.FindPrefixes(tokens(std::max<int64_t>(0, ReusableTokens(sequence))));
  auto longest = found.rbegin();
  if (states_.any()) {
    longest = std::find_if(found.rbegin(), found.rend(),
                           [&](const KvManager::Prefix& prefix) { return states_.Has(prefix.id); });
    if (longest != found.rbegin()) sequence.branches_at = found.back().blocks * kKvBlockTokens;
  }
  if (longest != found.rend()) {
    kv_.Reuse(sequence.blocks, tokens(longest->blocks * kKvBlockTokens));
    if (states_.any()) states_.Restore(sequence.state, longest->id);
  }
  sequence.computed_tokens = sequence.blocks.sealed * kKvBlockTokens;
  if (!sequence.admitted) {
    sequence.cached_tokens = std::min(sequence.computed_tokens, sequence.prompt_tokens);
  }
}

// Blocks for num_tokens more tokens, preempting newer sequences if need be. False when the sequence
// itself had to be preempted.
bool Scheduler::EnsureBlocks(Sequence& sequence, int64_t num_tokens) {
  while (!kv_.Grow(sequence.blocks, sequence.computed_tokens + num_tokens)) {
    short_of_blocks_ = true;
    const bool itself = running_.back().get() == &sequence;
    // Alone and without room: the engine admits only what fits the pool.
    CHECK(!itself || running_.size() > 1);
    PreemptNewest();
    if (itself) return false;
  }
  states_.Open(sequence.state);
  return true;
}

void Scheduler::Preempt(size_t running) {
  std::unique_ptr<Sequence> victim = std::move(running_[running]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(running));
  const auto planned = std::find_if(plan_.begin(), plan_.end(), [&](const ScheduledSlice& slice) {
    return slice.sequence == victim.get();
  });
  if (planned != plan_.end()) {
    budget_ += planned->num_tokens;
    plan_.erase(planned);
  }
  const auto is_its = [&](const ScheduledSlice& slice) { return slice.sequence == victim.get(); };
  std::erase_if(piece_, is_its);
  std::erase_if(module_batch_, is_its);
  ReleaseBlocks(*victim);
  preempted_seqs_.push_back(victim.get());
  waiting_.PutBack(std::move(victim));
  preempted_ = true;
  ++preemptions_;
}

// No more sequences than may run have begun: the first ones that were preempted, which come back
// last, lose their places.
void Scheduler::Displace() {
  while (!preempted_seqs_.empty() && std::ssize(running_) + std::ssize(preempted_seqs_) >
                                         options_.max_num_seqs + options_.background_seqs) {
    displaced_.push_back(preempted_seqs_.front());
    preempted_seqs_.erase(preempted_seqs_.begin());
  }
}

void Scheduler::ReleaseBlocks(Sequence& sequence) {
  if (store_ != nullptr) store_->End(sequence);
  sequence.restored_until = sequence.blocks_asked = 0;
  kv_.Release(sequence.blocks);
  states_.Release(sequence.state);
  sequence.computed_tokens = 0;
}

void Scheduler::Abandon() { Abandon(plan_); }

void Scheduler::GiveWay() {
  int64_t tokens = 0;
  for (const ScheduledSlice& slice : plan_) tokens += slice.num_tokens;
  background_budget_ = std::max<int64_t>(1, tokens / 2);
  Abandon();
}

void Scheduler::AbandonPiece() { Abandon(piece_); }

void Scheduler::Abandon(std::vector<ScheduledSlice>& plan) {
  if (states_.any()) {
    for (const ScheduledSlice& slice : plan) ReleaseBlocks(*slice.sequence);
  }
  plan.clear();
}

void Scheduler::Advance() {
  if (!plan_.empty() && plan_.front().sequence->request.background) {
    const int64_t more = std::max<int64_t>(1, background_budget_ / 8);
    background_budget_ = std::min(background_budget_ + more, options_.max_batch_tokens);
  }
  for (const ScheduledSlice& slice : plan_) Advance(slice);
  plan_.clear();
}

void Scheduler::AdvanceModuleBatch(size_t count) {
  CHECK_LE(count, module_batch_.size());
  for (size_t i = 0; i < count; ++i) Advance(module_batch_[i]);
  module_batch_.erase(module_batch_.begin(),
                      module_batch_.begin() + static_cast<std::ptrdiff_t>(count));
}

void Scheduler::AbandonModuleBatch() { Abandon(module_batch_); }

void Scheduler::AdvancePiece() {
  for (const ScheduledSlice& slice : piece_) Advance(slice);
  piece_.clear();
}

void Scheduler::Advance(const ScheduledSlice& slice) {
  Sequence& sequence = *slice.sequence;
  const int64_t kept_at = sequence.computed_tokens + sequence.state.snapshot_tokens;
  sequence.computed_tokens += slice.num_tokens;
  const int64_t limit =
      options_.prefix_cache ? std::min(sequence.computed_tokens, ShareableTokens(sequence)) : 0;
  while ((sequence.blocks.sealed + 1) * kKvBlockTokens <= limit) {
    const int64_t first = sequence.blocks.sealed * kKvBlockTokens;
    kv_.Seal(sequence.blocks,
             {sequence.tokens.data() + first, static_cast<size_t>(kKvBlockTokens)});
    if (store_ != nullptr) store_->Sealed(sequence, sequence.blocks.sealed - 1);
    if (sequence.state.snapshot >= 0 && first + kKvBlockTokens == kept_at) {
      states_.Keep(sequence.state, sequence.blocks.prefix);
      if (store_ != nullptr) {
        store_->StateKept(sequence, sequence.blocks.sealed, sequence.blocks.prefix, false);
      }
    }
  }
  kv_.GiveBackBehind(sequence.blocks, sequence.computed_tokens);
  states_.Advance(sequence.state);
}

std::unique_ptr<Sequence> Scheduler::Remove(Sequence* sequence) {
  std::unique_ptr<Sequence> removed;
  const auto is_it = [&](const std::unique_ptr<Sequence>& other) {
    return other.get() == sequence;
  };
  if (const auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    removed = std::move(*it);
    running_.erase(it);
  } else {
    removed = waiting_.Take(*sequence);
  }
  CHECK(removed != nullptr);
  std::erase(preempted_seqs_, sequence);
  if (empty()) waiting_.Forget();
  foreground_ -= removed->request.background ? 0 : 1;
  background_prompt_logprobs_ -= IsLineWithPromptLogprobs(*removed) ? 1 : 0;
  const auto is_its = [&](const ScheduledSlice& slice) { return slice.sequence == sequence; };
  std::erase_if(plan_, is_its);
  std::erase_if(piece_, is_its);
  std::erase_if(module_batch_, is_its);
  ReleaseBlocks(*removed);
  return removed;
}

Sequence* Scheduler::Find(RequestId id) {
  for (const auto& sequence : running_) {
    if (sequence->id == id) return sequence.get();
  }
  return waiting_.Find(id);
}

void Scheduler::ForEach(const std::function<void(Sequence&)>& visit) {
  for (const auto& sequence : running_) visit(*sequence);
  waiting_.ForEach(visit);
}

}  // namespace moesaic
