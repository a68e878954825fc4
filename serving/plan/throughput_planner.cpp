#include "serving/plan/throughput_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "serving/plan/job_loads.h"
#include "serving/plan/lens_model.h"
#include "serving/plan/plan_candidate.h"
#include "serving/plan/plan_search.h"
#include "serving/plan/scheduler_simulation.h"

namespace moesaic {
namespace {

// Workloads with more tokens than this are simulated by an even sample of their requests.
constexpr int64_t kMostSimulatedTokens = 50'000'000;

constexpr std::array kAllSchedules = {ScheduleKind::kModuleBatching, ScheduleKind::kPagedWeights,
                                      ScheduleKind::kOverlapped};

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
    prediction.prefill = PredictIteration(
        problem, c, PrefillLoad(static_cast<double>(c.token_budget), problem.mean_prompt));
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
  // The pipeline's period changes little within the rounding.
  std::map<RoundedLoad, double> seconds;
  const auto iteration_s = [&](const IterationLoad& load) {
    const RoundedLoad rounded(load);
    const auto found = seconds.find(rounded);
    if (found != seconds.end()) return found->second;
    return seconds[rounded] = PredictIteration(problem, c, rounded.load()).iteration_s;
  };
  const SchedulerResult result = SimulateScheduler(requests, limits, iteration_s);
  prediction.iterations = std::llround(static_cast<double>(result.iterations) * each);
  prediction.preemptions = std::llround(static_cast<double>(result.preemptions) * each);
  SetTimes(result.seconds * each, result.prefill_only_s * each,
           static_cast<double>(workload.generated_tokens()),
           static_cast<double>(workload.prompt_tokens()), prediction);
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
         FormatBytes(ledger.limit_bytes), FormatBytes(ledger.missing_bytes()),
         ledger.memory == "device" ? "gpu" : "host");
  }
  Fail(ErrorKind::kResourceExhausted,
       "{} does not fit on {} with this schedule; leave --schedule out, or give more memory",
       problem.model.name, problem.machine.name);
}

ExecutionPlan BestPlan(const ModelShape& model, const MachineSpec& machine,
                       const Workload& workload, const PlanOptions& options) {
  const PlanProblem problem = MakeProblem(model, machine, workload, options);
  std::optional<ExecutionPlan> best;
  for (const ScheduleKind schedule : kAllSchedules) {
    if (options.schedule && *options.schedule != schedule) continue;
    const auto candidate = SearchCandidates(problem, options, schedule);
    if (!candidate) continue;
    ExecutionPlan plan = MakePlan(problem, *candidate);
    plan.prediction = Predict(problem, *candidate, workload);
    if (!best || plan.prediction.wall_s < best->prediction.wall_s) best = std::move(plan);
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
  ask("requests +10%", machine, LongerByATenth(workload));
  SortByGain(answers);
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
