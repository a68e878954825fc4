#include "serving/plan/plan_candidate.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

// What the GPU's driver and libraries take before the first tensor; assumed.
constexpr uint64_t kDeviceRuntimeBytes = uint64_t{512} << 20;
// Two of each: one is computed on while the other one is copied.
constexpr int64_t kStagingBuffers = 2;
constexpr uint64_t kActivationBytes = 4;  // a value of the working buffers: f32

uint64_t U64(int64_t value) { return static_cast<uint64_t>(value); }
double D(int64_t value) { return static_cast<double>(value); }
double D(uint64_t value) { return static_cast<double>(value); }

// Working memory of the projections and experts, wherever they run.
uint64_t WorkspaceBytes(const PlanProblem& problem, const PlanCandidate& c) {
  const ModelShape& model = problem.model;
  const uint64_t h = U64(model.hidden_size);
  const uint64_t rows = U64(std::max(c.micro_batch_sequences(), c.micro_batch_tokens));
  const uint64_t attention = rows * (2 * h * kActivationBytes + 2 * model.AttentionInBytes() +
                                     2 * model.AttentionOutBytes());
  const uint64_t mlp = 2 * h + 3 * U64(model.expert_intermediate);
  const uint64_t experts = U64(c.expert_micro_batch) * mlp * kActivationBytes;
  const uint64_t shared = rows * 3 *
                          U64(std::max(model.shared_intermediate, model.dense_intermediate)) *
                          kActivationBytes;
  const uint64_t logits = U64(c.micro_batch_sequences()) * U64(model.vocab_size) * kActivationBytes;
  return attention + std::max(experts + shared, logits);
}

// Hidden states (16 bits) that wait between modules, and expert outputs of each token and choice.
uint64_t HiddenBytes(const PlanProblem& problem, const PlanCandidate& c) {
  const uint64_t tokens = U64(std::max(c.token_budget, c.batch_sequences));
  return tokens * U64(problem.model.hidden_size) * 2 * (2 + U64(problem.model.top_k));
}

MemoryLedger DeviceLedger(const PlanProblem& problem, const PlanCandidate& c) {
  const ModelShape& model = problem.model;
  MemoryLedger ledger{
      "device", static_cast<uint64_t>(problem.machine.device_memory_bytes.value), {}};
  const uint64_t layers = U64(model.sparse_layers());
  uint64_t dense = model.DenseBytes();
  if (!c.dense_resident) {
    dense = dense - layers * model.LayerDenseBytes() + 2 * model.LayerDenseBytes();
  }
  ledger.items.push_back({"dense weights", dense});
  ledger.items.push_back(
      {"resident experts", layers * U64(c.resident_experts) * model.ExpertBytes()});
  ledger.items.push_back({"expert buffers", U64(c.expert_buffers) * model.ExpertBytes()});
  uint64_t kv = U64(kStagingBuffers * c.micro_batch_tokens) * model.KvBytesPerLayer();
  if (c.cpu_attention_tenths < 10) {
    const double context = problem.mean_prompt + problem.mean_generated;
    kv += static_cast<uint64_t>(std::ceil(D(kStagingBuffers * c.micro_batch_sequences()) * context *
                                          D(10 - c.cpu_attention_tenths) / 10)) *
          model.KvBytesPerLayer();
  }
  ledger.items.push_back({"keys and values in transit", kv});
  ledger.items.push_back({"working buffers", WorkspaceBytes(problem, c)});
  ledger.items.push_back({"runtime", kDeviceRuntimeBytes});
  return ledger;
}

