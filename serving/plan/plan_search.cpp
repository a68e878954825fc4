#include "serving/plan/plan_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "serving/plan/job_loads.h"

namespace moesaic {
namespace {

// Task graphs are computed for this many candidates of a schedule, best bound first.
constexpr size_t kMostGraphs = 200;
// A candidate whose bound is within this of the best is not worth its graph.
constexpr double kWorthwhile = 1e-3;
struct Scored {
  PlanCandidate candidate;
  double bound_s = 0;
  double wall_s = 0;
};

IterationLoad DecodeLoad(const PlanProblem& problem, double sequences) {
  IterationLoad load;
  load.decode_sequences = std::max<int64_t>(1, std::llround(sequences));
  load.decode_context = std::llround(static_cast<double>(load.decode_sequences) *
                                     (problem.mean_prompt + problem.mean_generated / 2));
  return load;
}

}  // namespace

Phases PhasesOf(const PlanProblem& problem, const PlanCandidate& c) {
  Phases phases;
  const auto batch = static_cast<double>(c.batch_sequences);
  const double batches = std::ceil(static_cast<double>(problem.requests) / batch);
  const double tokens = batch * problem.mean_prompt;
  const double passes = std::ceil(tokens / static_cast<double>(c.token_budget));
  phases.prefill = PrefillLoad(tokens / passes, problem.mean_prompt);
  phases.decode = DecodeLoad(problem, batch);
  phases.prefill_passes = batches * passes;
  phases.decode_steps = batches * std::max(0.0, problem.mean_generated - 1);
  return phases;
}

MixedState MixedStateOf(const PlanProblem& problem, const PlanCandidate& c) {
  MixedState state;
  LensJob& job = state.job;
  job.prompt_tokens = std::max<int64_t>(1, std::llround(problem.mean_prompt));
  job.generated_tokens = std::max<int64_t>(1, std::llround(problem.mean_generated));
  job.requests = problem.requests;
  job.kv_blocks = c.kv_blocks;
  job.block_tokens = problem.kv_block_tokens;
  job.token_budget = static_cast<double>(c.token_budget);
  job.iteration_s = 1;
  const LensPrediction lens = LensStage2(job);
  const double scale = lens.kv_bound ? 1 : job.token_budget / lens.tokens_per_iteration;
  const double decoding =
      std::min({lens.decode_per_iteration * scale, static_cast<double>(c.batch_sequences),
                static_cast<double>(problem.requests)});
  const double prompts = decoding / static_cast<double>(job.generated_tokens);
  state.load = DecodeLoad(problem, decoding);
  const IterationLoad prefill = PrefillLoad(prompts * problem.mean_prompt, problem.mean_prompt);
  state.load.prefill_tokens = prefill.prefill_tokens;
  state.load.prefill_positions = prefill.prefill_positions;
  return state;
}

namespace {

// A layer's tokens from which on its compute hides its copies, when nothing is resident.
double TokensThatHideLayer(const PlanProblem& problem) {
  const ModelShape& model = problem.model;
  const double bytes_per_weight =
      static_cast<double>(model.ExpertBytes()) / static_cast<double>(model.ExpertParameters());
  return TokensThatHideExpert(problem.Device().flop_per_s,
                              problem.machine.link_in_bytes_per_s.value, bytes_per_weight) *
         static_cast<double>(model.num_experts) / static_cast<double>(model.top_k);
}

double MixedWall(const PlanProblem& problem, MixedState state, double iteration_s) {
  state.job.iteration_s = iteration_s;
  // However few requests, one of them takes its tokens in turn.
  const double least = problem.mean_generated * iteration_s;
  return std::max(least, static_cast<double>(problem.requests) * problem.mean_generated /
                             LensStage2(state.job).tokens_per_s);
}

// By `iteration_s`, the duration of an iteration with this load.
template <typename IterationSeconds>
double WallOf(const PlanProblem& problem, const PlanCandidate& c,
              const IterationSeconds& iteration_s) {
  if (c.schedule == ScheduleKind::kOverlapped) {
    const MixedState state = MixedStateOf(problem, c);
    return MixedWall(problem, state, iteration_s(state.load));
  }
  const Phases phases = PhasesOf(problem, c);
  return phases.prefill_passes * iteration_s(phases.prefill) +
         phases.decode_steps * iteration_s(phases.decode);
}

double BoundWall(const PlanProblem& problem, const PlanCandidate& c) {
  return WallOf(problem, c,
                [&](const IterationLoad& load) { return IterationBound(problem, c, load); });
}

double EstimateWall(const PlanProblem& problem, const PlanCandidate& c) {
  return WallOf(problem, c, [&](const IterationLoad& load) {
    return PredictIteration(problem, c, load).iteration_s;
  });
}

std::vector<int64_t> BatchSizes(const PlanProblem& problem, const PlanOptions& options) {
  if (options.batch_sequences > 0) return {options.batch_sequences};
  int64_t most = problem.requests;
  if (options.most_sequences > 0) most = std::min(most, options.most_sequences);
  // Never more than host memory holds of their keys and values alone.
  const double bytes = static_cast<double>(problem.model.KvBytesPerToken()) *
                       (problem.mean_prompt + problem.mean_generated);
  const double held = problem.machine.host_memory_bytes.value / bytes;
  if (held < static_cast<double>(most)) most = std::max<int64_t>(1, static_cast<int64_t>(held));
  return SequenceCounts(problem.requests, most, 12);
}

// Collects the candidates that fit, with their bounds.
class Search {
 public:
  Search(const PlanProblem& problem, const PlanOptions& options)
      : problem_(problem),
        options_(options),
        packet_sizes_(PacketSizes(problem)),
        packet_bytes_(packet_sizes_[packet_sizes_.size() / 2]) {}

