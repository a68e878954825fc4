// BatchSizes: how large a batch job's engine is, what that takes of memory, and a rule that chooses
// where nobody has measured how long the model's modules take (serving/plan/batch_planner decides
// otherwise, by the same ledger).
//
// The rule: when the experts that stream take A seconds a pass and each sequence adds b
// (its compute, and the residents that its KV cache crowds out), N sequences give N / (A + N b)
// tokens a second, which grows with N. So as many sequences run as there are requests for, or as
// memory holds beside the buffers; what is left is residents. Where all experts fit beside a
// sensible batch, all are residents.
//
// Plain data and functions of their arguments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "core/base/memory_ledger.h"
#include "core/perf/execution_plan.h"
#include "serving/online/create_engine.h"
#include "serving/online/part_options.h"

namespace moesaic {

struct BatchSizes {
  ScheduleKind schedule = ScheduleKind::kModuleBatching;
  int64_t micro_batches = 1;  // groups of a pass's sequences, at most
  int64_t max_num_seqs = 0;
  int64_t max_batch_tokens = 0;  // rows of a pass: decode tokens and prefill tokens together
  int64_t max_context_tokens = 0;
  int64_t num_kv_blocks = 0;    // of all groups of layers together
  int64_t num_state_slots = 0;  // of recurrent state: of the sequences, and snapshots for prefixes
  int64_t expert_slots = 0;     // of all devices together, when there are any
  int64_t buffers = 0;          // of the slots (of each device's), for experts that stream
  int64_t max_logit_rows = 64;
  uint32_t packet_bytes = 0;  // of copies to devices; 0: as experts are read

  friend bool operator==(const BatchSizes&, const BatchSizes&) = default;
};

// What the job's requests are like.
struct BatchWorkload {
  int64_t sequences = 0;  // 0: not known
  double prompt_tokens = 512;
  double output_tokens = 256;
};

struct BatchPlan {
  BatchSizes sizes;
  std::vector<DevicePlan> devices;  // empty: none
  bool dense_on_device = false;     // by the kernels of the first
  std::string why_dense_on_host;    // with DenseMode::kAuto, when it could not be; else empty
  MemoryLedger ledger;              // of the host's memory, within --memory
  uint64_t slot_bytes = 0;
  uint64_t all_experts_bytes = 0;
  // What is predicted of these sizes; none when they were chosen by the rule.
  std::optional<ExecutionPlan> execution;

  int64_t residents() const {
    return sizes.expert_slots - sizes.buffers * std::max<int64_t>(1, std::ssize(devices));
  }
};

// A batch that is to be fitted into memory. What the options fix is kept; 0, -1 and nullopt are by
// rule.
struct BatchWish {
  int64_t sequences = 1;
  int64_t batch_tokens = 0;
  int64_t buffers = -1;
  std::optional<ScheduleKind> schedule = std::nullopt;
  int64_t micro_batches = 0;
  uint32_t packet_bytes = 0;
};

// Of `options`, max_num_seqs and max_num_batched_tokens at 0, and the memories at "auto", are
// chosen here; others are kept. Throws Error(kResourceExhausted) when it cannot fit.
BatchPlan PlanBatch(const EngineOptions& options, const ModelFiles& files,
                    const BatchWorkload& workload);
BatchPlan PlanBatch(const EngineOptions& options, const BatchWorkload& workload);

// Sizes of such a batch with as many expert slots as memory has left; nullopt when it does not fit
// or leaves none.
std::optional<BatchSizes> FitBatch(const EngineOptions& options, const ModelFiles& files,
                                   const BatchWorkload& workload, const BatchWish& wish);
// Throws Error(kUnsupported, kInvalidArgument) for options that no batch can be planned with.
void CheckBatchOptions(const EngineOptions& options, const ModelConfig& config);

// The exact ledger of given sizes.
BatchPlan LedgerOf(const EngineOptions& options, const ModelFiles& files, const BatchSizes& sizes);

// Most bytes of one copy to a device.
uint32_t PacketBytesOf(const EngineOptions& options, const BatchSizes& sizes);

ModelLimits LimitsOf(const EngineOptions& options, const BatchSizes& sizes);
ModelLimits LimitsOf(const EngineOptions& options, const BatchPlan& plan);

// What a batch engine's timeline keeps.
constexpr size_t kTimelineIntervals = 200'000;

}  // namespace moesaic
