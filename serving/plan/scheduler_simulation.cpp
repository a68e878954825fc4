#include "serving/plan/scheduler_simulation.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "core/base/check.h"
#include "core/base/error.h"

namespace moesaic {
namespace {

struct Sequence {
  int64_t prompt = 0;     // to be prefilled: after preemption with what was generated
  int64_t context = 0;    // tokens in the KV cache
  int64_t remaining = 0;  // tokens to be generated
};

class Simulation {
 public:
  Simulation(std::span<const RequestLengths> requests, const SchedulerLimits& limits,
             const std::function<double(const IterationLoad&)>& iteration_s)
      : limits_(limits), iteration_s_(iteration_s), free_blocks_(limits.kv_blocks) {
    CHECK_GT(limits.block_tokens, 0);
    CHECK_GT(limits.token_budget, 0);
    for (const RequestLengths& request : requests) {
      if (Blocks(request.total_tokens()) > limits.kv_blocks) {
        Fail(ErrorKind::kResourceExhausted,
             "a request of {} tokens needs {} blocks of keys and values, there are {}",
             request.total_tokens(), Blocks(request.total_tokens()), limits.kv_blocks);
      }
      waiting_.push_back({request.prompt_tokens, 0, request.generated_tokens});
    }
  }

  SchedulerResult Run() {
    if (limits_.chunked_prefill) {
      RunChunked();
      return result_;
    }
    while (!preempted_.empty() || !waiting_.empty() || !running_.empty()) {
      if (limits_.whole_batches) {
        RunBatch();
      } else {
        RunMixedIteration();
      }
    }
    return result_;
  }

 private:
  int64_t Blocks(int64_t tokens) const {
    int64_t blocks = 0;
    for (const int64_t most : limits_.held_tokens) {
      const int64_t held = most > 0 ? std::min(tokens, most) : tokens;
      blocks += (held + limits_.block_tokens - 1) / limits_.block_tokens;
    }
    return blocks;
  }
  // For the next token.
  int64_t NewBlocks(const Sequence& sequence) const {
    return Blocks(sequence.context + 1) - Blocks(sequence.context);
  }
  int64_t MostSequences() const {
    return limits_.most_sequences > 0 ? limits_.most_sequences : INT64_MAX;
  }

  void Prefill(Sequence& sequence, IterationLoad& load) {
    sequence.context = sequence.prompt;
    free_blocks_ -= Blocks(sequence.prompt);
    load.prefill_tokens += sequence.prompt;
    load.prefill_positions += sequence.prompt * (sequence.prompt + 1) / 2;
    // The pass over a prompt yields its first token, so that g tokens take g - 1 steps more.
    --sequence.remaining;
    ++result_.generated_tokens;
  }

  // All running sequences; the blocks are there.
  void Decode(IterationLoad& load) {
    for (Sequence& sequence : running_) {
      free_blocks_ -= NewBlocks(sequence);
      ++sequence.context;
      --sequence.remaining;
      load.decode_context += sequence.context;
    }
    load.decode_sequences = static_cast<int64_t>(running_.size());
    result_.generated_tokens += load.decode_sequences;
  }

  // Counts an iteration; sequences that have generated all leave with their blocks.
  template <typename Running>
  void Finish(const IterationLoad& load, std::vector<Running>& running) {
    const double seconds = iteration_s_(load);
    result_.seconds += seconds;
    if (load.decode_sequences == 0) result_.prefill_only_s += seconds;
    ++result_.iterations;
    result_.prefill_tokens += load.prefill_tokens;
    result_.most_decoding = std::max(result_.most_decoding, load.decode_sequences);
    result_.most_blocks = std::max(result_.most_blocks, limits_.kv_blocks - free_blocks_);
    std::erase_if(running, [&](const Running& sequence) {
      if (sequence.remaining > 0) return false;
      free_blocks_ += Blocks(sequence.context);
      return true;
    });
  }

  // Newest first, until the next token of the others fits. Whether any left.
  bool Preempt() {
    int64_t need = 0;
    for (const Sequence& sequence : running_) need += NewBlocks(sequence);
    bool preempted = false;
    while (need > free_blocks_) {
      Sequence sequence = running_.back();
      running_.pop_back();
      need -= NewBlocks(sequence);
      free_blocks_ += Blocks(sequence.context);
      sequence.prompt = sequence.context;
      preempted_.push_back(sequence);
      ++result_.preemptions;
      preempted = true;
    }
    return preempted;
  }

  void RunMixedIteration() {
    IterationLoad load;
    const bool preempted = Preempt();
    Decode(load);
    while (!preempted) {
      std::deque<Sequence>& queue = preempted_.empty() ? waiting_ : preempted_;
      if (queue.empty()) break;
      Sequence& next = queue.front();
      const int64_t tokens = load.decode_sequences + load.prefill_tokens;
      const bool within = tokens + next.prompt <= limits_.token_budget || tokens == 0;
      const bool room = static_cast<int64_t>(running_.size()) < MostSequences();
      if (!within || !room || Blocks(next.prompt) > free_blocks_) break;
      Prefill(next, load);
      running_.push_back(next);
      queue.pop_front();
    }
    CHECK(load.prefill_tokens > 0 || load.decode_sequences > 0);
    Finish(load, running_);
  }