MemoryLedger HostLedger(const PlanProblem& problem, const PlanCandidate& c) {
  const ModelShape& model = problem.model;
  MemoryLedger ledger{"host", static_cast<uint64_t>(problem.machine.host_memory_bytes.value), {}};
  const uint64_t layers = U64(model.sparse_layers());
  if (problem.has_gpu()) {
    ledger.items.push_back({"experts", model.AllExpertBytes()});
    if (!c.dense_resident) {
      ledger.items.push_back({"dense weights", layers * model.LayerDenseBytes()});
    }
  } else {
    ledger.items.push_back({"dense weights", model.DenseBytes()});
    ledger.items.push_back(
        {"resident experts", layers * U64(c.resident_experts) * model.ExpertBytes()});
    ledger.items.push_back({"expert buffers", U64(c.expert_buffers) * model.ExpertBytes()});
  }
  ledger.items.push_back({"keys and values", U64(c.kv_blocks) * problem.KvBlockBytes()});
  if (const uint64_t state = model.StateBytesPerSequence(); state > 0) {
    ledger.items.push_back({"recurrent state", U64(c.batch_sequences) * state});
  }
  ledger.items.push_back({"hidden states", HiddenBytes(problem, c)});
  if (problem.has_gpu()) {
    ledger.items.push_back(
        {"attention staging",
         U64(c.batch_sequences) * (model.AttentionInBytes() + model.AttentionOutBytes())});
  } else {
    ledger.items.push_back({"working buffers", WorkspaceBytes(problem, c)});
  }
  return ledger;
}

// Tokens of a load that go through the projections.
double TokensOf(const IterationLoad& load) {
  return D(load.decode_sequences + load.prefill_tokens);
}

// What one layer streams of its experts: sum over the absent ones of the chance that it is used.
double StreamedExpertBytes(const PlanProblem& problem, const PlanCandidate& c, double tokens) {
  const ModelShape& model = problem.model;
  const double used = ExpectedActiveExperts(model.num_experts, model.top_k, tokens);
  return used * D(model.num_experts - c.resident_experts) / D(model.num_experts) *
         D(model.ExpertBytes());
}

double CopySeconds(const PlanProblem& problem, const PlanCandidate& c, double bytes,
                   double bytes_per_s) {
  if (bytes <= 0) return 0;
  return bytes / bytes_per_s +
         std::ceil(bytes / D(c.packet_bytes)) * problem.machine.copy_overhead_s.value;
}

}  // namespace

MemoryLevel PlanProblem::Device() const {
  if (!has_gpu())
    return {machine.cpu_flop_per_s.value * machine.cpu_efficiency.value,
            machine.host_bytes_per_s.value};
  return {machine.device_flop_per_s.value * machine.device_efficiency.value,
          machine.device_bytes_per_s.value};
}

MemoryLevel PlanProblem::Cpu() const {
  return {machine.cpu_flop_per_s.value * machine.cpu_efficiency.value,
          machine.cpu_attention_bytes_per_s.value};
}

int64_t PlanProblem::KvBlocksOf(double tokens) const {
  return static_cast<int64_t>(std::ceil(tokens / D(kv_block_tokens)));
}

uint64_t PlanProblem::KvBlockBytes() const {
  return U64(kv_block_tokens) * model.KvBytesPerToken();
}

std::vector<MemoryLedger> LedgersOf(const PlanProblem& problem, const PlanCandidate& candidate) {
  std::vector<MemoryLedger> ledgers;
  if (problem.has_gpu()) ledgers.push_back(DeviceLedger(problem, candidate));
  ledgers.push_back(HostLedger(problem, candidate));
  return ledgers;
}

bool Fits(const std::vector<MemoryLedger>& ledgers) {
  return std::all_of(ledgers.begin(), ledgers.end(),
                     [](const MemoryLedger& ledger) { return ledger.fits(); });
}

int64_t BuffersFor(const PlanProblem& problem, ScheduleKind schedule, int64_t resident,
                   int64_t asked) {
  const int64_t streamed = problem.model.num_experts - resident;
  if (streamed == 0) return 0;
  if (schedule != ScheduleKind::kModuleBatching) return 2 * streamed;
  return std::min(asked, 2 * streamed);
}

int64_t ChooseResident(const PlanProblem& problem, PlanCandidate& candidate, int64_t buffers) {
  const auto fits = [&](int64_t resident) {
    candidate.resident_experts = resident;
    candidate.expert_buffers = BuffersFor(problem, candidate.schedule, resident, buffers);
    return Fits(LedgersOf(problem, candidate));
  };
  // All resident needs no buffers, which can be less than all but one.
  if (fits(problem.model.num_experts)) return problem.model.num_experts;
  if (!fits(0)) return -1;
  int64_t most = 0;
  int64_t beyond = problem.model.num_experts;
  while (beyond - most > 1) {
    const int64_t middle = (most + beyond) / 2;
    (fits(middle) ? most : beyond) = middle;
  }
  fits(most);
  return most;
}

