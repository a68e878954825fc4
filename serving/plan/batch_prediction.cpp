#include "serving/plan/batch_prediction.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/base/check.h"

namespace moesaic {
namespace {

// Of a longer job so many sequences per place in the batch are simulated: enough for its beginning,
// its steady state and its end.
constexpr int64_t kSimulatedRounds = 12;

int BucketOf(int64_t count) {
  constexpr double kStep = 1.02;
  if (count <= 0) return -1;
  return static_cast<int>(std::lround(std::log(static_cast<double>(count)) / std::log(kStep)));
}

IterationLoad SteadyLoad(const BatchSizes& sizes, const Workload& workload) {
  const double prompt = workload.mean_prompt();
  const double generated = std::max(1.0, workload.mean_generated());
  // Each decoding sequence brings a g-th of a prompt along; both share the rows of a pass.
  const double per_decode = 1 + prompt / generated;
  const double places = std::min({static_cast<double>(sizes.max_num_seqs),
                                  static_cast<double>(workload.requests.size()),
                                  static_cast<double>(sizes.max_batch_tokens) / per_decode});
  IterationLoad load;
  load.decode_sequences = std::max<int64_t>(1, std::llround(places));
  load.decode_context = std::llround(places * (prompt + generated / 2));
  load.prefill_tokens = std::llround(places * prompt / generated);
  load.prefill_positions =
      std::llround(static_cast<double>(load.prefill_tokens) * (prompt + 1) / 2);
  load.prompts_ended = std::llround(places / generated);
  return load;
}

IterationLoad PromptsOnly(const BatchSizes& sizes, const Workload& workload) {
  IterationLoad load;
  load.prefill_tokens = std::min(sizes.max_batch_tokens, workload.prompt_tokens());
  load.prefill_positions =
      std::llround(static_cast<double>(load.prefill_tokens) * (workload.mean_prompt() + 1) / 2);
  load.prompts_ended = std::max<int64_t>(
      1, std::llround(static_cast<double>(load.prefill_tokens) / workload.mean_prompt()));
  return load;
}

}  // namespace

BatchPassModel::BatchPassModel(const ModelConfig& config, const ModuleCosts& costs,
                               const BatchSizes& sizes, uint64_t slot_bytes)
    : config_(config),
      costs_(costs),
      sizes_(sizes),
      slot_bytes_(slot_bytes),
      residents_per_layer_(static_cast<double>(sizes.expert_slots - sizes.buffers) /
                           static_cast<double>(config.num_sparse_layers())) {}

double BatchPassModel::AttentionSeconds(const IterationLoad& load) const {
  const auto rows = static_cast<double>(load.decode_sequences + load.prefill_tokens);
  return costs_[Module::kAttentionIn].seconds(rows) + costs_[Module::kOutput].seconds(rows) +
         costs_[Module::kDecodeAttention].seconds(static_cast<double>(load.decode_context)) +
         costs_[Module::kPrefillAttention].seconds(static_cast<double>(load.prefill_positions));
}

// As an expert of its width on every row.
double BatchPassModel::DenseMlpSeconds(double rows) const {
  return static_cast<double>(config_.dense_intermediate_size) /
         static_cast<double>(config_.moe_intermediate_size) * costs_[Module::kExpert].seconds(rows);
}

StreamPass BatchPassModel::PassOf(const IterationLoad& load, bool cold) const {
  const auto rows = static_cast<double>(load.decode_sequences + load.prefill_tokens);
  const auto experts = static_cast<double>(config_.num_experts);
  const double active = costs_.ActiveExperts(config_.num_experts, config_.top_k, rows);
  const double attention = AttentionSeconds(load);
  const int64_t dense_layers = config_.num_layers - config_.num_sparse_layers();
  StreamPass pass;
  pass.layers = config_.num_sparse_layers();
  pass.dense_s = attention + costs_[Module::kRouter].seconds(rows);
  pass.lead_s = dense_layers > 0
                    ? static_cast<double>(dense_layers) * (attention + DenseMlpSeconds(rows))
                    : 0;
  pass.other_s = costs_[Module::kHead].seconds(
      static_cast<double>(load.decode_sequences + load.prompts_ended));
  pass.expert_s = costs_[Module::kExpert].seconds(rows * static_cast<double>(config_.top_k) /
                                                  std::max(1.0, active));
  pass.resident_active = active * residents_per_layer_ / experts;
  pass.streamed_active = active - pass.resident_active;
  if (sizes_.buffers == 0) pass.streamed_active = 0;
  pass.load_s = static_cast<double>(slot_bytes_) / costs_.link.value;
  pass.buffers = sizes_.buffers;
  pass.group = StreamGroup(slot_bytes_, sizes_.buffers, config_.num_experts);
  pass.contended_link_share = costs_.contended_link_share.value;
  pass.contended_compute_share = costs_.contended_compute_share.value;
  pass.cold = cold;
  return pass;
}

const StreamPassTimes& BatchPassModel::Times(const IterationLoad& load, bool cold) {
  const std::array<int, 6> key = {BucketOf(load.decode_sequences), BucketOf(load.decode_context),
                                  BucketOf(load.prefill_tokens),   BucketOf(load.prefill_positions),
                                  BucketOf(load.prompts_ended),    cold ? 1 : 0};
  const auto found = seen_.find(key);
  if (found != seen_.end()) return found->second;
  return seen_[key] = SimulateStreamPass(PassOf(load, cold));
}

double BatchPassModel::AttentionShare(const IterationLoad& load) const {
  const StreamPass pass = PassOf(load, false);
  const double all = pass.lead_s + static_cast<double>(pass.layers) * pass.dense_s;
  return all > 0 ? static_cast<double>(config_.num_layers) * AttentionSeconds(load) / all : 0;
}

PhasePrediction BatchPassModel::Phase(const IterationLoad& load) {
  const StreamPass pass = PassOf(load, false);
  const StreamPassTimes& times = Times(load, false);
  const auto layers = static_cast<double>(config_.num_sparse_layers());
  const double attention = AttentionSeconds(load);
  PhasePrediction phase;
  phase.components = {
      {"attention", Resource::kDevice, attention},
      {"router and shared expert", Resource::kDevice, pass.dense_s - attention},
      {"experts", Resource::kDevice, pass.expert_s * (pass.resident_active + pass.streamed_active)},
      {"layers without experts", Resource::kDevice, pass.lead_s / layers},
      {"logits and sampling", Resource::kDevice, pass.other_s / layers},
      {"expert copies", Resource::kLinkIn, times.link_alone_s / layers}};
  std::erase_if(phase.components, [](const ComponentTime& part) { return part.seconds <= 0; });
  for (const ComponentTime& component : phase.components) {
    phase.busy_s[static_cast<int>(component.resource)] += component.seconds;
  }
  const double device = phase.busy_s[static_cast<int>(Resource::kDevice)];
  const double link = phase.busy_s[static_cast<int>(Resource::kLinkIn)];
  phase.roofline_s = std::max(device, link);
  phase.serial_s = device / pass.contended_compute_share + link / pass.contended_link_share;
  phase.period_s = times.seconds / layers;
  phase.iteration_s = times.seconds;
  phase.bottleneck = device >= link ? Resource::kDevice : Resource::kLinkIn;
  phase.next_bottleneck = device >= link ? Resource::kLinkIn : Resource::kDevice;
  phase.slack = phase.roofline_s > 0 ? 1 - std::min(device, link) / phase.roofline_s : 0;
  return phase;
}

double EstimateBatchSeconds(BatchPassModel& passes, const BatchSizes& sizes,
                            const Workload& workload) {
  const IterationLoad steady = SteadyLoad(sizes, workload);
  const IterationLoad prompts = PromptsOnly(sizes, workload);
  const double cold = passes.Times(prompts, passes.residents_per_layer() > 0).seconds;
  const auto requests = static_cast<double>(workload.requests.size());
  const auto places = static_cast<double>(steady.decode_sequences);
  const double generated = std::max(1.0, workload.mean_generated());
  if (requests <= places) {
    // All prompts, then all answers.
    IterationLoad decode = steady;
    decode.prefill_tokens = decode.prefill_positions = decode.prompts_ended = 0;
    const double prefills = static_cast<double>(workload.prompt_tokens()) /
                            static_cast<double>(std::max<int64_t>(1, prompts.prefill_tokens));
    return cold + std::max(0.0, prefills - 1) * passes.Times(prompts, false).seconds +
           generated * passes.Times(decode, false).seconds;
  }
  return cold + requests / places * generated * passes.Times(steady, false).seconds;
}

PlanPrediction PredictBatch(BatchPassModel& passes, const BatchSizes& sizes,
                            const Workload& workload) {
  PlanPrediction prediction;
  JobPrediction job;
  SchedulerLimits limits;
  limits.kv_blocks = sizes.num_kv_blocks;
  limits.block_tokens = kKvBlockTokens;
  limits.token_budget = sizes.max_batch_tokens;
  limits.most_sequences = sizes.max_num_seqs;
  limits.chunked_prefill = true;
  bool cold = passes.residents_per_layer() > 0;
  const auto pass_s = [&](const IterationLoad& load) {
    const StreamPassTimes& times = passes.Times(load, cold);
    cold = false;
    const double attention = passes.AttentionShare(load);
    job.attention_s += attention * times.dense_s;
    job.dense_s += (1 - attention) * times.dense_s;
    job.experts_s += times.experts_s;
    job.head_s += times.other_s;
    job.stall_s += times.stall_s;
    job.link_busy_s += times.link_s;
    job.link_bytes += times.loads * static_cast<double>(passes.slot_bytes());
    job.passes += 1;
    return times.seconds;
  };
  // Requests that the context is too short for are refused before they run.
  std::vector<RequestLengths> requests;
  for (RequestLengths request : workload.requests) {
    request.generated_tokens = std::max<int64_t>(1, request.generated_tokens);
    if (request.prompt_tokens >= sizes.max_context_tokens) continue;
    request.generated_tokens =
        std::min(request.generated_tokens, sizes.max_context_tokens - request.prompt_tokens);
    requests.push_back(request);
  }
  if (requests.empty()) return prediction;
  const auto all = static_cast<int64_t>(requests.size());
  const int64_t simulated = std::min(all, kSimulatedRounds * sizes.max_num_seqs);
  const SchedulerResult part =
      SimulateScheduler(std::span(requests).first(static_cast<size_t>(simulated)), limits, pass_s);
  double wall_s = part.seconds;
  double scale = 1;
  if (simulated < all) {
    // The rest goes on as the steady passes do.
    int64_t rest = 0;
    for (int64_t i = simulated; i < all; ++i) {
      rest += requests[static_cast<size_t>(i)].generated_tokens;
    }
    const IterationLoad steady = SteadyLoad(sizes, workload);
    const double more = static_cast<double>(rest) /
                        static_cast<double>(steady.decode_sequences + steady.prompts_ended) *
                        passes.Times(steady, false).seconds;
    scale = (wall_s + more) / wall_s;
    wall_s += more;
  }
  for (double* sum : {&job.attention_s, &job.dense_s, &job.experts_s, &job.head_s, &job.stall_s,
                      &job.link_busy_s, &job.link_bytes, &job.passes}) {
    *sum *= scale;
  }
  double generated = 0;
  double prompts = 0;
  for (const RequestLengths& request : requests) {
    generated += static_cast<double>(request.generated_tokens);
    prompts += static_cast<double>(request.prompt_tokens);
  }
  prediction.prefill = passes.Phase(PromptsOnly(sizes, workload));
  prediction.decode = passes.Phase(SteadyLoad(sizes, workload));
  prediction.iterations = std::llround(job.passes);
  prediction.preemptions = std::llround(static_cast<double>(part.preemptions) * scale);
  prediction.wall_s = wall_s;
  prediction.prefill_s = part.prefill_only_s;
  prediction.decode_s = wall_s - part.prefill_only_s;
  prediction.generated_tokens_per_s = generated / wall_s;
  prediction.total_tokens_per_s = (generated + prompts) / wall_s;
  prediction.job = job;
  return prediction;
}

}  // namespace moesaic
