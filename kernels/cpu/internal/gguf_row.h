// One row of int8 activations with GGUF's blocks: what gguf_int_product.h computes, bit for bit,
// with codes that go from panels into registers and nothing in between. Included after Ints16
// (ints_*.h) and math.h.
//
// A row alone waits for memory, so how lines are asked for ahead of time decides. They go to the
// level 2 cache, each once, one by one between the instructions that multiply: with prefetches into
// level 1, which has few misses in flight, or with many prefetches on end, a product took as long
// as reading and multiplying one after the other.
#pragma once

#include "kernels/cpu/internal/gguf_codes.h"
#include "kernels/cpu/internal/math.h"

namespace moesaic {
namespace {

// How far ahead of its use a panel is asked for. From 6 to 24 KiB make no difference.
constexpr int64_t kGgufBytesAhead = 12 << 10;

// What of a panel a turn of the loop takes: 128 inputs in blocks of 32, or a block of 256.
template <uint32_t kId>
struct GgufChunk {
  static constexpr GgufLayout kLayout = *GgufLayoutOf(kId);
  static constexpr int64_t kInputs = kGgufBlockInputs<kId> == kGgufStep ? kGgufStep : kQuantGroup;
  static constexpr int64_t kBlocks = kInputs / kGgufBlockInputs<kId>;
  static constexpr auto kGroup = static_cast<int>(GgufKindOf(kId).group);
  static constexpr auto kGroups = static_cast<int>(kInputs) / kGroup;
  static constexpr int64_t kHeadBytes = kBlocks * kLayout.head_bytes * kLanes;
  static constexpr auto kHeadLines = static_cast<int>((kHeadBytes + kLineBytes - 1) / kLineBytes);
  static constexpr auto kLines = static_cast<int>(kBlocks * kLayout.body_lines);  // of bodies
  static constexpr int64_t kBodyBytes = kLines * kLineBytes;

