#include "serving/plan/batch_prediction.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/config/kv_groups.h"
#include "kernels/cpu/kernels.h"
#include "serving/batch/batch_experts.h"
#include "serving/model/host_dense.h"

namespace moesaic {
namespace {

// Of a longer job so many sequences per place in the batch are simulated: enough for its beginning,
// its steady state and its end.
constexpr int64_t kSimulatedRounds = 12;

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
  IterationLoad load =
      PrefillLoad(static_cast<double>(std::min(sizes.max_batch_tokens, workload.prompt_tokens())),
                  workload.mean_prompt());
  load.prompts_ended = std::max<int64_t>(
      1, std::llround(static_cast<double>(load.prefill_tokens) / workload.mean_prompt()));
  return load;
}

void SumComponents(PhasePrediction& phase) {
  std::erase_if(phase.components, [](const ComponentTime& part) { return part.seconds <= 0; });
  for (const ComponentTime& component : phase.components) {
    phase.busy_s[static_cast<int>(component.resource)] += component.seconds;
  }
}

void NameBottleneck(PhasePrediction& phase, double computing, double link) {
  phase.bottleneck = computing >= link ? Resource::kDevice : Resource::kLinkIn;
  phase.next_bottleneck = computing >= link ? Resource::kLinkIn : Resource::kDevice;
  phase.slack = phase.roofline_s > 0 ? 1 - std::min(computing, link) / phase.roofline_s : 0;
}

}  // namespace

// As an expert of its width on every row.
double DenseMlpSeconds(const ModelConfig& config, const ModuleCosts& costs, double rows) {
  return static_cast<double>(config.dense_width()) / static_cast<double>(config.expert_width()) *
         costs[Module::kExpert].seconds(rows);
}

double TokenBudget(const ModelConfig& config, const ModuleCosts& costs, double layer_read_s) {
  double fixed_s = static_cast<double>(config.num_experts()) * costs[Module::kExpert].fixed_s;
  double row_s = static_cast<double>(config.top_k()) * costs[Module::kExpert].per_unit_s;
  for (const Module module : {Module::kAttentionIn, Module::kOutput, Module::kRouter}) {
    fixed_s += costs[module].fixed_s;
    row_s += costs[module].per_unit_s;
  }
  return row_s > 0 ? std::max(0.0, (layer_read_s - fixed_s) / row_s) : 0;
}

BatchPassModel::BatchPassModel(const ModelConfig& config, const ModuleCosts& costs,
                               const BatchSizes& sizes, uint64_t slot_bytes,
                               std::optional<PlannedDevice> device)
    : config_(config), costs_(costs), sizes_(sizes), slot_bytes_(slot_bytes), device_(device) {}

std::vector<int64_t> BatchPassModel::held_tokens() const {
  std::vector<int64_t> held = KvGroupsOf(config_).windows;
  for (int64_t& tokens : held) {
    if (tokens > 0) tokens += kAttentionChunkTokens + kKvBlockTokens;
  }
  return held;
}

double BatchPassModel::AttentionSeconds(const IterationLoad& load) const {
  return costs_[Module::kDecodeAttention].seconds(static_cast<double>(load.decode_context)) +
         costs_[Module::kPrefillAttention].seconds(static_cast<double>(load.prefill_positions));
}

// In blocks of so many rows.
double BatchPassModel::HeadSeconds(const IterationLoad& load) const {
  const int64_t rows = load.decode_sequences + load.prompts_ended;
  const int64_t blocks = (rows + sizes_.max_logit_rows - 1) / sizes_.max_logit_rows;
  const ModuleCost& head = costs_[Module::kHead];
  return static_cast<double>(blocks) * head.fixed_s + static_cast<double>(rows) * head.per_unit_s;
}

// As the emulated link has it: the modelled time, or what copying takes where that is longer, among
// threads that compute.
double BatchPassModel::CopySeconds(double bytes, double copies) const {
  const double model_s =
      device_->bytes_per_s > 0 ? copies * device_->latency_s + bytes / device_->bytes_per_s : 0;
  const double crowd = static_cast<double>(device_->count) *
                       static_cast<double>(device_->device_threads + 1) /
                       static_cast<double>(costs_.cores);
  return std::max(model_s, bytes / costs_.host_copy.value * std::max(1.0, crowd));
}

