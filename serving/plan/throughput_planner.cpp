#include "serving/plan/throughput_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/plan/lens_model.h"
#include "serving/plan/plan_candidate.h"
#include "serving/plan/scheduler_simulation.h"

namespace moesaic {
namespace {

// Task graphs are computed for this many candidates of a schedule, best bound first.
constexpr size_t kMostGraphs = 200;
// A candidate whose bound is within this of the best is not worth its graph.
constexpr double kWorthwhile = 1e-3;
// Workloads with more tokens than this are simulated by an even sample of their requests.
constexpr int64_t kMostSimulatedTokens = 50'000'000;

constexpr std::array kAllSchedules = {ScheduleKind::kModuleBatching, ScheduleKind::kPagedWeights,
                                      ScheduleKind::kOverlapped};

struct Scored {
  PlanCandidate candidate;
  double bound_s = 0;
  double wall_s = 0;
};

PlanProblem MakeProblem(const ModelShape& model, const MachineSpec& machine,
                        const Workload& workload, const PlanOptions& options) {
  PlanProblem problem{model, machine};
  problem.mean_prompt = workload.mean_prompt();
  problem.mean_generated = workload.mean_generated();
  for (const RequestLengths& request : workload.requests) {
    problem.longest_prompt = std::max(problem.longest_prompt, request.prompt_tokens);
  }
  problem.longest = workload.longest();
  problem.requests = static_cast<int64_t>(workload.requests.size());
  problem.kv_block_tokens = options.kv_block_tokens;
  return problem;
}

// A layer's tokens from which on its compute hides its copies, when nothing is resident.
double TokensThatHideLayer(const PlanProblem& problem) {
  const ModelShape& model = problem.model;
  const double bytes_per_weight =
      static_cast<double>(model.ExpertBytes()) / static_cast<double>(model.ExpertParameters());
  return TokensThatHideExpert(problem.Device().flop_per_s,
                              problem.machine.link_in_bytes_per_s.value, bytes_per_weight) *
         static_cast<double>(model.num_experts) / static_cast<double>(model.top_k);
}

IterationLoad PrefillLoad(const PlanProblem& problem, double tokens) {
  IterationLoad load;
  load.prefill_tokens = std::max<int64_t>(1, std::llround(tokens));
  load.prefill_positions = std::llround(tokens * (problem.mean_prompt + 1) / 2);
  return load;
}

IterationLoad DecodeLoad(const PlanProblem& problem, double sequences) {
  IterationLoad load;
  load.decode_sequences = std::max<int64_t>(1, std::llround(sequences));
  load.decode_context = std::llround(static_cast<double>(load.decode_sequences) *
                                     (problem.mean_prompt + problem.mean_generated / 2));
  return load;
}

// What a candidate processes: passes of prefill and steps of decode that differ only in context.
struct Phases {
  IterationLoad prefill;
  IterationLoad decode;
  double prefill_passes = 0;
  double decode_steps = 0;
};

Phases PhasesOf(const PlanProblem& problem, const PlanCandidate& c) {
  Phases phases;
  const auto batch = static_cast<double>(c.batch_sequences);
  const double batches = std::ceil(static_cast<double>(problem.requests) / batch);
  const double tokens = batch * problem.mean_prompt;
  const double passes = std::ceil(tokens / static_cast<double>(c.token_budget));
  phases.prefill = PrefillLoad(problem, tokens / passes);
  phases.decode = DecodeLoad(problem, batch);
  phases.prefill_passes = batches * passes;
  phases.decode_steps = batches * std::max(0.0, problem.mean_generated - 1);
  return phases;
}

// Prefill and decode in every iteration: the steady state of MoE-Lens' Stage 2.
struct MixedState {
  LensJob job;
  IterationLoad load;
};

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
  const IterationLoad prefill = PrefillLoad(problem, prompts * problem.mean_prompt);
  state.load.prefill_tokens = prefill.prefill_tokens;
  state.load.prefill_positions = prefill.prefill_positions;
  return state;
}

double MixedWall(const PlanProblem& problem, MixedState state, double iteration_s) {
  state.job.iteration_s = iteration_s;
  // However few requests, one of them takes its tokens in turn.
  const double least = problem.mean_generated * iteration_s;
  return std::max(least, static_cast<double>(problem.requests) * problem.mean_generated /
                             LensStage2(state.job).tokens_per_s);
}

double BoundWall(const PlanProblem& problem, const PlanCandidate& c) {
  if (c.schedule == ScheduleKind::kOverlapped) {
    const MixedState state = MixedStateOf(problem, c);
    return MixedWall(problem, state, IterationBound(problem, c, state.load));
  }
  const Phases phases = PhasesOf(problem, c);
  return phases.prefill_passes * IterationBound(problem, c, phases.prefill) +
         phases.decode_steps * IterationBound(problem, c, phases.decode);
}

double EstimateWall(const PlanProblem& problem, const PlanCandidate& c) {
  if (c.schedule == ScheduleKind::kOverlapped) {
    const MixedState state = MixedStateOf(problem, c);
    return MixedWall(problem, state, PredictIteration(problem, c, state.load).iteration_s);
  }
  const Phases phases = PhasesOf(problem, c);
  return phases.prefill_passes * PredictIteration(problem, c, phases.prefill).iteration_s +
         phases.decode_steps * PredictIteration(problem, c, phases.decode).iteration_s;
}

// Batch sizes worth a look: geometric, and those that split the requests evenly.
std::vector<int64_t> BatchSizes(const PlanProblem& problem, const PlanOptions& options) {
  if (options.batch_sequences > 0) return {options.batch_sequences};
  int64_t most = problem.requests;
  if (options.most_sequences > 0) most = std::min(most, options.most_sequences);
  // Never more than host memory holds of their keys and values alone.
  const double bytes = static_cast<double>(problem.model.KvBytesPerToken()) *
                       (problem.mean_prompt + problem.mean_generated);
  const double held = problem.machine.host_memory_bytes.value / bytes;
  if (held < static_cast<double>(most)) most = std::max<int64_t>(1, static_cast<int64_t>(held));
  std::vector<int64_t> sizes;
  for (double size = 1; size < static_cast<double>(most); size = std::max(size + 1, size * 1.3)) {
    sizes.push_back(static_cast<int64_t>(size));
  }
  for (int64_t batches = 1; batches <= 12; ++batches) {
    const int64_t size = (problem.requests + batches - 1) / batches;
    if (size <= most) sizes.push_back(size);
  }
  sizes.push_back(most);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// Collects the candidates that fit, with their bounds.
class Search {
 public:
  Search(const PlanProblem& problem, const PlanOptions& options)
      : problem_(problem), options_(options), packet_bytes_(ChoosePacket(problem)) {}

  std::vector<Scored> Run(ScheduleKind schedule) {
    found_.clear();
    for (const int64_t size : BatchSizes(problem_, options_)) {
      PlanCandidate c;
      c.schedule = schedule;
      c.packet_bytes = packet_bytes_;
      c.batch_sequences = size;
      for (const bool dense_resident : {true, false}) {
        // Streaming dense weights makes sense only where they do not fit.
        if (!dense_resident && (!found_.empty() || !problem_.has_gpu())) break;
        c.dense_resident = dense_resident;
        if (schedule == ScheduleKind::kOverlapped) {
          TryOverlapped(c);
        } else {
          TryBatches(c);
        }
      }
    }
    std::sort(found_.begin(), found_.end(),
              [](const Scored& a, const Scored& b) { return a.bound_s < b.bound_s; });
    return Best();
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
    // A few times what hides the copies; hidden states of more would only take memory.
    const double tokens = static_cast<double>(c.batch_sequences) * problem_.mean_prompt;
    const double enough = std::max(8192.0, 4 * TokensThatHideLayer(problem_));
    c.token_budget = std::max(problem_.longest_prompt,
                              static_cast<int64_t>(std::ceil(std::min(tokens, enough))));
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

  std::vector<Scored> Best() {
    double best = INFINITY;
    size_t graphs = 0;
    std::vector<Scored> result;
    for (Scored& scored : found_) {
      if (scored.bound_s >= best * (1 - kWorthwhile) || graphs++ == kMostGraphs) break;
      scored.wall_s = EstimateWall(problem_, scored.candidate);
      if (scored.wall_s >= best * (1 - kWorthwhile)) continue;
      best = scored.wall_s;
      result = {scored};
    }
    return result;
  }

  const PlanProblem& problem_;
  const PlanOptions& options_;
  const uint64_t packet_bytes_;
  std::vector<Scored> found_;
};

// Iteration times by rounded load: the pipeline's period changes little within two per cent.
class IterationTimes {
 public:
  IterationTimes(const PlanProblem& problem, const PlanCandidate& candidate)
      : problem_(problem), candidate_(candidate) {}

  double operator()(const IterationLoad& load) {
    const Key key = {Bucket(load.decode_sequences), Bucket(load.decode_context),
                     Bucket(load.prefill_tokens), Bucket(load.prefill_positions)};
    const auto found = seconds_.find(key);
    if (found != seconds_.end()) return found->second;
    const IterationLoad rounded{Value(key[0]), Value(key[1]), Value(key[2]), Value(key[3])};
    return seconds_[key] = PredictIteration(problem_, candidate_, rounded).iteration_s;
  }

 private:
  using Key = std::array<int, 4>;
  static constexpr double kStep = 1.02;
  static int Bucket(int64_t count) {
    if (count <= 0) return -1;
    return static_cast<int>(std::lround(std::log(static_cast<double>(count)) / std::log(kStep)));
  }
  static int64_t Value(int bucket) {
    return bucket < 0 ? 0 : std::llround(std::pow(kStep, bucket));
  }

  const PlanProblem& problem_;
  const PlanCandidate& candidate_;
  std::map<Key, double> seconds_;
};

// An even sample that is small enough, and how many requests one of it stands for.
std::pair<std::vector<RequestLengths>, double> SampleOf(const Workload& workload) {
  const int64_t stride = workload.generated_tokens() / kMostSimulatedTokens + 1;
  if (stride == 1) return {workload.requests, 1.0};
  std::vector<RequestLengths> sample;
  for (size_t i = 0; i < workload.requests.size(); i += static_cast<size_t>(stride)) {
    sample.push_back(workload.requests[i]);
  }
  const double each =
      static_cast<double>(workload.requests.size()) / static_cast<double>(sample.size());
  return {std::move(sample), each};
}

PlanPrediction Predict(const PlanProblem& problem, const PlanCandidate& c,
                       const Workload& workload) {
  PlanPrediction prediction;
  const bool overlapped = c.schedule == ScheduleKind::kOverlapped;
  if (overlapped) {
    MixedState state = MixedStateOf(problem, c);
    prediction.decode = PredictIteration(problem, c, state.load);
    state.job.iteration_s = prediction.decode.iteration_s;
    prediction.lens = LensStage2(state.job);
    prediction.prefill =
        PredictIteration(problem, c, PrefillLoad(problem, static_cast<double>(c.token_budget)));
  } else {
    const Phases phases = PhasesOf(problem, c);
    prediction.prefill = PredictIteration(problem, c, phases.prefill);
    prediction.decode = PredictIteration(problem, c, phases.decode);
  }
  const auto [requests, each] = SampleOf(workload);
  SchedulerLimits limits;
  limits.kv_blocks = c.kv_blocks;
  limits.block_tokens = problem.kv_block_tokens;
  limits.token_budget = c.token_budget;
  limits.most_sequences = c.batch_sequences;
  limits.whole_batches = !overlapped;
  IterationTimes times(problem, c);
  const SchedulerResult result = SimulateScheduler(requests, limits, std::ref(times));
  prediction.iterations = std::llround(static_cast<double>(result.iterations) * each);
  prediction.preemptions = std::llround(static_cast<double>(result.preemptions) * each);
  prediction.wall_s = result.seconds * each;
  prediction.prefill_s = result.prefill_only_s * each;
  prediction.decode_s = prediction.wall_s - prediction.prefill_s;
  const auto generated = static_cast<double>(workload.generated_tokens());
  prediction.generated_tokens_per_s = generated / prediction.wall_s;
  prediction.total_tokens_per_s =
      (generated + static_cast<double>(workload.prompt_tokens())) / prediction.wall_s;
  return prediction;
}

ExecutionPlan MakePlan(const PlanProblem& problem, const PlanCandidate& c) {
  ExecutionPlan plan;
  plan.model = problem.model.name;
  plan.machine = problem.machine.name;
  plan.schedule = c.schedule;
  plan.batch_sequences = c.batch_sequences;
  plan.micro_batch_sequences = c.micro_batch_sequences();
  plan.num_micro_batches = c.micro_batches;
  plan.micro_batch_tokens = c.micro_batch_tokens;
  plan.expert_micro_batch = c.expert_micro_batch;
  plan.token_budget = c.token_budget;
  plan.cpu_attention_tenths = c.cpu_attention_tenths;
  plan.attention_on_device = c.cpu_attention_tenths == 0;
  plan.ffn_on_device = problem.has_gpu();
  plan.dense_resident = c.dense_resident;
  plan.resident_experts = c.resident_experts;
  plan.expert_buffers = c.expert_buffers;
  plan.expert_bytes = problem.model.ExpertBytes();
  plan.packet_bytes = c.packet_bytes;
  plan.kv_block_tokens = problem.kv_block_tokens;
  plan.kv_blocks = c.kv_blocks;
  plan.kv_block_bytes = problem.KvBlockBytes();
  plan.threads = problem.machine.threads;
  plan.ledgers = LedgersOf(problem, c);
  plan.constants = problem.machine.Constants();
  return plan;
}

// The least that any plan takes, for the message when none fits.
[[noreturn]] void FailNothingFits(const PlanProblem& problem) {
  PlanCandidate least;
  least.kv_blocks = problem.KvBlocksOf(static_cast<double>(problem.longest));
  least.token_budget = problem.longest_prompt;
  least.expert_buffers = BuffersFor(problem, least.schedule, 0, 2);
  least.dense_resident = !problem.has_gpu();
  for (const MemoryLedger& ledger : LedgersOf(problem, least)) {
    if (ledger.fits()) continue;
    Fail(ErrorKind::kResourceExhausted,
         "{} does not fit on {}: one sequence takes {} of {} memory, {} may be used; {} is missing "
         "(--{}-memory)",
         problem.model.name, problem.machine.name, FormatBytes(ledger.total_bytes()), ledger.memory,
         FormatBytes(ledger.limit_bytes), FormatBytes(ledger.total_bytes() - ledger.limit_bytes),
         ledger.memory == "device" ? "gpu" : "host");
  }
  Fail(ErrorKind::kResourceExhausted,
       "{} does not fit on {} with this schedule; leave --schedule out, or give more memory",
       problem.model.name, problem.machine.name);
}

ExecutionPlan BestPlan(const ModelShape& model, const MachineSpec& machine,
                       const Workload& workload, const PlanOptions& options) {
  const PlanProblem problem = MakeProblem(model, machine, workload, options);
  Search search(problem, options);
  std::optional<ExecutionPlan> best;
  for (const ScheduleKind schedule : kAllSchedules) {
    if (options.schedule && *options.schedule != schedule) continue;
    for (const Scored& scored : search.Run(schedule)) {
      ExecutionPlan plan = MakePlan(problem, scored.candidate);
      plan.prediction = Predict(problem, scored.candidate, workload);
      if (!best || plan.prediction.wall_s < best->prediction.wall_s) best = std::move(plan);
    }
  }
  if (!best) FailNothingFits(problem);
  return *std::move(best);
}

void Scale(Constant& constant) { constant.value *= 1.1; }

std::vector<WhatIf> AskWhatIf(const ModelShape& model, const MachineSpec& machine,
                              const Workload& workload, const PlanOptions& options,
                              double throughput) {
  std::vector<WhatIf> answers;
  const auto ask = [&](const char* change, const MachineSpec& other, const Workload& job) {
    const double with = BestPlan(model, other, job, options).prediction.generated_tokens_per_s;
    answers.push_back({change, with, with / throughput - 1});
  };
  const bool gpu = machine.has_gpu();
  MachineSpec other = machine;
  Scale(other.host_memory_bytes);
  ask("host memory +10%", other, workload);
  other = machine;
  Scale(other.link_in_bytes_per_s);
  Scale(other.link_out_bytes_per_s);
  ask(gpu ? "link rate +10%" : "disk rate +10%", other, workload);
  other = machine;
  Scale(other.cpu_flop_per_s);
  Scale(other.host_bytes_per_s);
  Scale(other.cpu_attention_bytes_per_s);
  ask("CPU rates +10%", other, workload);
  if (gpu) {
    other = machine;
    Scale(other.device_memory_bytes);
    ask("device memory +10%", other, workload);
    other = machine;
    Scale(other.device_flop_per_s);
    Scale(other.device_bytes_per_s);
    ask("device rates +10%", other, workload);
  }
  Workload longer = workload;
  const size_t more = (workload.requests.size() + 9) / 10;
  for (size_t i = 0; i < more; ++i) {
    longer.requests.push_back(workload.requests[i * workload.requests.size() / more]);
  }
  ask("requests +10%", machine, longer);
  std::stable_sort(answers.begin(), answers.end(),
                   [](const WhatIf& a, const WhatIf& b) { return a.gain > b.gain; });
  return answers;
}

}  // namespace

ExecutionPlan PlanThroughput(const ModelShape& model, const MachineSpec& machine,
                             const Workload& workload, const PlanOptions& options) {
  if (workload.requests.empty()) {
    Fail(ErrorKind::kInvalidArgument, "the workload has no requests");
  }
  if (model.encoder_layers > 0) {
    Fail(ErrorKind::kUnsupported, "{}: an encoder-decoder; plans are made for decoders only",
         model.name);
  }
  ExecutionPlan plan = BestPlan(model, machine, workload, options);
  if (options.what_if) {
    plan.what_if =
        AskWhatIf(model, machine, workload, options, plan.prediction.generated_tokens_per_s);
  }
  return plan;
}

}  // namespace moesaic
