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
    while (!waiting_.empty() || !running_.empty()) {
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
    return (tokens + limits_.block_tokens - 1) / limits_.block_tokens;
  }
  bool NeedsBlock(const Sequence& sequence) const {
    return sequence.context % limits_.block_tokens == 0;
  }
  int64_t MostSequences() const {
    return limits_.most_sequences > 0 ? limits_.most_sequences : INT64_MAX;
  }

  void Prefill(Sequence& sequence, IterationLoad& load) {
    sequence.context = sequence.prompt;
    free_blocks_ -= Blocks(sequence.prompt);
    load.prefill_tokens += sequence.prompt;
    load.prefill_positions += sequence.prompt * (sequence.prompt + 1) / 2;
    if (limits_.prefill_yields_token) {
      --sequence.remaining;
      ++result_.generated_tokens;
    }
  }

  // All running sequences; the blocks are there.
  void Decode(IterationLoad& load) {
    for (Sequence& sequence : running_) {
      if (NeedsBlock(sequence)) --free_blocks_;
      ++sequence.context;
      --sequence.remaining;
      load.decode_context += sequence.context;
    }
    load.decode_sequences = static_cast<int64_t>(running_.size());
    result_.generated_tokens += load.decode_sequences;
  }

  void Finish(const IterationLoad& load) {
    const double seconds = iteration_s_(load);
    result_.seconds += seconds;
    if (load.decode_sequences == 0) result_.prefill_only_s += seconds;
    ++result_.iterations;
    result_.prefill_tokens += load.prefill_tokens;
    result_.most_decoding = std::max(result_.most_decoding, load.decode_sequences);
    result_.most_blocks = std::max(result_.most_blocks, limits_.kv_blocks - free_blocks_);
    std::erase_if(running_, [&](const Sequence& sequence) {
      if (sequence.remaining > 0) return false;
      free_blocks_ += Blocks(sequence.context);
      return true;
    });
  }

  // Newest first, until the next token of the others fits. Whether any left.
  bool Preempt() {
    int64_t need = std::count_if(running_.begin(), running_.end(),
                                 [&](const Sequence& sequence) { return NeedsBlock(sequence); });
    bool preempted = false;
    while (need > free_blocks_) {
      Sequence sequence = running_.back();
      running_.pop_back();
      if (NeedsBlock(sequence)) --need;
      free_blocks_ += Blocks(sequence.context);
      sequence.prompt = sequence.context;
      waiting_.push_front(sequence);
      ++result_.preemptions;
      preempted = true;
    }
    return preempted;
  }

  void RunMixedIteration() {
    IterationLoad load;
    const bool preempted = Preempt();
    Decode(load);
    while (!preempted && !waiting_.empty()) {
      Sequence& next = waiting_.front();
      const int64_t tokens = load.decode_sequences + load.prefill_tokens;
      const bool within = tokens + next.prompt <= limits_.token_budget || tokens == 0;
      const bool room = static_cast<int64_t>(running_.size()) < MostSequences();
      if (!within || !room || Blocks(next.prompt) > free_blocks_) break;
      Prefill(next, load);
      running_.push_back(next);
      waiting_.pop_front();
    }
    CHECK(load.prefill_tokens > 0 || load.decode_sequences > 0);
    Finish(load);
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
      Finish(load);
    }
    while (!running_.empty()) {
      IterationLoad load;
      Decode(load);
      Finish(load);
    }
  }

  const SchedulerLimits limits_;
  const std::function<double(const IterationLoad&)>& iteration_s_;
  std::deque<Sequence> waiting_;
  std::vector<Sequence> running_;  // oldest first
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