PlannedPass BatchPassModel::PassOf(const IterationLoad& load, bool cold) const {
  const auto rows = static_cast<double>(load.decode_sequences + load.prefill_tokens);
  const bool visited_once = sizes_.schedule == ScheduleKind::kModuleBatching;
  PlannedPass pass;
  pass.schedule = sizes_.schedule;
  pass.groups = sizes_.schedule == ScheduleKind::kOverlapped
                    ? 2
                    : static_cast<int>(std::clamp<int64_t>(
                          load.decode_sequences + load.prompts_ended, 1, sizes_.micro_batches));
  for (const LayerSpec& layer : config_.layers) pass.layer_is_sparse.push_back(layer.sparse());
  pass.num_experts = config_.num_experts();
  const double group_rows = rows / pass.groups;
  pass.pre_attention_s = costs_[Module::kAttentionIn].seconds(group_rows);
  pass.attention_s = AttentionSeconds(load) / pass.groups;
  pass.post_attention_s =
      costs_[Module::kOutput].seconds(group_rows) + costs_[Module::kRouter].seconds(group_rows);
  const double visit_rows = visited_once ? rows : group_rows;
  pass.active = costs_.ActiveExperts(config_.num_experts(), config_.top_k(), rows);
  pass.repeated = costs_.RepeatedExperts(config_.num_experts(), config_.top_k(), rows);
  pass.visit_active = costs_.ActiveExperts(config_.num_experts(), config_.top_k(), visit_rows);
  pass.dense_mlp_s = config_.num_layers() > config_.num_sparse_layers()
                         ? DenseMlpSeconds(config_, costs_, visit_rows)
                         : 0;
  pass.expert_s = costs_[Module::kExpert].seconds(
      visit_rows * static_cast<double>(config_.top_k()) / std::max(1.0, pass.visit_active));
  pass.other_s = HeadSeconds(load);
  pass.slots = sizes_.expert_slots;
  pass.buffers = sizes_.buffers;
  pass.group = GroupOfExperts(slot_bytes_);
  pass.load_s = static_cast<double>(slot_bytes_) / costs_.link.value;
  pass.link_share = costs_.contended_link_share.value;
  pass.copy_share = costs_.contended_compute_share.value;
  pass.cold = cold;
  if (device_) AddDevice(group_rows, pass);
  return pass;
}

void BatchPassModel::AddDevice(double group_rows, PlannedPass& pass) const {
  const auto row_bytes = [&](int64_t stride) {
    return group_rows * static_cast<double>(stride) * sizeof(float);
  };
  pass.device = true;
  pass.devices = device_->count;
  pass.slots = (sizes_.expert_slots + device_->count - 1) / device_->count;
  pass.device_share =
      static_cast<double>(device_->device_threads) / static_cast<double>(device_->threads);
  // Modules were measured with all threads.
  for (double* const seconds :
       {&pass.pre_attention_s, &pass.post_attention_s, &pass.dense_mlp_s, &pass.expert_s}) {
    *seconds /= pass.device_share;
  }
  // Hidden states of a group are one copy each way.
  pass.offload_qkv_s = CopySeconds(row_bytes(HostDense::ProjectedStride(config_)), 1);
  pass.load_hidden_s = CopySeconds(row_bytes(HostDense::MixedStride(config_)), 1);
  pass.packets =
      static_cast<int>((slot_bytes_ + device_->packet_bytes - 1) / device_->packet_bytes);
  pass.load_s = CopySeconds(static_cast<double>(slot_bytes_), pass.packets);
  pass.loads_ahead = std::max(1, kLinkDepth / pass.packets);
  const auto cores = static_cast<double>(costs_.cores);
  pass.both_share = std::min(1.0, cores / (2 * device_->threads));
  // One thread of each device copies, as long as copying by itself takes. Threads that wait for
  // experts are asleep and caches cold, whatever brings them.
  const auto devices = static_cast<double>(device_->count);
  const double copying =
      devices * static_cast<double>(slot_bytes_) / costs_.host_copy.value / pass.load_s;
  pass.copy_share =
      std::min(pass.copy_share,
               std::clamp((cores - copying) / (devices * device_->device_threads), 0.1, 1.0));
  pass.link_share = 1;  // CopySeconds has it
}

const PassTimes& BatchPassModel::Times(const IterationLoad& load, bool cold) {
  const std::pair key(RoundedLoad(load), cold);
  const auto found = seen_.find(key);
  if (found != seen_.end()) return found->second;
  return seen_[key] = SimulatePass(PassOf(load, cold));
}

