// One or a few rows of int8 activations with GGUF's blocks: what gguf_int_product.h computes, bit
// for bit, with codes that go from panels into registers and nothing in between. Included after
// Ints16 (ints_*.h) and math.h.
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

// Adds the products of kLines lines of codes with the activations that M rows have of them to
// sums[m]. Without an instruction that adds four products, pairs of products are added in 16 bits
// as long as these hold them.
template <int M, int kLines, int kHighest, class Codes, class Fours>
MOESAIC_INLINE void DotLines(Ints16 (&sums)[M], const Codes& codes, const Fours& fours) {
  if constexpr (kHighest > 127 || kDotOfFour) {
    ForEach<kLines>([&](auto line) MOESAIC_BODY {
      const ByteLine of_line = codes(line);
      const auto weights = [&] {
        if constexpr (kHighest > 127) {
          return WeightsOf(of_line);
        } else {
          return SmallWeights(of_line);
        }
      }();
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) sums[m] = DotAdd(sums[m], weights, fours(m, line));
    });
  } else {
    constexpr int kMost = 32767 / (2 * 127 * kHighest);
    constexpr int kRun = kMost >= kLines ? kLines : kMost >= 4 ? 4 : 2;
    static_assert(kRun <= kMost && kLines % kRun == 0);
    using Pairs = decltype(PairsOf(codes(Index<0>{}), fours(0, Index<0>{})));
    ForEach<kLines / kRun>([&](auto run) MOESAIC_BODY {
      constexpr int kFirst = decltype(run)::value * kRun;
      Pairs pairs[M];
      const ByteLine first = codes(Index<kFirst>{});
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) pairs[m] = PairsOf(first, fours(m, Index<kFirst>{}));
      ForEach<kRun, 1>([&](auto line) MOESAIC_BODY {
        constexpr int kLine = kFirst + decltype(line)::value;
        const ByteLine of_line = codes(Index<kLine>{});
        MOESAIC_UNROLL
        for (int m = 0; m < M; ++m) {
          pairs[m] = AddPairs(pairs[m], PairsOf(of_line, fours(m, Index<kLine>{})));
        }
      });
      MOESAIC_UNROLL
      for (int m = 0; m < M; ++m) sums[m] = AddPairSums(sums[m], pairs[m]);
    });
  }
}

// outs[p][m * 16 ..] of P panels and of the first `rows` of M rows, at least one; the others take
// time and nothing else. `next` are the panels that the following call will take.
template <uint32_t kId, int M, int P>
void GgufRows(const std::byte* const* x_rows, int64_t rows, int64_t k,
              const std::byte* const* panels, const std::byte* const* next, float* const* outs) {
  using Chunk = GgufChunk<kId>;
  constexpr GgufCodes kCodes = GgufCodesOf(kId);
  constexpr bool kAddends = GgufKindOf(kId).addends;
  constexpr int kGroupsOf128 = static_cast<int>(kQuantGroup) / Chunk::kGroup;
  const int8_t* x[M];
  const int32_t* corrections[M];
  const ActivationScale* x_scales[M];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const std::byte* const row = x_rows[m < rows ? m : 0];
    x[m] = reinterpret_cast<const int8_t*>(row);
    corrections[m] = reinterpret_cast<const int32_t*>(row + GroupSumsOffset(k, Chunk::kGroup));
    x_scales[m] = reinterpret_cast<const ActivationScale*>(row + ActivationScalesOffset(k));
  }
  const int64_t body_at = GgufBodyOffset(Chunk::kLayout, k / kGgufBlockInputs<kId>);
  const int64_t chunks = CeilDiv(k, Chunk::kInputs);
  // Chunks between what is prefetched and what is multiplied.
  const int64_t distance = MinOf(chunks, CeilDiv(kGgufBytesAhead, Chunk::kBodyBytes));
  Vec16 totals[M][P];
  Vec16 sums[M][P];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) totals[m][p] = sums[m][p] = Zero();
  }
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
      MOESAIC_UNROLL
      for (int p = 0; p < P; ++p) {
        Ints16 dots[M];
        MOESAIC_UNROLL
        for (int m = 0; m < M; ++m) dots[m] = StartOf<kCodes.zero>(corrections[m][g]);
        DotLines<M, Chunk::kGroup / 4, kCodes.highest>(
            dots,
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
            [&](int m, auto line) MOESAIC_BODY {
              return LoadFour(x[m] + g * Chunk::kGroup + 4 * decltype(line)::value);
            });
        const Vec16 scale = scales[p].template Scale<g>();
        MOESAIC_UNROLL
        for (int m = 0; m < M; ++m) sums[m][p] = Fma(ToFloats(dots[m]), scale, sums[m][p]);
        if constexpr (kAddends) {
          const Vec16 addend = scales[p].template Addend<g>();
          MOESAIC_UNROLL
          for (int m = 0; m < M; ++m) {
            const Vec16 correction_of_all = Set(static_cast<float>(corrections[m][g]));
            sums[m][p] = Fma(correction_of_all, addend, sums[m][p]);
          }
        }
        if (g % kGroupsOf128 == kGroupsOf128 - 1 || (Chunk::kBlocks > 1 && g == groups - 1)) {
          MOESAIC_UNROLL
          for (int m = 0; m < M; ++m) {
            totals[m][p] = Fma(sums[m][p], Set(x_scales[m][g / kGroupsOf128].scale), totals[m][p]);
            sums[m][p] = Zero();
          }
        }
      }
    });
    MOESAIC_UNROLL
    for (int m = 0; m < M; ++m) {
      x[m] += Chunk::kInputs;
      corrections[m] += Chunk::kGroups;
      x_scales[m] += Chunk::kInputs / kQuantGroup;
    }
  }
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    if (m >= rows) break;
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) Store(outs[p] + m * kLanes, totals[m][p]);
  }
}

}  // namespace
}  // namespace moesaic
