// ExecutionPlan: how a throughput job is to be run on one machine, what that takes of each memory,
// and how long it is predicted to take. Made by the planner (serving/plan/throughput_planner), run
// by the throughput engine, printed by `moesaic plan`.
//
// Plain data. Seconds and bytes are of one process on one machine. On a machine without a GPU the
// "device" is the CPU, its memory is host memory, and the link is the disk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/base/memory_ledger.h"
#include "core/base/named.h"
#include "core/perf/machine_spec.h"

namespace moesaic {

// The three schedules are edge sets over the same tasks (docs/throughput.md).
enum class ScheduleKind {
  kPagedWeights,    // CGOPipe: micro-batches, CPU attention two ahead, weight pages between (MoE-L)
  kOverlapped,      // VSLPipe: two groups, prefill and decode mixed under a token budget (MoE-Lens)
  kModuleBatching,  // a module runs over the whole batch, expert after expert (MoE-Gen)
};
// As the planner and its reports call them.
inline constexpr Named<ScheduleKind> kScheduleKinds[] = {
    {"paged-weights", ScheduleKind::kPagedWeights},
    {"overlapped", ScheduleKind::kOverlapped},
    {"module-batching", ScheduleKind::kModuleBatching}};
// As the setting of a batch engine calls them.
inline constexpr Named<ScheduleKind> kBatchSchedules[] = {{"module", ScheduleKind::kModuleBatching},
                                                          {"overlapped", ScheduleKind::kOverlapped},
                                                          {"paged", ScheduleKind::kPagedWeights}};
const char* ScheduleKindName(ScheduleKind kind);
// Throws Error(kInvalidArgument) that lists the names.
ScheduleKind ParseScheduleKind(std::string_view text, std::string_view what);

// The exclusive servers of a machine; each runs one task at a time.
enum class Resource { kDevice, kLinkIn, kLinkOut, kCpu };
constexpr int kNumResources = 4;
const char* ResourceName(Resource resource);  // "device", "link in", "link out", "cpu"

// One kind of task, summed over a layer.
struct ComponentTime {
  std::string name;  // "experts", "weight copy"
  Resource resource = Resource::kDevice;
  double seconds = 0;
};

// One phase (prefill or decode) in the steady state of its pipeline, per layer.
struct PhasePrediction {
  std::vector<ComponentTime> components;
  double busy_s[kNumResources] = {};  // sum of the components by resource
  double roofline_s = 0;              // the longest of busy_s: no schedule is shorter
  double period_s = 0;                // from the task graph
  double serial_s = 0;                // sum of all tasks: no schedule is longer
  double iteration_s = 0;             // all layers and the head
  Resource bottleneck = Resource::kDevice;
  Resource next_bottleneck = Resource::kDevice;
  double slack = 0;  // 1 - busy of the next / busy of the bottleneck
};

// MoE-Lens' closed form, for the overlapped schedule.
struct LensPrediction {
  double prompts_per_iteration = 0;       // q
  double decode_per_iteration = 0;        // g q
  double tokens_per_iteration = 0;        // q (p + g)
  bool kv_bound = false;                  // regime: KV capacity, not the token budget
  double iterations = 0;                  // It
  double kv_bound_tokens_per_s = 0;       // T1
  double compute_bound_tokens_per_s = 0;  // T2
  double tokens_per_s = 0;                // of the regime
  double stage1_total_tokens_per_s = 0;   // T_max: prompts counted
};

// What a whole job does, component by component: what a run measures as well. Times beside each
// other on two resources are each as long as they take there.
struct JobPrediction {
  double attention_s = 0;  // projections, attention, output
  double dense_s = 0;      // other work of every row: router, shared expert, layers without experts
  double experts_s = 0;
  double head_s = 0;
  double stall_s = 0;  // computing waits for an expert
  double link_busy_s = 0;
  double hidden_in_s = 0;   // attention outputs to a device, from when they are there
  double hidden_out_s = 0;  // queries, keys and values from it
  double link_bytes = 0;
  double passes = 0;
};

struct PlanPrediction {
  PhasePrediction prefill;
  PhasePrediction decode;
  int64_t iterations = 0;
  double prefill_s = 0;
  double decode_s = 0;
  double wall_s = 0;  // prefill_s + decode_s, or the overlapped whole
  double generated_tokens_per_s = 0;
  double total_tokens_per_s = 0;
  int64_t preemptions = 0;
  std::optional<LensPrediction> lens;
  std::optional<JobPrediction> job;  // of the schedule that this program's batch engine runs
};

// What one more tenth of something would gain.
struct WhatIf {
  std::string change;     // "link rate +10%"
  double throughput = 0;  // generated tokens/s of the plan made for that machine
  double gain = 0;        // throughput / this plan's - 1
};

void SortByGain(std::vector<WhatIf>& answers);  // the largest first

struct ExecutionPlan {
  std::string model;
  std::string machine;
  ScheduleKind schedule = ScheduleKind::kModuleBatching;

  // Batch. In prefill a batch's prompts run in groups of micro_batch_tokens.
  int64_t batch_sequences = 0;        // N: sequences that decode together
  int64_t micro_batch_sequences = 0;  // mu, b_a: attention and projections of decode
  int64_t num_micro_batches = 0;      // n_ub = ceil(N / mu)
  int64_t micro_batch_tokens = 0;     // of prefill
  int64_t expert_micro_batch = 0;     // b_e: most tokens of one expert at once
  int64_t token_budget = 0;           // n_real: tokens of one iteration, prefill and decode

  // Placement
  int64_t cpu_attention_tenths = 10;  // omega: of decode attention; the rest on the device
  bool attention_on_device = false;   // A_g
  bool ffn_on_device = true;          // F_g
  bool dense_resident = true;         // else each layer's dense weights are streamed as well
  int64_t resident_experts = 0;       // of each sparse layer: experts 0 .. n-1
  int64_t expert_buffers = 0;         // slots that streamed experts go through
  uint64_t expert_bytes = 0;          // one slot
  uint64_t packet_bytes = 0;          // most bytes of one copy
  int64_t kv_block_tokens = 0;
  int64_t kv_blocks = 0;  // a block holds all layers, or those of a group of the engine's
  uint64_t kv_block_bytes = 0;
  int threads = 0;

  std::vector<MemoryLedger> ledgers;
  PlanPrediction prediction;
  std::vector<WhatIf> what_if;
  std::vector<NamedConstant> constants;  // that the prediction rests on

  const MemoryLedger* Ledger(std::string_view memory) const;  // null when there is none
};

Json PlanToJson(const ExecutionPlan& plan);

}  // namespace moesaic