  std::optional<PlanCandidate> Run(ScheduleKind schedule) {
    found_.clear();
    for (const int64_t size : BatchSizes(problem_, options_)) {
      PlanCandidate c;
      c.schedule = schedule;
      c.packet_bytes = packet_bytes_;
      c.batch_sequences = size;
      const size_t before = found_.size();
      for (const bool dense_resident : {true, false}) {
        // Streaming dense weights makes sense only where they do not fit beside this batch.
        if (!dense_resident && (found_.size() > before || !problem_.has_gpu())) break;
        c.dense_resident = dense_resident;
        if (schedule == ScheduleKind::kOverlapped) {
          TryOverlapped(c);
        } else {
          TryBatches(c);
        }
      }
    }
    std::optional<PlanCandidate> best = Best();
    // The others with the packet that is best for the best, once.
    if (!best || !BetterPacket(*best)) return best;
    for (Scored& scored : found_) {
      scored.candidate.packet_bytes = best->packet_bytes;
      scored.bound_s = BoundWall(problem_, scored.candidate);
    }
    std::optional<PlanCandidate> again = Best();
    BetterPacket(*again);
    const bool better = EstimateWall(problem_, *again) < EstimateWall(problem_, *best);
    return better ? again : best;
  }

 private:
  // Whether more buffers than these could make another candidate.
  bool Consider(PlanCandidate c, int64_t buffers) {
    const int64_t fits = ChooseResident(problem_, c, buffers);
    if (fits < 0) return false;
    if (options_.resident_experts >= 0 && fits > options_.resident_experts) {
      c.resident_experts = options_.resident_experts;
      c.expert_buffers = BuffersFor(problem_, c.schedule, c.resident_experts, buffers);
    }
    found_.push_back({c, BoundWall(problem_, c)});
    return c.expert_buffers == buffers;
  }

  void TryBatches(PlanCandidate c) {
    const double mean = problem_.mean_prompt + problem_.mean_generated;
    c.kv_blocks = std::max(problem_.KvBlocksOf(static_cast<double>(problem_.longest)),
                           c.batch_sequences * problem_.KvBlocksOf(mean));
    // A few times what hides the copies: hidden states of more would only take memory. Less where
    // even those leave no room for the batch's keys and values.
    const double tokens = static_cast<double>(c.batch_sequences) * problem_.mean_prompt;
    const size_t before = found_.size();
    for (const double part : {4.0, 1.0, 0.25}) {
      const double enough = std::max(8192.0, part * TokensThatHideLayer(problem_));
      c.token_budget = std::max(problem_.longest_prompt,
                                static_cast<int64_t>(std::ceil(std::min(tokens, enough))));
      TryMicroBatches(c);
      if (found_.size() > before) break;
    }
  }

