// PlanCandidate: one setting of all that the planner chooses, the bytes it takes of each memory,
// and the durations of a layer's tasks under a given load.
//
// Pure functions over plain data. The same formulas make the ledger of the plan that is chosen.
#pragma once

#include <cstdint>
#include <vector>

#include "core/perf/execution_plan.h"
#include "core/perf/layer_schedules.h"
#include "core/perf/machine_spec.h"
#include "core/perf/model_shape.h"
#include "core/perf/roofline.h"
#include "serving/plan/scheduler_simulation.h"

namespace moesaic {

// What a plan is made for.
struct PlanProblem {
  const ModelShape& model;
  const MachineSpec& machine;
  double mean_prompt = 0;
  double mean_generated = 0;
  int64_t longest_prompt = 0;
  int64_t longest = 0;  // prompt and output
  int64_t requests = 0;
  int64_t kv_block_tokens = 16;

  bool has_gpu() const { return machine.has_gpu(); }
  MemoryLevel Device() const;  // that runs the projections and experts; without a GPU the CPU
  MemoryLevel Cpu() const;     // decode attention
  int64_t KvBlocksOf(double tokens) const;
  uint64_t KvBlockBytes() const;
};

struct PlanCandidate {
  ScheduleKind schedule = ScheduleKind::kModuleBatching;
  int64_t batch_sequences = 1;
  int64_t micro_batches = 1;       // of decode
  int64_t micro_batch_tokens = 1;  // of prefill
  int64_t expert_micro_batch = 1;
  int64_t token_budget = 1;
  int64_t cpu_attention_tenths = 10;
  bool dense_resident = true;
  int64_t resident_experts = 0;
  int64_t expert_buffers = 0;
  int64_t kv_blocks = 0;
  uint64_t packet_bytes = 1;

  int64_t micro_batch_sequences() const {
    return (batch_sequences + micro_batches - 1) / micro_batches;
  }
};

// Device first, if there is one, then host.
std::vector<MemoryLedger> LedgersOf(const PlanProblem& problem, const PlanCandidate& candidate);
bool Fits(const std::vector<MemoryLedger>& ledgers);

// Slots that the schedule streams experts through: all that are not resident twice, or as given.
int64_t BuffersFor(const PlanProblem& problem, ScheduleKind schedule, int64_t resident,
                   int64_t asked);
// Most experts of each layer that fit beside the rest of the candidate; -1 when not even none does.
// Sets resident_experts and expert_buffers. The memory that a layer's experts take grows with
// residency, so this is a bisection.
int64_t ChooseResident(const PlanProblem& problem, PlanCandidate& candidate, int64_t buffers);

// Packets worth a look, ascending: powers of two up to an expert, or the disk's best block.
std::vector<uint64_t> PacketSizes(const PlanProblem& problem);

LayerTimes TimesOf(const PlanProblem& problem, const PlanCandidate& candidate,
                   const IterationLoad& load);
// One layer under this load, and all of them with the head.
PhasePrediction PredictIteration(const PlanProblem& problem, const PlanCandidate& candidate,
                                 const IterationLoad& load);
// A lower bound of the iteration: every resource by itself.
double IterationBound(const PlanProblem& problem, const PlanCandidate& candidate,
                      const IterationLoad& load);

}  // namespace moesaic