std::vector<uint64_t> PacketSizes(const PlanProblem& problem) {
  if (problem.machine.disk_block_bytes > 0) return {problem.machine.disk_block_bytes};
  // MoE-Lens' has 100 MB.
  constexpr uint64_t kLeastPacket = uint64_t{256} << 10;
  constexpr uint64_t kMostPacket = uint64_t{128} << 20;
  const uint64_t most = std::clamp(problem.model.ExpertBytes(), kLeastPacket, kMostPacket);
  std::vector<uint64_t> sizes;
  for (uint64_t size = kLeastPacket; size <= most; size *= 2) sizes.push_back(size);
  return sizes;
}

LayerTimes TimesOf(const PlanProblem& problem, const PlanCandidate& c, const IterationLoad& load) {
  const ModelShape& model = problem.model;
  const MachineSpec& machine = problem.machine;
  const MemoryLevel device = problem.Device();
  const MemoryLevel cpu = problem.Cpu();
  const double tokens = TokensOf(load);
  const bool overlapped = c.schedule == ScheduleKind::kOverlapped;

  LayerTimes times;
  times.shared_cpu = !problem.has_gpu();
  if (overlapped) {
    times.micro_batches = 2;
  } else if (load.prefill_tokens > 0) {
    times.micro_batches = std::max<int64_t>(
        1, (load.prefill_tokens + c.micro_batch_tokens - 1) / c.micro_batch_tokens);
  } else {
    const int64_t most = c.micro_batch_sequences();
    times.micro_batches = std::max<int64_t>(1, (load.decode_sequences + most - 1) / most);
  }
  // A prefill of thousands of micro-batches repeats one pattern: time fewer and longer ones.
  constexpr int64_t kTimedMicroBatches = 64;
  const double merged = std::max(1.0, D(times.micro_batches) / D(kTimedMicroBatches));
  times.micro_batches = std::min(times.micro_batches, kTimedMicroBatches);
  const double count = D(times.micro_batches);
  const double rows = tokens / count;
  const double overhead = merged * machine.task_overhead_s.value;
  const auto module = [&](double weights, double bytes_per_weight, double module_rows,
                          double repeats) {
    if (module_rows <= 0) return 0.0;
    return repeats * TaskSeconds(device, weights * bytes_per_weight,
                                 2 * module_rows / repeats * weights) +
           overhead;
  };

  times.pre_attention_s =
      module(D(model.PreAttentionParameters()), model.bytes_per_weight, rows, merged);
  times.post_attention_s = module(
      D(model.PostAttentionParameters() + model.SharedParameters() + model.RouterParameters()),
      model.bytes_per_weight, rows, merged);

  // Attention: a share of decode on the CPU, the rest and prefill on the device.
  const double cpu_share = times.shared_cpu ? 1 : D(c.cpu_attention_tenths) / 10;
  const double context = D(load.decode_context) / count;
  const double kv = D(model.KvBytesPerLayer());
  const double queries = D(load.decode_sequences) / count;
  const double link_in = machine.link_in_bytes_per_s.value * machine.contended_link_share.value;
  // Recurrent state is in host memory, read and written by every step.
  const double state = 2 * D(load.decode_sequences) / count * D(model.StateBytesPerLayer());
  if (load.decode_sequences > 0 && (cpu_share > 0 || state > 0)) {
    times.cpu_attention_s =
        TaskSeconds(cpu, cpu_share * context * kv + state,
                    model.AttentionFlop(cpu_share * context, cpu_share * queries)) /
        machine.contended_cpu_share.value;
  }
  times.device_attention_s = TaskSeconds(
      device, 0,
      model.AttentionFlop(D(load.prefill_positions) / count, D(load.prefill_tokens) / count));
  if (load.decode_sequences > 0 && cpu_share < 1) {
    const double share = (1 - cpu_share) * context;
    times.device_attention_s +=
        TaskSeconds(device, share * kv, model.AttentionFlop(share, (1 - cpu_share) * queries)) +
        overhead;
    times.load_kv_s = CopySeconds(problem, c, share * kv, link_in);
  }
  if (!times.shared_cpu) {
    const double decode_rows = D(load.decode_sequences) / count;
    const double out_bytes =
        decode_rows * (cpu_share * D(model.AttentionInBytes()) + (1 - cpu_share) * kv) +
        D(load.prefill_tokens) / count * kv;
    times.offload_qkv_s =
        out_bytes / machine.link_out_bytes_per_s.value + merged * machine.copy_overhead_s.value;
    // Behind at most one packet of weights, on average half of one; pages come in between anyway.
    const double wait = c.schedule == ScheduleKind::kPagedWeights
                            ? 0
                            : D(c.packet_bytes) / 2 / machine.link_in_bytes_per_s.value;
    if (decode_rows > 0 && cpu_share > 0) {
      times.load_hidden_s = decode_rows * cpu_share * D(model.AttentionOutBytes()) / link_in +
                            machine.copy_overhead_s.value + wait;
    }
  }

  const double streamed = StreamedExpertBytes(problem, c, tokens);
  if (!c.dense_resident) {
    times.weights_copy_s = CopySeconds(problem, c, D(model.LayerDenseBytes()), link_in);
  }
  const double expert_weights = D(model.ExpertParameters());
  const double bytes_per_weight = D(model.ExpertBytes()) / expert_weights;
  const auto experts_of = [&](double batch_rows) {
    return ExpectedActiveExperts(model.num_experts, model.top_k, batch_rows);
  };
  if (c.schedule != ScheduleKind::kModuleBatching) {
    const double part = rows / merged;
    const double used = experts_of(part);
    times.post_attention_s += merged * TaskSeconds(device, used * D(model.ExpertBytes()),
                                                   2 * part * D(model.top_k) * expert_weights);
    times.weights_copy_s += CopySeconds(problem, c, streamed, link_in);
    return times;
  }
  const double used = experts_of(tokens);
  times.experts = std::max<int64_t>(1, std::llround(used));
  const double rows_of_expert = tokens * D(model.top_k) / used;
  const double chunks = std::ceil(rows_of_expert / D(c.expert_micro_batch));
  const double one = chunks * (TaskSeconds(device, expert_weights * bytes_per_weight,
                                           2 * rows_of_expert / chunks * expert_weights) +
                               machine.task_overhead_s.value);
  times.expert_s = one * used / D(times.experts);
  if (c.resident_experts < model.num_experts) {
    times.streamed_experts = std::clamp<int64_t>(
        std::llround(used * D(model.num_experts - c.resident_experts) / D(model.num_experts)), 1,
        times.experts);
    times.expert_copy_s = CopySeconds(problem, c, streamed / D(times.streamed_experts), link_in);
    times.expert_buffers = std::max<int64_t>(1, c.expert_buffers);
  }
  return times;
}

