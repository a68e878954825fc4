#include "serving/engine/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/check.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {
namespace {

int64_t PendingTokens(const Sequence& sequence) {
  return static_cast<int64_t>(sequence.tokens.size()) - sequence.computed_tokens;
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options, KvPools& pools)
    : options_(options), pools_(pools), states_(options.state_slots) {
  CHECK(options.state_slots == 0 || options.state_slots >= options.max_num_seqs);
  plan_.reserve(static_cast<size_t>(options.max_num_seqs));
}

void Scheduler::Add(std::unique_ptr<Sequence> sequence) { waiting_.push_back(std::move(sequence)); }

std::span<const ScheduledSlice> Scheduler::Plan() {
  plan_.clear();
  budget_ = options_.max_batch_tokens;
  preempted_ = false;
  PlanDecodes();
  PlanPrefills();
  // Who was just preempted lacks room, unless another one holds the same prefix; nobody joins then
  // in any case, as the planner's simulation has it (serving/plan/scheduler_simulation).
  if (!preempted_) Admit();
  return plan_;
}

void Scheduler::PlanDecodes() {
  // Preemption shortens running_ from the back while this walks it.
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (PendingTokens(sequence) != 1 || !EnsureBlocks(sequence, 1)) continue;
    plan_.push_back({&sequence, 1});
    --budget_;
  }
}

void Scheduler::PlanPrefills() {
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (PendingTokens(sequence) == 1) continue;
    const int64_t tokens = std::min(PendingTokens(sequence), budget_);
    if (!EnsureBlocks(sequence, tokens)) continue;
    plan_.push_back({&sequence, tokens});
    budget_ -= tokens;
  }
}

void Scheduler::Admit() {
  while (!waiting_.empty() && budget_ > 0 &&
         static_cast<int64_t>(running_.size()) < options_.max_num_seqs) {
    Sequence& sequence = *waiting_.front();
    ReusePrefix(sequence);
    const int64_t tokens = std::min(PendingTokens(sequence), budget_);
    // Room for all that is pending, not just for this chunk: a prompt that is admitted and
    // preempted half way has cost its work twice.
    const bool room =
        pools_.HasRoom(sequence.blocks, std::ssize(sequence.tokens), options_.max_batch_tokens);
    if (!room && !running_.empty()) {
      ReleaseBlocks(sequence);
      return;
    }
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    if (!EnsureBlocks(sequence, tokens)) return;
    sequence.admitted = true;
    plan_.push_back({&sequence, tokens});
    budget_ -= tokens;
  }
}

// The first so many positions have the keys and values that any sequence with these tokens has.
int64_t Scheduler::ShareableTokens(const Sequence& sequence) const {
  return options_.share_only_prompts ? sequence.decode_from() : std::numeric_limits<int64_t>::max();
}

void Scheduler::ReusePrefix(Sequence& sequence) {
  if (!options_.prefix_cache || sequence.computed_tokens > 0 || sequence.wants_prompt_logprobs())
    return;
  // One token at least is computed: its logits are wanted.
  const int64_t limit =
      std::min(static_cast<int64_t>(sequence.tokens.size()) - 1, ShareableTokens(sequence));
  while (sequence.computed_tokens + kKvBlockTokens <= limit) {
    const bool found = pools_.Reuse(
        sequence.blocks,
        {sequence.tokens.data() + sequence.computed_tokens, static_cast<size_t>(kKvBlockTokens)});
    if (!found) break;
    sequence.computed_tokens += kKvBlockTokens;
  }
  pools_.GiveBackBehind(sequence.blocks, sequence.computed_tokens);
  if (!sequence.admitted) {
    sequence.cached_tokens = std::min(sequence.computed_tokens, sequence.prompt_tokens);
  }
}

// Blocks for num_tokens more tokens, preempting newer sequences if need be. False when the sequence
// itself had to be preempted.
bool Scheduler::EnsureBlocks(Sequence& sequence, int64_t num_tokens) {
  while (!pools_.Grow(sequence.blocks, sequence.computed_tokens + num_tokens)) {
    const bool itself = running_.back().get() == &sequence;
    // Alone and without room: the engine admits only what fits the pool.
    CHECK(!itself || running_.size() > 1);
    PreemptNewest();
    if (itself) return false;
  }
  if (sequence.state.slot < 0) states_.Open(sequence.state);
  return true;
}

void Scheduler::PreemptNewest() {
  std::unique_ptr<Sequence> victim = std::move(running_.back());
  running_.pop_back();
  const auto planned = std::find_if(plan_.begin(), plan_.end(), [&](const ScheduledSlice& slice) {
    return slice.sequence == victim.get();
  });
  if (planned != plan_.end()) {
    budget_ += planned->num_tokens;
    plan_.erase(planned);
  }
  ReleaseBlocks(*victim);
  waiting_.push_front(std::move(victim));
  preempted_ = true;
  ++preemptions_;
}

void Scheduler::ReleaseBlocks(Sequence& sequence) {
  pools_.Release(sequence.blocks);
  states_.Release(sequence.state);
  sequence.computed_tokens = 0;
}

void Scheduler::Abandon() {
  if (states_.num_slots() > 0) {
    for (const ScheduledSlice& slice : plan_) ReleaseBlocks(*slice.sequence);
  }
  plan_.clear();
}

void Scheduler::Advance() {
  for (const ScheduledSlice& slice : plan_) {
    Sequence& sequence = *slice.sequence;
    sequence.computed_tokens += slice.num_tokens;
    states_.Advance(sequence.state);
    const int64_t limit =
        options_.prefix_cache ? std::min(sequence.computed_tokens, ShareableTokens(sequence)) : 0;
    while ((sequence.blocks.sealed + 1) * kKvBlockTokens <= limit) {
      const int64_t first = sequence.blocks.sealed * kKvBlockTokens;
      pools_.Seal(sequence.blocks,
                  {sequence.tokens.data() + first, static_cast<size_t>(kKvBlockTokens)});
    }
    pools_.GiveBackBehind(sequence.blocks, sequence.computed_tokens);
  }
  plan_.clear();
}

std::unique_ptr<Sequence> Scheduler::Remove(Sequence* sequence) {
  std::unique_ptr<Sequence> removed;
  const auto is_it = [&](const std::unique_ptr<Sequence>& other) {
    return other.get() == sequence;
  };
  if (const auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    removed = std::move(*it);
    running_.erase(it);
  } else if (const auto at = std::find_if(waiting_.begin(), waiting_.end(), is_it);
             at != waiting_.end()) {
    removed = std::move(*at);
    waiting_.erase(at);
  }
  CHECK(removed != nullptr);
  std::erase_if(plan_, [&](const ScheduledSlice& slice) { return slice.sequence == sequence; });
  ReleaseBlocks(*removed);
  return removed;
}

Sequence* Scheduler::Find(RequestId id) {
  for (const auto& sequence : running_) {
    if (sequence->id == id) return sequence.get();
  }
  for (const auto& sequence : waiting_) {
    if (sequence->id == id) return sequence.get();
  }
  return nullptr;
}

void Scheduler::ForEach(const std::function<void(Sequence&)>& visit) {
  for (const auto& sequence : running_) visit(*sequence);
  for (const auto& sequence : waiting_) visit(*sequence);
}

}  // namespace moesaic
