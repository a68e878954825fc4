// CUDA kernels between the router and the experts: choice of experts, grouping of rows by expert,
// and the sum of the experts' outputs. Every pointer is the device's; a call queues a kernel and
// returns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/launch_result.h"
#include "kernels/cuda/stream_handle.h"

namespace moesaic::cuda {

constexpr int64_t kMaxExperts = 1024;  // of a layer

constexpr int64_t kMaxGroups = 32;  // of experts

// logits[t, e] = x[t] . w[e], in f32 throughout: a router whose input is rounded picks other
// experts (the CPU's router does not round it either). One order of summation, whatever the other
// tokens. For narrow matrices: it reads the weights anew for every few tokens.
struct RouterLogitsArgs {
  const float* x = nullptr;           // [tokens, k]
  const std::byte* matrix = nullptr;  // packed [experts, k], of bf16 or, if f32_weights, of f32:
                                      // [ceil(experts / 16)][k][16]
  bool f32_weights = false;
  int64_t tokens = 0;
  int64_t experts = 0;
  int64_t k = 0;
  float* logits = nullptr;  // [tokens, experts]
};
LaunchResult RouterLogits(const RouterLogitsArgs& args, StreamHandle stream);

enum class RouterScores : uint8_t { kSoftmax, kSigmoid };

// Scores of all experts in f32, then the top k; a tie goes to the lower expert. The weights are the
// scores of those chosen. A row with a NaN gets distinct, valid experts and NaN weights.
//
// DeepSeek's kinds. V2: softmax; experts in groups, of which the best few are considered, by their
// best score (group_limited_greedy). V3: sigmoid; a bias per expert is added for the choice, not to
// the weights; groups are ranked by the sum of their best two (noaux_tc; "DeepSeek-V3 Technical
// Report", arXiv 2412.19437, section 2.1.2). An expert outside of the chosen groups is never
// chosen.
struct RouterTopKArgs {
  const float* logits = nullptr;  // [tokens, experts]
  int64_t tokens = 0;
  int64_t experts = 0;  // at most kMaxExperts
  int64_t top_k = 0;    // at most the experts of top_groups
  RouterScores scores = RouterScores::kSoftmax;
  const float* bias = nullptr;      // [experts]; null: none
  int64_t groups = 1;               // at most kMaxGroups, a divisor of experts
  int64_t top_groups = 1;           // at most groups
  bool groups_by_best_two = false;  // else by the best
  bool normalize = false;           // weights are divided by (their sum + norm_eps)
  float norm_eps = 0.0f;
  float scale = 1.0f;        // of the weights, after that
  int32_t* ids = nullptr;    // [tokens, top_k]
  float* weights = nullptr;  // [tokens, top_k]
};
LaunchResult RouterTopK(const RouterTopKArgs& args, StreamHandle stream);

// Groups the (token, slot) pairs by expert: within an expert they keep their order. Pairs whose id
// is not in [0, experts) are left out: an expert that is computed elsewhere is given the id -1.
struct GroupRowsArgs {
  const int32_t* ids = nullptr;  // [pairs], pairs = tokens * top_k
  int64_t pairs = 0;
  int64_t top_k = 0;
  int64_t experts = 0;            // at most kMaxExperts
  int32_t* offsets = nullptr;     // [experts + 1]: expert e has the rows [offsets[e], offsets[e+1])
  int32_t* token_rows = nullptr;  // [pairs]: pair / top_k of each row
  int32_t* slot_rows = nullptr;   // [pairs]: pair of each row
};
LaunchResult GroupRows(const GroupRowsArgs& args, StreamHandle stream);

// What LookUpExperts says of a pair, and CombineSlots takes.
constexpr int32_t kElsewhere = -1;           // its expert is not here: who computes it says where
constexpr int32_t kNoRow = -2147483647 - 1;  // nobody computes it

// The experts that the pairs name and that are here, which a table says: as GroupRows, of those
// only. Rows from *rows on are left out. What is here is looked up after `progress` has `number`,
// as everybody sees it (cache/slot_table.h). progress, slots, missed and go are memory of the host
// that kernels reach (Device::KernelsReach).
struct LookUpExpertsArgs {
  const int32_t* ids = nullptr;  // [pairs], in [0, experts)
  int64_t pairs = 0;
  int64_t top_k = 0;
  int64_t experts = 0;                      // at most kMaxExperts
  const int32_t* rows = nullptr;            // one number: at most pairs / top_k
  const std::byte* const* slots = nullptr;  // [experts] its weights; null: it is not here
  int64_t sections[3] = {};                 // where in them gate, up and down are
  uint32_t* progress = nullptr;
  uint32_t number = 0;
  const std::byte** weights[3] = {};  // [experts] gate, up and down of those that are here
  int32_t* offsets = nullptr;         // [experts + 1]
  int32_t* token_rows = nullptr;      // [pairs]
  int32_t* slot_rows = nullptr;       // [pairs]
  int32_t* places = nullptr;          // [pairs] the pair itself, kElsewhere or kNoRow
  int32_t* missed = nullptr;          // [1 + experts] how many are elsewhere, and which, ascending
  uint32_t* go = nullptr;             // becomes 1 when none is
};
LaunchResult LookUpExperts(const LookUpExpertsArgs& args, StreamHandle stream);

// Copies little to memory of the host that kernels reach, then sets a word there: whoever sees the
// word sees what was copied. One kernel in place of copies that each wait for the one before.
constexpr int64_t kMostToldBytes = 64 * 1024;
struct TellHostArgs {
  static constexpr int kPieces = 3;
  const std::byte* from[kPieces] = {};
  std::byte* to[kPieces] = {};
  int64_t bytes[kPieces] = {};  // multiples of 4, kMostToldBytes at most together
  uint32_t* word = nullptr;     // becomes 1
};
LaunchResult TellHost(const TellHostArgs& args, StreamHandle stream);

// y[t] += sum over slots, ascending, of weights[t, s] * slot_out[t, s] (the CPU's CombineSlots).
struct CombineSlotsArgs {
  const float* slot_out = nullptr;  // [tokens, top_k, hidden]
  // [tokens, top_k] row of slot_out [.., hidden] of each pair; null: as they come.
  const int32_t* slot_rows = nullptr;
  // Null, or [.., hidden]: a pair whose row is negative has row ~row of these, or nothing (kNoRow).
  const float* other_out = nullptr;
  const float* weights = nullptr;  // [tokens, top_k]
  int64_t tokens = 0;
  int64_t top_k = 0;
  int64_t hidden = 0;
  float* y = nullptr;  // [tokens, hidden]
};
LaunchResult CombineSlots(const CombineSlotsArgs& args, StreamHandle stream);

// Loads all of these kernels (LoadKernels, kernels.h).
LaunchResult LoadRoutingKernels();

}  // namespace moesaic::cuda