double BatchPassModel::AttentionShare(const IterationLoad& load) const {
  const PlannedPass pass = PassOf(load, false);
  const auto rows = static_cast<double>(load.decode_sequences + load.prefill_tokens);
  const auto layers = static_cast<double>(config_.num_layers());
  const auto sparse = static_cast<double>(config_.num_sparse_layers());
  const double router = costs_[Module::kRouter].seconds(rows / pass.groups);
  const double layer = pass.pre_attention_s + pass.attention_s + pass.post_attention_s;
  const double once = pass.schedule == ScheduleKind::kModuleBatching ? 1.0 / pass.groups : 1;
  const double all = layers * layer + (layers - sparse) * once * pass.dense_mlp_s;
  return all > 0 ? layers * (layer - router) / all : 0;
}

PhasePrediction BatchPassModel::Phase(const IterationLoad& load) {
  const PlannedPass pass = PassOf(load, false);
  const PassTimes& times = Times(load, false);
  const auto layers = static_cast<double>(config_.num_layers());
  const double of_sparse = static_cast<double>(config_.num_sparse_layers()) / layers;
  const double groups = pass.groups;
  const double visits = pass.schedule == ScheduleKind::kModuleBatching ? 1 : groups;
  const Resource host = device_ ? Resource::kCpu : Resource::kDevice;
  const auto devices = static_cast<double>(pass.devices);
  PhasePrediction phase;
  // Per layer, those without experts included; of several devices, of each.
  phase.components = {
      {"pre-attention", Resource::kDevice, groups * pass.pre_attention_s},
      {"attention", host, groups * pass.attention_s},
      {"projection and router", Resource::kDevice, groups * pass.post_attention_s},
      {"experts", Resource::kDevice,
       of_sparse * visits * pass.visit_active * pass.expert_s / devices},
      {"layers without experts", Resource::kDevice, (1 - of_sparse) * visits * pass.dense_mlp_s},
      {"logits and sampling", host, pass.other_s / layers},
      {"queries, keys and values to the host", Resource::kLinkOut, groups * pass.offload_qkv_s},
      {"attention outputs to the device", Resource::kLinkIn, groups * pass.load_hidden_s},
      {"expert copies", Resource::kLinkIn, times.loads * pass.load_s / layers / devices}};
  SumComponents(phase);
  const auto busy = [&](Resource resource) { return phase.busy_s[static_cast<int>(resource)]; };
  // All share the processors.
  const double others =
      (devices - 1) * of_sparse * visits * pass.visit_active * pass.expert_s / devices;
  const double computing = busy(Resource::kDevice) + others + busy(Resource::kCpu);
  const double threads =
      pass.device_share * (busy(Resource::kDevice) + others) + busy(Resource::kCpu);
  const double together =
      std::max({busy(Resource::kDevice), busy(Resource::kCpu), threads / (2 * pass.both_share)});
  const double link = busy(Resource::kLinkIn);
  phase.roofline_s = std::max({together, link, busy(Resource::kLinkOut)});
  phase.serial_s =
      computing / pass.copy_share / std::min(1.0, 2 * pass.both_share) +
      (link + (devices - 1) * times.loads * pass.load_s / layers / devices) / pass.link_share +
      busy(Resource::kLinkOut);
  phase.period_s = times.seconds / layers;
  phase.iteration_s = times.seconds;
  NameBottleneck(phase, together, link);
  return phase;
}

double EstimateBatchSeconds(BatchPassModel& passes, const BatchSizes& sizes,
                            const Workload& workload) {
  const IterationLoad steady = SteadyLoad(sizes, workload);
  const IterationLoad prompts = PromptsOnly(sizes, workload);
  const double cold = passes.Times(prompts, true).seconds;
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
  limits.held_tokens = passes.held_tokens();
  limits.token_budget = sizes.max_batch_tokens;
  limits.most_sequences = sizes.max_num_seqs;
  limits.chunked_prefill = true;
  bool cold = true;
  const auto pass_s = [&](const IterationLoad& load) {
    const PassTimes& times = passes.Times(load, cold);
    cold = false;
    const double attention = passes.AttentionShare(load);
    job.attention_s += attention * times.dense_s;
    job.dense_s += (1 - attention) * times.dense_s;
    job.experts_s += times.experts_s;
    job.head_s += times.other_s;
    job.stall_s += times.stall_s;
    job.link_busy_s += times.link_s;
    job.hidden_in_s += times.hidden_in_s;
    job.hidden_out_s += times.hidden_out_s;
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
  for (double* sum :
       {&job.attention_s, &job.dense_s, &job.experts_s, &job.head_s, &job.stall_s, &job.link_busy_s,
        &job.hidden_in_s, &job.hidden_out_s, &job.link_bytes, &job.passes}) {
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
  SetTimes(wall_s, part.prefill_only_s, generated, prompts, prediction);
  prediction.job = job;
  return prediction;
}

}  // namespace moesaic