  void TryMicroBatches(PlanCandidate c) {
    const bool gpu = problem_.has_gpu();
    const bool modules = c.schedule == ScheduleKind::kModuleBatching;
    c.micro_batch_tokens = std::min<int64_t>(c.token_budget, gpu ? 4096 : 1024);
    std::vector<int64_t> counts = {1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 19, 24, 32, 48, 64};
    if (options_.micro_batches > 0) counts = {options_.micro_batches};
    for (const int64_t count : counts) {
      const bool searched = counts.size() > 1;
      if (count > c.batch_sequences || (searched && !gpu && count > 8)) break;
      // CGOPipe looks two micro-batches ahead.
      if (searched && !modules && gpu && count < 3 && c.batch_sequences >= 3) continue;
      c.micro_batches = count;
      for (const int64_t rows :
           gpu ? std::array<int64_t, 2>{2048, 256} : std::array<int64_t, 2>{512, 64}) {
        c.expert_micro_batch = rows;
        for (int64_t tenths = 10; tenths >= (gpu ? 0 : 10); tenths -= modules ? 1 : 10) {
          c.cpu_attention_tenths = tenths;
          for (const int64_t buffers : {2, 4, 8, 32, 128}) {
            if (!Consider(c, buffers) || !modules) break;
          }
        }
        if (!modules) break;
      }
    }
  }

  void TryOverlapped(PlanCandidate c) {
    const double mean = problem_.mean_prompt + problem_.mean_generated / 2;
    c.kv_blocks = std::max(problem_.KvBlocksOf(static_cast<double>(problem_.longest)),
                           c.batch_sequences * problem_.KvBlocksOf(mean));
    c.micro_batches = 2;
    c.cpu_attention_tenths = 10;
    const double hide = TokensThatHideLayer(problem_);
    for (const double part : {0.25, 0.5, 1.0, 2.0, 4.0}) {
      c.token_budget = std::max(
          {problem_.longest_prompt, c.batch_sequences + 1, static_cast<int64_t>(part * hide)});
      c.micro_batch_tokens = (c.token_budget + 1) / 2;
      c.expert_micro_batch = std::min<int64_t>(c.micro_batch_tokens, 2048);
      Consider(c, 0);
    }
  }

  // The largest packet with which the candidate is as fast as with any; whether it is another.
  bool BetterPacket(PlanCandidate& c) const {
    const uint64_t before = c.packet_bytes;
    double best = INFINITY;
    for (const uint64_t size : packet_sizes_) {
      PlanCandidate other = c;
      other.packet_bytes = size;
      const double wall = EstimateWall(problem_, other);
      if (wall > best * (1 + kWorthwhile)) continue;
      best = std::min(best, wall);
      c.packet_bytes = size;
    }
    return c.packet_bytes != before;
  }

  std::optional<PlanCandidate> Best() {
    std::sort(found_.begin(), found_.end(),
              [](const Scored& a, const Scored& b) { return a.bound_s < b.bound_s; });
    double best = INFINITY;
    size_t graphs = 0;
    std::optional<PlanCandidate> result;
    for (Scored& scored : found_) {
      if (scored.bound_s >= best * (1 - kWorthwhile) || graphs++ == kMostGraphs) break;
      scored.wall_s = EstimateWall(problem_, scored.candidate);
      if (scored.wall_s >= best * (1 - kWorthwhile)) continue;
      best = scored.wall_s;
      result = scored.candidate;
    }
    return result;
  }

  const PlanProblem& problem_;
  const PlanOptions& options_;
  const std::vector<uint64_t> packet_sizes_;
  const uint64_t packet_bytes_;  // to begin with
  std::vector<Scored> found_;
};

}  // namespace

std::optional<PlanCandidate> SearchCandidates(const PlanProblem& problem,
                                              const PlanOptions& options, ScheduleKind schedule) {
  return Search(problem, options).Run(schedule);
}

}  // namespace moesaic