  // Line kLine of a group of inputs.
  template <int kGroupIndex, int kLine>
  MOESAIC_INLINE static ByteLine Codes(const std::byte* body) {
    constexpr int kGroupsOfBlock = kGroups / static_cast<int>(kBlocks);
    constexpr int64_t kBlock = kGroupIndex / kGroupsOfBlock;
    return CodesAt<kId, kGroupIndex % kGroupsOfBlock * kGroup / 4 + kLine>(
        body + kBlock * kLayout.body_lines * kLineBytes);
  }
};

// What the sum of a group starts at when codes are multiplied as they are, of which kZero stands
// for weight 0; a correction is that of kGgufZero.
template <int kZero>
MOESAIC_INLINE Ints16 StartOf(int32_t correction) {
  if constexpr (kZero == 0) return StartOfSums(0);
  if constexpr (kZero == kGgufZero) return StartOfGroup(correction);
  return StartOfSums(correction / kGgufZero * kZero);
}

// The sum of products of kLines lines of codes with what activations they have, from `sum` on.
// Without an instruction that adds four products, pairs of products are added in 16 bits as long as
// these hold them.
template <int kLines, int kHighest, class Codes, class Fours>
MOESAIC_INLINE Ints16 DotLines(Ints16 sum, const Codes& codes, const Fours& fours) {
  if constexpr (kHighest > 127) {
    ForEach<kLines>([&](auto line)
                        MOESAIC_BODY { sum = DotAdd(sum, WeightsOf(codes(line)), fours(line)); });
  } else if constexpr (kDotOfFour) {
    ForEach<kLines>(
        [&](auto line) MOESAIC_BODY { sum = DotAdd(sum, SmallWeights(codes(line)), fours(line)); });
  } else {
    constexpr int kMost = 32767 / (2 * 127 * kHighest);
    constexpr int kRun = kMost >= kLines ? kLines : kMost >= 4 ? 4 : 2;
    static_assert(kRun <= kMost && kLines % kRun == 0);
    ForEach<kLines / kRun>([&](auto run) MOESAIC_BODY {
      constexpr int kFirst = decltype(run)::value * kRun;
      auto pairs = PairsOf(codes(Index<kFirst>{}), fours(Index<kFirst>{}));
      ForEach<kRun, 1>([&](auto line) MOESAIC_BODY {
        constexpr int kLine = kFirst + decltype(line)::value;
        pairs = AddPairs(pairs, PairsOf(codes(Index<kLine>{}), fours(Index<kLine>{})));
      });
      sum = AddPairSums(sum, pairs);
    });
  }
  return sum;
}

// outs[p][16] of P panels. `next` are the panels that the following call will take.
template <uint32_t kId, int P>
void GgufRow(const std::byte* x_row, int64_t k, const std::byte* const* panels,
             const std::byte* const* next, float* const* outs) {
  using Chunk = GgufChunk<kId>;
  constexpr GgufCodes kCodes = GgufCodesOf(kId);
  constexpr bool kAddends = GgufKindOf(kId).addends;
  constexpr int kGroupsOf128 = static_cast<int>(kQuantGroup) / Chunk::kGroup;
  const auto* x = reinterpret_cast<const int8_t*>(x_row);
  const auto* corrections =
      reinterpret_cast<const int32_t*>(x_row + GroupSumsOffset(k, Chunk::kGroup));
  const auto* x_scales =
      reinterpret_cast<const ActivationScale*>(x_row + ActivationScalesOffset(k));
  const int64_t body_at = GgufBodyOffset(Chunk::kLayout, k / kGgufBlockInputs<kId>);
  const int64_t chunks = CeilDiv(k, Chunk::kInputs);
  // Chunks between what is prefetched and what is multiplied.
  const int64_t distance = MinOf(chunks, CeilDiv(kGgufBytesAhead, Chunk::kBodyBytes));
  Vec16 totals[P];
  Vec16 sums[P];
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) totals[p] = sums[p] = Zero();
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const bool last = chunk + distance >= chunks;
    const int64_t ahead = chunk + distance - (last ? chunks : 0);
    // All of them, but for the last 128 inputs in blocks of 32.
    const int64_t groups = MinOf(k - chunk * Chunk::kInputs, Chunk::kInputs) / Chunk::kGroup;
    const std::byte* bodies[P];
    const std::byte* ahead_bodies[P];
    GgufScales<kId> scales[P];
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      const std::byte* const from = last ? next[p] : panels[p];
      ahead_bodies[p] = from + body_at + ahead * Chunk::kBodyBytes;
      ForEach<Chunk::kHeadLines>([&](auto line) MOESAIC_BODY {
        constexpr int64_t kAt = decltype(line)::value * kLineBytes;
        PrefetchLevel2(from + ahead * Chunk::kHeadBytes + kAt);
      });
      bodies[p] = panels[p] + body_at + chunk * Chunk::kBodyBytes;
      scales[p] =
          GgufScales<kId>(panels[p] + chunk * Chunk::kHeadBytes, bodies[p], -1.0f / kGgufZero);
    }
    ForEach<Chunk::kGroups>([&](auto of) MOESAIC_BODY {
      constexpr int g = decltype(of)::value;
      if (Chunk::kBlocks > 1 && g >= groups) return;
      const int32_t correction = corrections[g];
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        const Ints16 dots = DotLines<Chunk::kGroup / 4, kCodes.highest>(
            StartOf<kCodes.zero>(correction),
            [&](auto of_group) MOESAIC_BODY {
              constexpr int kLine = decltype(of_group)::value;
              constexpr int kAll = Chunk::kGroups * Chunk::kGroup / 4;
              constexpr int kDone = (g * Chunk::kGroup / 4 + kLine) * Chunk::kLines / kAll;
              constexpr int kDue = (g * Chunk::kGroup / 4 + kLine + 1) * Chunk::kLines / kAll;
              if constexpr (kDue > kDone) {
                // Keeps the compiler from moving all prefetches to where the chunk begins.
                __asm__ volatile("" : "+r"(bodies[p]), "+r"(ahead_bodies[p]));
              }
              ForEach<kDue, kDone>([&](auto line) MOESAIC_BODY {
                PrefetchLevel2(ahead_bodies[p] + decltype(line)::value * kLineBytes);
              });
              return Chunk::template Codes<g, kLine>(bodies[p]);
            },
            [&](auto line) MOESAIC_BODY {
              return LoadFour(x + g * Chunk::kGroup + 4 * decltype(line)::value);
            });
        sums[p] = Fma(ToFloats(dots), scales[p].template Scale<g>(), sums[p]);
        if constexpr (kAddends) {
          const Vec16 correction_of_all = Set(static_cast<float>(correction));
          sums[p] = Fma(correction_of_all, scales[p].template Addend<g>(), sums[p]);
        }
        if (g % kGroupsOf128 == kGroupsOf128 - 1 || (Chunk::kBlocks > 1 && g == groups - 1)) {
          totals[p] = Fma(sums[p], Set(x_scales[g / kGroupsOf128].scale), totals[p]);
          sums[p] = Zero();
        }
      }
    });
    x += Chunk::kInputs;
    corrections += Chunk::kGroups;
    x_scales += Chunk::kInputs / kQuantGroup;
  }
  MOESAIC_UNROLL
  for (int p = 0; p < P; ++p) Store(outs[p], totals[p]);
}

}  // namespace
}  // namespace moesaic
