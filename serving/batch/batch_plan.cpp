#include "serving/batch/batch_plan.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/units.h"
#include "kernels/cpu/kernels.h"
#include "prefetch/link/host_experts.h"
#include "serving/batch/plan_devices.h"
#include "serving/batch/streaming_experts.h"
#include "serving/model/device_dense.h"
#include "serving/model/experts_of_model.h"
#include "serving/model/weights.h"
#include "serving/online/dense_place.h"
#include "serving/online/device_plan.h"
#include "serving/online/engine_checks.h"
#include "serving/online/kv_plan.h"
#include "serving/online/part_options.h"
#include "serving/online/place_rules.h"

namespace moesaic {
namespace {

constexpr int64_t kMostSequences = 1024;  // beyond, a pass is compute on any CPU
constexpr int64_t kSensibleBatch = 64;
constexpr int64_t kFewestRows = 512;  // a prompt shorter than this is one pass
constexpr int64_t kMostRows = 8192;

// Enough that the link has its packets in flight while as many experts are computed.
int64_t WantedBuffers(const EngineOptions& options, const ModelConfig& config,
                      uint64_t slot_bytes) {
  const uint64_t packet = options.packet_bytes > 0 ? options.packet_bytes : kDefaultPacketBytes;
  const auto depth =
      static_cast<uint64_t>(options.io_depth > 0 ? options.io_depth : kDefaultReadDepth);
  const auto in_flight = static_cast<int64_t>((packet * depth + slot_bytes - 1) / slot_bytes);
  return std::max<int64_t>({4, 2 * (in_flight + 1), config.num_experts()});
}

// CGOPipe launches attention two micro-batches ahead. With dense modules on a device one computes
// beside the other's attention.
int64_t MicroBatches(const EngineOptions& options, const BatchWish& wish, ScheduleKind schedule,
                     bool dense_apart) {
  if (schedule == ScheduleKind::kOverlapped) return 2;
  if (options.micro_batches > 0) return options.micro_batches;
  if (wish.micro_batches > 0) return wish.micro_batches;
  if (schedule == ScheduleKind::kPagedWeights) return 4;
  return dense_apart ? 2 : 1;
}

int64_t BuffersOf(int64_t slots, int64_t wanted) {
  return std::min({wanted, std::max<int64_t>(2, slots / 2), slots});
}

struct Sizer {
  const EngineOptions& options;
  const ModelFiles& files;
  const BatchWorkload& workload;
  const int64_t context;
  const uint64_t machine_bytes;
  const int64_t all_experts;

  Sizer(const EngineOptions& engine_options, const ModelFiles& model_files,
        const BatchWorkload& job)
      : options(engine_options),
        files(model_files),
        workload(job),
        context(WantedContext(options, files.config)),
        machine_bytes(options.machine_memory_bytes > 0 ? options.machine_memory_bytes
                                                       : UINT64_MAX / 2),
        all_experts(files.config.num_sparse_layers() * files.config.num_experts()) {}

  // Tokens that one request must have room for: what was asked for, else what is sensible.
  int64_t LongestByRule() const {
    return options.max_model_len > 0 ? context : std::min<int64_t>(context, 2048);
  }

  int64_t RowsFor(const BatchWish& wish) const {
    if (options.max_num_batched_tokens > 0) {
      return std::max(options.max_num_batched_tokens, wish.sequences);
    }
    return std::max(wish.sequences, std::min(RowsByRule(wish), MostRows()));
  }

  // That devices with kernels take at a time.
  int64_t MostRows() const {
    return KernelsOf(options.devices) == nullptr ? INT64_MAX
                                                 : DeviceOperator::MostTokens(files.config);
  }

  int64_t RowsByRule(const BatchWish& wish) const {
    if (wish.batch_tokens > 0) return wish.batch_tokens;
    const double per_decode = 1 + workload.prompt_tokens / std::max(1.0, workload.output_tokens);
    const auto balanced = static_cast<int64_t>(static_cast<double>(wish.sequences) * per_decode);
    return std::clamp(balanced, kFewestRows, kMostRows);
  }