namespace {

// Layers without experts and the head: one after the other with the rest.
double OtherSeconds(const PlanProblem& problem, const LayerTimes& times,
                    const IterationLoad& load) {
  const ModelShape& model = problem.model;
  const MemoryLevel device = problem.Device();
  const double count = D(times.micro_batches);
  const double weights = D(model.DenseMlpParameters());
  const double mlp =
      TaskSeconds(device, weights * model.bytes_per_weight, 2 * TokensOf(load) * weights);
  const double layer =
      mlp + count * (times.pre_attention_s + times.cpu_attention_s + times.device_attention_s);
  const double head_weights = D(model.vocab_size) * D(model.hidden_size);
  const double rows = std::max(
      1.0, D(load.decode_sequences) + D(load.prefill_tokens) / std::max(1.0, problem.mean_prompt));
  return (model.dense_layers > 0 ? D(model.dense_layers) * layer : 0) +
         TaskSeconds(device, head_weights * model.bytes_per_weight, 2 * rows * head_weights);
}

}  // namespace

PhasePrediction PredictIteration(const PlanProblem& problem, const PlanCandidate& candidate,
                                 const IterationLoad& load) {
  const LayerTimes times = TimesOf(problem, candidate, load);
  PhasePrediction phase = PredictLayer(candidate.schedule, times);
  phase.iteration_s =
      D(problem.model.sparse_layers()) * phase.period_s + OtherSeconds(problem, times, load);
  return phase;
}

double IterationBound(const PlanProblem& problem, const PlanCandidate& candidate,
                      const IterationLoad& load) {
  const LayerTimes times = TimesOf(problem, candidate, load);
  const double roofline = LayerRoofline(candidate.schedule, times).roofline_s;
  return D(problem.model.sparse_layers()) * roofline + OtherSeconds(problem, times, load);
}

}  // namespace moesaic