  // Takes as many sequences as fit with all that they may generate, prefills them under the budget,
  // and decodes until the last one ends.
  void RunBatch() {
    std::deque<Sequence> batch;
    int64_t reserved = 0;
    while (!waiting_.empty() && static_cast<int64_t>(batch.size()) < MostSequences()) {
      const Sequence& next = waiting_.front();
      const int64_t blocks = Blocks(next.prompt + next.remaining);
      if (reserved + blocks > limits_.kv_blocks) break;
      reserved += blocks;
      batch.push_back(next);
      waiting_.pop_front();
    }
    while (!batch.empty()) {
      IterationLoad load;
      do {
        Prefill(batch.front(), load);
        running_.push_back(batch.front());
        batch.pop_front();
      } while (!batch.empty() &&
               load.prefill_tokens + batch.front().prompt <= limits_.token_budget);
      Finish(load, running_);
    }
    while (!running_.empty()) {
      IterationLoad load;
      Decode(load);
      Finish(load, running_);
    }
  }

  // --- chunked prefill. What a sequence has to compute is its known tokens less its context; the
  // pass that computes the last one yields the next.

  struct Chunked {
    int64_t known = 0;
    int64_t context = 0;
    int64_t remaining = 0;
    int64_t planned = 0;  // tokens of this iteration
    int64_t pending() const { return known - context; }
  };

  int64_t MissingBlocks(const Chunked& sequence, int64_t tokens) const {
    return Blocks(sequence.context + tokens) - Blocks(sequence.context);
  }

  // Takes the newest running sequence out. Nothing is planned of it yet: decoding ones are planned
  // oldest first, and after them at most one unfinished prompt, the newest of all: behind one that
  // did not fit the budget nobody was admitted.
  void PreemptNewest(std::deque<Chunked>& waiting, std::vector<Chunked>& running) {
    Chunked victim = running.back();
    CHECK_EQ(victim.planned, 0);
    running.pop_back();
    free_blocks_ += Blocks(victim.context);
    victim.context = 0;
    waiting.push_front(victim);
    ++result_.preemptions;
  }

  // Plans tokens of running[i]; false when it had to leave itself.
  bool PlanTokens(std::deque<Chunked>& waiting, std::vector<Chunked>& running, size_t i,
                  int64_t tokens, int64_t& budget) {
    const int64_t need = MissingBlocks(running[i], tokens);
    while (need > free_blocks_) {
      const bool itself = i + 1 == running.size();
      PreemptNewest(waiting, running);
      if (itself) return false;
    }
    free_blocks_ -= need;
    running[i].planned = tokens;
    budget -= tokens;
    return true;
  }

  void RunChunked() {
    std::deque<Chunked> waiting;
    for (const Sequence& sequence : waiting_) {
      waiting.push_back({sequence.prompt, 0, sequence.remaining, 0});
    }
    waiting_.clear();
    std::vector<Chunked> running;
    while (!waiting.empty() || !running.empty()) {
      int64_t budget = limits_.token_budget;
      const int64_t preempted_before = result_.preemptions;
      for (const bool decoding : {true, false}) {
        for (size_t i = 0; i < running.size() && budget > 0; ++i) {
          if ((running[i].pending() == 1) != decoding || running[i].planned > 0) continue;
          PlanTokens(waiting, running, i, std::min(running[i].pending(), budget), budget);
        }
      }
      while (result_.preemptions == preempted_before && !waiting.empty() && budget > 0 &&
             static_cast<int64_t>(running.size()) < MostSequences()) {
        if (Blocks(waiting.front().known) > free_blocks_ && !running.empty()) break;
        running.push_back(waiting.front());
        waiting.pop_front();
        PlanTokens(waiting, running, running.size() - 1, std::min(running.back().pending(), budget),
                   budget);
      }
      FinishChunked(running);
    }
  }

  void FinishChunked(std::vector<Chunked>& running) {
    IterationLoad load;
    for (Chunked& sequence : running) {
      if (sequence.planned == 0) continue;
      const bool decodes = sequence.pending() == 1;
      const int64_t positions =
          sequence.planned * sequence.context + sequence.planned * (sequence.planned + 1) / 2;
      sequence.context += sequence.planned;
      if (decodes) {
        ++load.decode_sequences;
        load.decode_context += positions;
      } else {
        load.prefill_tokens += sequence.planned;
        load.prefill_positions += positions;
      }
      sequence.planned = 0;
      if (sequence.pending() > 0) continue;
      load.prompts_ended += !decodes;
      ++sequence.known;
      --sequence.remaining;
      ++result_.generated_tokens;
    }
    CHECK(load.prefill_tokens > 0 || load.decode_sequences > 0);
    Finish(load, running);
  }

  const SchedulerLimits limits_;
  const std::function<double(const IterationLoad&)>& iteration_s_;
  std::deque<Sequence> waiting_;
  std::deque<Sequence> preempted_;  // admitted before those that wait; the first to leave first
  std::vector<Sequence> running_;   // oldest first
  int64_t free_blocks_;
  SchedulerResult result_;
};

}  // namespace

SchedulerResult SimulateScheduler(std::span<const RequestLengths> requests,
                                  const SchedulerLimits& limits,
                                  const std::function<double(const IterationLoad&)>& iteration_s) {
  return Simulation(requests, limits, iteration_s).Run();
}

}  // namespace moesaic
