// The routed experts of one layer as one operator on a thread pool: gate and up of all given
// experts, activation, then down, as one list of tasks (expert_queue.h).
//
// On a pool of several NUMA nodes each matrix is sliced over them by its outputs, down as well as
// gate and up: what nodes exchange are hidden activations, not partial sums, and so an output is
// one sum in one order whatever the number of nodes (docs/architecture.md, "NUMA nodes").
//
// Outputs are kept per (token, slot): the caller sums them in slot order (CombineSlots), so that
// neither the order in which experts arrive nor the thread that ran them can change a bit.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/aligned_buffer.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

// One expert and the rows that were routed to it.
struct ExpertWork {
  PackedMatrix gate;                    // [intermediate, hidden]
  PackedMatrix up;                      // [intermediate, hidden]
  PackedMatrix down;                    // [hidden, intermediate]
  const int32_t* token_rows = nullptr;  // [count] row of x
  const int32_t* slot_rows = nullptr;   // [count] row of slot_out: token * top_k + slot
  int64_t count = 0;
  // All null, or none.
  const float* gate_bias = nullptr;  // [intermediate]
  const float* up_bias = nullptr;    // [intermediate]
  const float* down_bias = nullptr;  // [hidden]
  GatedActivation activation = {};
};

// Scratch for the hidden activations; grown by Reserve outside the step, never inside.
class MoeWorkspace {
 public:
  // For up to `max_rows` (token, slot) pairs in one call and `max_intermediate` features, which
  // are kept as `type` (that of the experts' weights, see ActivationTypeOf).
  void Reserve(ActivationType type, int64_t max_rows, int64_t max_intermediate);
  AlignedBuffer& hidden() { return hidden_; }
  int64_t bytes() const { return static_cast<int64_t>(hidden_.bytes()); }

 private:
  AlignedBuffer hidden_;
};

// x: activation rows (hidden features). slot_out: [rows, hidden] floats; only rows named in
// slot_rows are written. CHECKs that the workspace is large enough.
void RunExperts(ThreadPool& pool, const CpuKernels& kernels, const std::byte* x,
                int64_t x_stride_bytes, std::span<const ExpertWork> experts, float* slot_out,
                MoeWorkspace& workspace);

// Some of the (token, slot) pairs: those with mask [tokens, top_k] == value; null: all of them.
struct SlotMask {
  const uint8_t* mask = nullptr;
  uint8_t value = 0;
};

// y[t] += sum over slots, ascending, of weights[t * top_k + s] * slot_out[t * top_k + s].
void CombineSlots(ThreadPool& pool, const CpuKernels& kernels, const float* slot_out,
                  const float* weights, int64_t tokens, int64_t top_k, int64_t hidden, float* y,
                  SlotMask slots = {});

// args.panel_begin/end are ignored: the whole product, split over the pool by panels and row
// blocks, and over its nodes like those of experts.
void ParallelMatmul(ThreadPool& pool, const CpuKernels& kernels, MatmulArgs args);
void ParallelGateUp(ThreadPool& pool, const CpuKernels& kernels, const GateUpArgs& args);

}  // namespace moesaic
