#include "kernels/cuda/routing.h"

#include "kernels/cuda/internal/device.cuh"
#include "kernels/cuda/internal/weights.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kLogitThreads = 512;
constexpr int kLogitWarps = kLogitThreads / kWarp;
constexpr int kLogitParts = kLogitThreads / static_cast<int>(kPanelOutputs);
constexpr int kLogitBatch = 8;

// Tokens of a block where they are many: they share the weights that it has read.
constexpr int kLogitTokens = 4;

// A block per so many tokens and panel of 16 experts, a thread per expert and 32nd of the lines: 16
// neighbours read a line of 64 bytes, which has one (f32) or two inputs (bf16) of all experts. A
// batch of lines is on its way before the first is used.
template <bool kF32, int kTokens>
__global__ void __launch_bounds__(kLogitThreads) RouterLogitsKernel(RouterLogitsArgs args) {
  __shared__ float partials[kTokens][kLogitWarps][kPanelOutputs];
  const auto thread = static_cast<int>(threadIdx.x);
  const int output = thread % static_cast<int>(kPanelOutputs);
  const int part = thread / static_cast<int>(kPanelOutputs);
  const int64_t lines = kF32 ? args.k : (args.k + 1) / 2;
  const std::byte* panel = args.matrix + blockIdx.x * lines * kLineBytes + output * 4;
  const int64_t first_token = static_cast<int64_t>(blockIdx.y) * kTokens;
  // Behind the last there is the last, of which nothing is kept.
  const float* x[kTokens];
#pragma unroll
  for (int m = 0; m < kTokens; ++m) {
    x[m] = args.x + min(first_token + m, args.tokens - 1) * args.k;
  }
  float sums[kTokens] = {};
  for (int64_t first = part; first < lines; first += kLogitBatch * kLogitParts) {
    uint32_t weights[kLogitBatch];
#pragma unroll
    for (int i = 0; i < kLogitBatch; ++i) {
      const int64_t line = first + i * kLogitParts;
      weights[i] =
          line < lines ? *reinterpret_cast<const uint32_t*>(panel + line * kLineBytes) : 0u;
    }
#pragma unroll
    for (int m = 0; m < kTokens; ++m) {
      float inputs[kLogitBatch][2];
#pragma unroll
      for (int i = 0; i < kLogitBatch; ++i) {
        const int64_t line = first + i * kLogitParts;
        if constexpr (kF32) {
          inputs[i][0] = line < lines ? x[m][line] : 0.0f;
        } else {
          inputs[i][0] = line < lines ? x[m][2 * line] : 0.0f;
          inputs[i][1] = 2 * line + 1 < args.k ? x[m][2 * line + 1] : 0.0f;
        }
      }
#pragma unroll
      for (int i = 0; i < kLogitBatch; ++i) {
        if (first + i * kLogitParts >= lines) break;
        if constexpr (kF32) {
          sums[m] = fmaf(FloatOf(weights[i]), inputs[i][0], sums[m]);
        } else {
          sums[m] = fmaf(WidenBf16(weights[i]), inputs[i][0], sums[m]);
          sums[m] = fmaf(WidenBf16(weights[i] >> 16), inputs[i][1], sums[m]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kTokens; ++m) {
    sums[m] += ShuffleXor(sums[m], static_cast<int>(kPanelOutputs));  // a warp has two parts
    if (thread % kWarp < kPanelOutputs) partials[m][thread / kWarp][output] = sums[m];
  }
  __syncthreads();
  const int64_t expert = static_cast<int64_t>(blockIdx.x) * kPanelOutputs + output;
  const int64_t token = first_token + part;
  if (part >= kTokens || expert >= args.experts || token >= args.tokens) return;
  float sum = 0;
  for (int warp = 0; warp < kLogitWarps; ++warp) sum += partials[part][warp][output];
  args.logits[token * args.experts + expert] = sum;
}

template <bool kF32>
LaunchResult LaunchRouterLogits(const RouterLogitsArgs& args, StreamHandle stream) {
  const unsigned panels = CeilDiv(args.experts, kPanelOutputs);
  // Sums are the same either way.
  if (args.tokens <= kLogitTokens * kLogitTokens) {
    return Launch("router_logits", RouterLogitsKernel<kF32, 1>,
                  dim3(panels, static_cast<unsigned>(args.tokens)), kLogitThreads, stream, args);
  }
  return Launch("router_logits", RouterLogitsKernel<kF32, kLogitTokens>,
                dim3(panels, CeilDiv(args.tokens, kLogitTokens)), kLogitThreads, stream, args);
}

constexpr int kRouterWarps = 4;
// What a choice counts. NaN comes after all others, so that a poisoned row is routed somewhere.
constexpr float kTaken = kMinusInfinity;
constexpr float kNanRank = -3.402823466e38f;
__device__ float Rank(float choice) { return choice == choice ? choice : kNanRank; }

struct RouterShared {
  float scores[kMaxExperts];
  float ranks[kMaxExperts];
  float groups[kMaxGroups];
};

// Of a warp's token: scores of its experts, in place of `shared.scores`. A lane reads and writes
// those of its own experts only.
__device__ void Score(const RouterTopKArgs& args, const float* logits, int lane,
                      RouterShared& shared) {
  const int experts = static_cast<int>(args.experts);
  if (args.scores == RouterScores::kSigmoid) {
    for (int e = lane; e < experts; e += kWarp) {
      shared.scores[e] = 1.0f / (1.0f + expf(-logits[e]));
    }
    return;
  }
  float max = kMinusInfinity;
  for (int e = lane; e < experts; e += kWarp) max = fmaxf(max, logits[e]);
  max = WarpMax(max);
  float sum = 0;
  for (int e = lane; e < experts; e += kWarp) {
    shared.scores[e] = expf(logits[e] - max);
    sum += shared.scores[e];
  }
  sum = WarpSum(sum);
  for (int e = lane; e < experts; e += kWarp) shared.scores[e] /= sum;
}

// Takes the experts of all but the best groups: a lane ranks a group.
__device__ void LimitGroups(const RouterTopKArgs& args, int lane, RouterShared& shared) {
  const int groups = static_cast<int>(args.groups);
  const int size = static_cast<int>(args.experts) / groups;
  Converge();  // ranks are there
  if (lane < groups) {
    float best = kMinusInfinity;
    float second = kMinusInfinity;
    for (int e = lane * size; e < (lane + 1) * size; ++e) {
      const float rank = shared.ranks[e];
      second = fmaxf(second, fminf(best, rank));
      best = fmaxf(best, rank);
    }
    shared.groups[lane] = args.groups_by_best_two && size > 1 ? best + second : best;
  }
  Converge();
  for (int e = lane; e < static_cast<int>(args.experts); e += kWarp) {
    const int group = e / size;
    int before = 0;
    for (int g = 0; g < groups; ++g) {
      const bool better = shared.groups[g] > shared.groups[group];
      before += better || (shared.groups[g] == shared.groups[group] && g < group) ? 1 : 0;
    }
    if (before >= args.top_groups) shared.ranks[e] = kTaken;
  }
}

// A warp per token.
__global__ void __launch_bounds__(kRouterWarps* kWarp) RouterTopKKernel(RouterTopKArgs args) {
  __shared__ RouterShared all[kRouterWarps];
  const int lane = threadIdx.x % kWarp;
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kRouterWarps + threadIdx.x / kWarp;
  if (token >= args.tokens) return;
  RouterShared& shared = all[threadIdx.x / kWarp];
  const int experts = static_cast<int>(args.experts);
  Score(args, args.logits + token * args.experts, lane, shared);
  for (int e = lane; e < experts; e += kWarp) {
    shared.ranks[e] = Rank(shared.scores[e] + (args.bias != nullptr ? args.bias[e] : 0.0f));
  }
  if (args.top_groups < args.groups) LimitGroups(args, lane, shared);

  int32_t* ids = args.ids + token * args.top_k;
  float* weights = args.weights + token * args.top_k;
  float chosen_sum = 0;
  for (int64_t slot = 0; slot < args.top_k; ++slot) {
    float best = kTaken;
    int best_expert = -1;
    for (int e = lane; e < experts; e += kWarp) {
      if (shared.ranks[e] > best) {
        best = shared.ranks[e];
        best_expert = e;
      }
    }
    for (int mask = kWarp / 2; mask > 0; mask /= 2) {
      const float other = ShuffleXor(best, mask);
      const int other_expert = ShuffleXor(best_expert, mask);
      if (other > best || (other == best && other_expert >= 0 && other_expert < best_expert)) {
        best = other;
        best_expert = other_expert;
      }
    }
    // Only the lane that has it reads and marks it; it tells the others what it was.
    const bool mine = best_expert % kWarp == lane;
    const float weight = WarpSum(mine ? shared.scores[best_expert] : 0.0f);
    if (mine) shared.ranks[best_expert] = kTaken;
    chosen_sum += weight;
    if (lane == 0) {
      ids[slot] = best_expert;
      weights[slot] = weight;
    }
  }
  if (lane != 0) return;
  for (int64_t slot = 0; slot < args.top_k; ++slot) {
    const float weight =
        args.normalize ? weights[slot] / (chosen_sum + args.norm_eps) : weights[slot];
    weights[slot] = weight * args.scale;
  }
}

// One block, a thread per expert, each going through all pairs: what a decode step has are few.
__global__ void __launch_bounds__(kMaxExperts) GroupRowsKernel(GroupRowsArgs args) {
  __shared__ int32_t counts[kMaxExperts];
  const int experts = static_cast<int>(args.experts);
  const auto expert = static_cast<int>(threadIdx.x);
  int32_t count = 0;
  if (expert < experts) {
    for (int64_t i = 0; i < args.pairs; ++i) count += args.ids[i] == expert ? 1 : 0;
    counts[expert] = count;
  }
  __syncthreads();
  if (expert >= experts) return;
  int32_t row = 0;
  for (int e = 0; e < expert; ++e) row += counts[e];
  args.offsets[expert] = row;
  if (expert == experts - 1) args.offsets[experts] = row + count;
  if (count == 0) return;
  for (int64_t i = 0; i < args.pairs; ++i) {
    if (args.ids[i] != expert) continue;
    args.token_rows[row] = static_cast<int32_t>(i / args.top_k);
    args.slot_rows[row] = static_cast<int32_t>(i);
    ++row;
  }
}

// One block, a thread per expert, as GroupRowsKernel. Table and list are the host's: what is read
// and written there is little.
__global__ void __launch_bounds__(kMaxExperts) LookUpExpertsKernel(LookUpExpertsArgs args) {
  __shared__ int32_t counts[kMaxExperts];   // of those that are here
  __shared__ int32_t missing[kMaxExperts];  // 1: wanted and elsewhere
  const int experts = static_cast<int>(args.experts);
  const auto expert = static_cast<int>(threadIdx.x);
  const int64_t pairs = *args.rows * args.top_k;
  if (expert == 0) {
    StoreShared(args.progress, args.number);
    FenceShared();
  }
  __syncthreads();
  int32_t count = 0;
  const std::byte* here = nullptr;
  if (expert < experts) {
    for (int64_t i = 0; i < pairs; ++i) count += args.ids[i] == expert ? 1 : 0;
    if (count > 0) here = LoadShared(args.slots + expert);
    counts[expert] = here != nullptr ? count : 0;
    missing[expert] = count > 0 && here == nullptr ? 1 : 0;
  }
  __syncthreads();
  const int threads = (experts + kWarp - 1) / kWarp * kWarp;
  for (int64_t i = pairs + expert; i < args.pairs; i += threads) args.places[i] = kNoRow;
  if (expert >= experts) return;
  int32_t row = 0;
  int32_t missed = 0;
  for (int e = 0; e < expert; ++e) {
    row += counts[e];
    missed += missing[e];
  }
  args.offsets[expert] = row;
  if (expert == experts - 1) {
    args.offsets[experts] = row + counts[expert];
    args.missed[0] = missed + missing[expert];
    if (missed + missing[expert] == 0) StoreShared(args.go, 1u);
  }
  if (count == 0) return;
  if (here == nullptr) {
    args.missed[1 + missed] = expert;
  } else {
    for (int s = 0; s < 3; ++s) args.weights[s][expert] = here + args.sections[s];
  }
  for (int64_t i = 0; i < pairs; ++i) {
    if (args.ids[i] != expert) continue;
    args.places[i] = here != nullptr ? static_cast<int32_t>(i) : kElsewhere;
    if (here == nullptr) continue;
    args.token_rows[row] = static_cast<int32_t>(i / args.top_k);
    args.slot_rows[row] = static_cast<int32_t>(i);
    ++row;
  }
}

constexpr int kTellThreads = 1024;

__global__ void __launch_bounds__(kTellThreads) TellHostKernel(TellHostArgs args) {
#pragma unroll
  for (int piece = 0; piece < TellHostArgs::kPieces; ++piece) {
    const auto* from = reinterpret_cast<const uint32_t*>(args.from[piece]);
    auto* to = reinterpret_cast<uint32_t*>(args.to[piece]);
    for (int64_t i = threadIdx.x; i < args.bytes[piece] / 4; i += kTellThreads) to[i] = from[i];
  }
  FenceShared();
  __syncthreads();
  if (threadIdx.x == 0) StoreShared(args.word, 1u);
}

constexpr int kCombineThreads = 256;
constexpr int kCombineSlots = 8;  // that are on their way at a time

// A block per token and 256 columns, a thread per column.
__global__ void __launch_bounds__(kCombineThreads) CombineSlotsKernel(CombineSlotsArgs args) {
  const int64_t first_pair = blockIdx.x * args.top_k;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kCombineThreads + threadIdx.x;
  if (column >= args.hidden) return;
  float* const y = args.y + blockIdx.x * args.hidden + column;
  float sum = *y;
  for (int64_t first = 0; first < args.top_k; first += kCombineSlots) {
    const auto slots = static_cast<int>(args.top_k - first);
    const float* from[kCombineSlots] = {};  // null: no row
    float weights[kCombineSlots];
#pragma unroll
    for (int i = 0; i < kCombineSlots; ++i) {
      if (i >= slots) break;
      const int64_t pair = first_pair + first + i;
      const int64_t row = args.slot_rows != nullptr ? args.slot_rows[pair] : pair;
      if (row == kNoRow) continue;
      from[i] = row < 0 ? args.other_out + ~row * args.hidden : args.slot_out + row * args.hidden;
      weights[i] = args.weights[pair];
    }
    float values[kCombineSlots];
#pragma unroll
    for (int i = 0; i < kCombineSlots; ++i) {
      if (from[i] != nullptr) values[i] = from[i][column];
    }
#pragma unroll
    for (int i = 0; i < kCombineSlots; ++i) {
      if (from[i] != nullptr) sum = fmaf(weights[i], values[i], sum);
    }
  }
  *y = sum;
}

}  // namespace

LaunchResult LoadRoutingKernels() {
  return Load("routing", RouterLogitsKernel<false, 1>, RouterLogitsKernel<true, 1>,
              RouterLogitsKernel<false, kLogitTokens>, RouterLogitsKernel<true, kLogitTokens>,
              RouterTopKKernel, GroupRowsKernel, LookUpExpertsKernel, TellHostKernel,
              CombineSlotsKernel);
}

LaunchResult RouterLogits(const RouterLogitsArgs& args, StreamHandle stream) {
  if (args.tokens > 65535) return Refuse("router_logits", "too many tokens");
  return args.f32_weights ? LaunchRouterLogits<true>(args, stream)
                          : LaunchRouterLogits<false>(args, stream);
}

LaunchResult RouterTopK(const RouterTopKArgs& args, StreamHandle stream) {
  if (args.experts < 1 || args.experts > kMaxExperts) {
    return Refuse("router_top_k", "number of experts out of range");
  }
  if (args.groups < 1 || args.groups > kMaxGroups || args.experts % args.groups != 0 ||
      args.top_groups < 1 || args.top_groups > args.groups) {
    return Refuse("router_top_k", "number of groups out of range");
  }
  if (args.top_k > args.experts / args.groups * args.top_groups) {
    return Refuse("router_top_k", "more are to be chosen than there are");
  }
  return Launch("router_top_k", RouterTopKKernel, dim3(CeilDiv(args.tokens, kRouterWarps)),
                kRouterWarps * kWarp, stream, args);
}

LaunchResult GroupRows(const GroupRowsArgs& args, StreamHandle stream) {
  if (args.experts < 1 || args.experts > kMaxExperts) {
    return Refuse("group_rows", "number of experts out of range");
  }
  const int threads = static_cast<int>(CeilDiv(args.experts, kWarp)) * kWarp;
  return Launch("group_rows", GroupRowsKernel, dim3(1), threads, stream, args);
}

LaunchResult LookUpExperts(const LookUpExpertsArgs& args, StreamHandle stream) {
  if (args.experts < 1 || args.experts > kMaxExperts) {
    return Refuse("look_up_experts", "number of experts out of range");
  }
  const int threads = static_cast<int>(CeilDiv(args.experts, kWarp)) * kWarp;
  return Launch("look_up_experts", LookUpExpertsKernel, dim3(1), threads, stream, args);
}

LaunchResult TellHost(const TellHostArgs& args, StreamHandle stream) {
  int64_t bytes = 0;
  for (const int64_t of_piece : args.bytes) bytes += of_piece;
  if (bytes > kMostToldBytes) return Refuse("tell_host", "too much");
  return Launch("tell_host", TellHostKernel, dim3(1), kTellThreads, stream, args);
}

LaunchResult CombineSlots(const CombineSlotsArgs& args, StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(args.tokens), CeilDiv(args.hidden, kCombineThreads));
  return Launch("combine_slots", CombineSlotsKernel, grid, kCombineThreads, stream, args);
}

}  // namespace moesaic::cuda