  // The sizes of a batch, with all the slots that memory has left (maybe none).
  BatchSizes For(const BatchWish& wish) const {
    const int64_t sequences = wish.sequences;
    BatchSizes sizes;
    sizes.max_num_seqs = sequences;
    if (files.config.FindMixer<DeltaNetSpec>() != nullptr) {
      sizes.num_state_slots = sequences + (options.prefix_cache ? options.state_snapshots : 0);
    }
    sizes.max_batch_tokens = RowsFor(wish);
    sizes.max_logit_rows = std::min<int64_t>(sizes.max_logit_rows, sizes.max_batch_tokens);
    const auto tokens =
        static_cast<int64_t>(std::ceil(workload.prompt_tokens + workload.output_tokens));
    const uint64_t block_bytes = Model::KvBlockBytes(files.config, ChooseKvType(options));
    const KvNeeds needs = KvNeedsOf(files.config);
    if (options.kv_memory.is_auto()) {
      sizes.num_kv_blocks =
          std::max(needs.MostTogether(sequences, std::min(tokens, context), sizes.max_batch_tokens),
                   needs.Most(LongestByRule(), sizes.max_batch_tokens));
    } else {
      sizes.num_kv_blocks =
          static_cast<int64_t>(options.kv_memory.BytesOf(machine_bytes) / block_bytes);
    }
    sizes.max_context_tokens = needs.Longest(sizes.num_kv_blocks, sizes.max_batch_tokens, context);
    sizes.schedule =
        options.schedule.value_or(wish.schedule.value_or(ScheduleKind::kModuleBatching));
    sizes.micro_batches = MicroBatches(options, wish, sizes.schedule, false);
    const uint64_t slot_bytes = files.experts->layout().slot_bytes;
    if (options.devices.count > 0) {
      sizes.packet_bytes =
          options.device_packet_bytes > 0 ? options.device_packet_bytes : wish.packet_bytes;
      return WithDeviceSlots(sizes, wish);
    }
    if (options.expert_memory.is_auto()) {
      BatchSizes probe = sizes;  // staging depends on the slots
      probe.expert_slots = probe.buffers = all_experts;
      const uint64_t rest = LedgerOf(options, files, probe).ledger.total_bytes() -
                            static_cast<uint64_t>(all_experts) * slot_bytes;
      const uint64_t left = machine_bytes > rest ? machine_bytes - rest : 0;
      sizes.expert_slots = static_cast<int64_t>(
          std::min<uint64_t>(left / slot_bytes, static_cast<uint64_t>(all_experts)));
    } else {
      const uint64_t all_bytes = static_cast<uint64_t>(all_experts) * slot_bytes;
      const uint64_t budget_bytes = options.expert_memory.BytesOf(all_bytes);
      sizes.expert_slots = std::min(all_experts, static_cast<int64_t>(budget_bytes / slot_bytes));
    }
    if (sizes.expert_slots >= all_experts) {
      sizes.buffers = 0;
    } else if (wish.buffers >= 0) {
      sizes.buffers = std::min(wish.buffers, sizes.expert_slots);
    } else {
      sizes.buffers =
          BuffersOf(sizes.expert_slots, WantedBuffers(options, files.config, slot_bytes));
    }
    return sizes;
  }

  // The devices' memory is what it is; the host's is the experts' home.
  // No slots: what else is there does not fit.
  BatchSizes WithDeviceSlots(BatchSizes sizes, const BatchWish& wish) const {
    BatchDevices plan;
    try {
      plan = PlanBatchDevices(options, files, sizes);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kResourceExhausted) throw;
      return sizes;
    }
    const bool dense_apart = plan.dense_on_device || KernelsOf(options.devices) == nullptr;
    sizes.micro_batches = MicroBatches(options, wish, sizes.schedule, dense_apart);
    int64_t fewest = all_experts;
    bool all_fit = true;
    for (const DevicePlan& device : plan.devices) {
      sizes.expert_slots += device.slots;
      fewest = std::min(fewest, device.slots);
      all_fit = all_fit && device.slots == device.experts;
    }
    const uint64_t slot_bytes = files.experts->layout().slot_bytes;
    const int64_t wanted =
        wish.buffers >= 0 ? wish.buffers : WantedBuffers(options, files.config, slot_bytes);
    sizes.buffers = all_fit ? 0 : BuffersOf(fewest, wanted);
    return sizes;
  }

  bool Fits(const BatchSizes& sizes) const { return LedgerOf(options, files, sizes).ledger.fits(); }

  // The largest number of sequences that leaves so many slots; 0: none.
  int64_t MostWith(int64_t slots, int64_t most) const {
    int64_t low = 0;
    int64_t high = most;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      const BatchSizes sizes = For({middle});
      if (sizes.expert_slots >= slots && Fits(sizes)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }
};

}  // namespace

uint32_t PacketBytesOf(const EngineOptions& options, const BatchSizes& sizes) {
  if (sizes.packet_bytes > 0) return sizes.packet_bytes;
  return options.packet_bytes > 0 ? options.packet_bytes : kDefaultPacketBytes;
}

ModelLimits LimitsOf(const EngineOptions& options, const BatchSizes& sizes) {
  ModelLimits limits;
  limits.max_batch_tokens = sizes.max_batch_tokens;
  limits.max_context_tokens = sizes.max_context_tokens;
  limits.num_kv_blocks = sizes.num_kv_blocks;
  limits.num_state_slots = sizes.num_state_slots;
  limits.max_logit_rows = sizes.max_logit_rows;
  limits.kv_type = ChooseKvType(options);
  limits.gemm_library = options.devices.cublas;
  return limits;
}

ModelLimits LimitsOf(const EngineOptions& options, const BatchPlan& plan) {
  ModelLimits limits = LimitsOf(options, plan.sizes);
  limits.host_attention = plan.dense_on_device;
  return limits;
}

BatchPlan LedgerOf(const EngineOptions& options, const ModelFiles& files, const BatchSizes& sizes) {
  CheckDenseMode(options);
  const ModelConfig& config = files.config;
  BatchPlan plan;
  plan.sizes = sizes;
  plan.slot_bytes = files.experts->layout().slot_bytes;
  plan.all_experts_bytes =
      static_cast<uint64_t>(config.num_sparse_layers() * config.num_experts()) * plan.slot_bytes;
  if (options.devices.count > 0) {
    BatchDevices devices = PlanBatchDevices(options, files, sizes);
    plan.devices = std::move(devices.devices);
    plan.dense_on_device = devices.dense_on_device;
    plan.why_dense_on_host = std::move(devices.why_dense_on_host);
  }
  const ModelLimits limits = LimitsOf(options, plan);
  StreamingOptions streaming;
  streaming.slots = std::max<int64_t>(1, sizes.expert_slots);
  streaming.packet_bytes = options.packet_bytes;
  streaming.depth = options.io_depth;
  const WeightType type = ChooseWeightType(options);
  const ExpertGrid grid = GridOf(config);
  MemoryLedger& ledger = plan.ledger;
  if (options.machine_memory_bytes > 0) ledger.limit_bytes = options.machine_memory_bytes;
  ledger.Add("dense weights", ModelWeights::Bytes(config, type));
  if (plan.devices.empty()) {
    const auto residents = static_cast<uint64_t>(sizes.expert_slots - sizes.buffers);
    ledger.Add("resident experts", residents * plan.slot_bytes);
    ledger.Add("expert buffers", static_cast<uint64_t>(sizes.buffers) * plan.slot_bytes);
    ledger.Add("expert staging",
               StreamingExperts::StagingBytes(*files.experts, grid, streaming.slots, streaming));
  } else {
    uint64_t device_bytes = DevicesHostBytes(WithRows(options, sizes), config, plan.devices);
    if (plan.dense_on_device) {
      device_bytes += DeviceDense::HostBytes(config, DenseLimitsOf(options, sizes), 1);
    }
    ledger.Add("experts in host memory", plan.all_experts_bytes);
    ledger.Add(DevicesHostName(options.devices), device_bytes);
    // While the experts are read.
    ledger.Add("expert staging",
               HostExperts::StagingBytes(*files.experts, grid, LoaderOptionsOf(options, 0)));
  }
  ledger.Add("KV cache", static_cast<uint64_t>(sizes.num_kv_blocks) *
                             Model::KvBlockBytes(config, limits.kv_type));
  if (sizes.num_state_slots > 0) {
    ledger.Add("recurrent state",
               static_cast<uint64_t>(sizes.num_state_slots) * Model::StateSlotBytes(config));
  }
  ledger.Add("workspace",
             Model::WorkspaceBytes(config, SelectKernels(type), limits, options.threads,
                                   std::max(1, options.devices.count)) +
                 static_cast<uint64_t>(sizes.max_logit_rows + options.threads * 4) *
                     static_cast<uint64_t>(config.vocab_size) * sizeof(float));
  ledger.Add("timeline", kTimelineIntervals * sizeof(TimelineInterval));
  ledger.Add("process", kProcessBytes);
  if (options.grammar_bytes > 0) ledger.Add("grammars", options.grammar_bytes);
  return plan;
}

void CheckBatchOptions(const EngineOptions& options, const ModelConfig& config) {
  if (options.defer_experts > 0) {
    Fail(ErrorKind::kInvalidArgument,
         "--defer-experts {}: throughput mode runs a layer's experts for all sequences at once and "
         "has nothing to defer them for; leave it out, or use latency mode (moesaic serve, moesaic "
         "run)",
         options.defer_experts);
  }
  if (!options.share_experts.empty()) {
    Fail(ErrorKind::kInvalidArgument,
         "--share-experts {}: throughput mode streams all experts in the order of its own passes, "
         "and shares no memory of them; leave it out, or use latency mode (moesaic serve, moesaic "
         "run)",
         options.share_experts);
  }
  CheckRulesOfBatch(options, config);
  CheckDenseMode(WithDenseByRules(options, config));
  CheckContext(options, config);
}

std::optional<BatchSizes> FitBatch(const EngineOptions& options, const ModelFiles& files,
                                   const BatchWorkload& workload, const BatchWish& wish) {
  const Sizer sizer(options, files, workload);
  const BatchSizes sizes = sizer.For(wish);
  const bool context_fits =
      sizes.max_context_tokens >= 1 &&
      (options.max_model_len == 0 || sizes.max_context_tokens >= options.max_model_len);
  if (!context_fits || sizes.expert_slots < 1 || !sizer.Fits(sizes)) return std::nullopt;
  return sizes;
}

BatchPlan PlanBatch(const EngineOptions& options, const BatchWorkload& workload) {
  return PlanBatch(options, OpenModelFiles(options), workload);
}

BatchPlan PlanBatch(const EngineOptions& options, const ModelFiles& files,
                    const BatchWorkload& workload) {
  const ModelConfig& config = files.config;
  CheckBatchOptions(options, config);
  const Sizer sizer(options, files, workload);
  int64_t sequences = options.max_num_seqs;
  if (sequences == 0) {
    const int64_t most =
        workload.sequences > 0 ? std::min(workload.sequences, kMostSequences) : kMostSequences;
    const int64_t wanted = WantedBuffers(options, config, files.experts->layout().slot_bytes);
    const int64_t with_all = sizer.MostWith(sizer.all_experts, most);
    sequences = with_all >= std::min(most, kSensibleBatch)
                    ? with_all
                    : sizer.MostWith(std::min(wanted, sizer.all_experts), most);
    if (sequences == 0) sequences = std::max<int64_t>(1, sizer.MostWith(1, most));
  }
  BatchPlan plan = LedgerOf(options, files, sizer.For({sequences}));
  const BatchSizes& sizes = plan.sizes;
  if (sizes.max_context_tokens < 1 ||
      (options.max_model_len > 0 && sizes.max_context_tokens < options.max_model_len)) {
    Fail(ErrorKind::kResourceExhausted,
         "--kv-memory: {} blocks of {} tokens are fewer than one request of --max-model-len may "
         "need",
         sizes.num_kv_blocks, kKvBlockTokens);
  }
  if (sizes.expert_slots < 1 || !plan.ledger.fits()) {
    Fail(ErrorKind::kResourceExhausted,
         "a batch of {} needs {} and room for at least one expert of {}, but this process may use "
         "{}; raise --memory or lower --max-num-seqs, --max-num-batched-tokens, {}or "
         "--max-model-len{}",
         sizes.max_num_seqs, FormatBytes(plan.ledger.total_bytes()), FormatBytes(plan.slot_bytes),
         FormatBytes(sizer.machine_bytes), options.kv_memory.is_auto() ? "" : "--kv-memory ",
         LedgerLines(plan.ledger));
  }
  return plan;
}

}  // namespace moesaic
