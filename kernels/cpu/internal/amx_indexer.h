// Scores of positions by an indexer on tile registers (class kAmxBf16): queries rounded to bf16,
// as attention's are, sums in f32. For keys in bf16 whose size fills tiles; the rest is
// indexer.h's. Included after indexer.h and Tiles.
//
// A block's keys are 16 lines for each 32 dimensions as they lie, so that a tile of sums has the
// products of 16 heads with 16 positions. Two tiles of heads and two blocks are a unit of work:
// while its tiles are multiplied, the sums of the unit before, which have left the tiles, are
// weighted and added in vectors. A position's score is a chain over heads, ascending, whatever the
// other positions of a call.
#pragma once

#include "kernels/cpu/internal/amx_rows.h"
#include "kernels/cpu/internal/indexer.h"

namespace moesaic {
namespace {

struct AmxIndexer {
  static constexpr int64_t kHeads = 16;          // of a tile
  static constexpr int64_t kMostValues = 16384;  // of all heads' queries
  static constexpr int64_t kStepDims = 32;

  static bool Fits(const IndexScoreArgs& args) {
    const int64_t d = args.layout.head_dim;
    return args.layout.type == WeightType::kBf16 && d % kStepDims == 0 &&
           RoundUp(args.heads, kHeads) * d <= kMostValues;
  }

  static void Score(const IndexScoreArgs& args) {
    AmxIndexer indexer(args);
    Tiles::Configure(kHeads, kLineBytes, kHeads);
    int64_t block = args.block_begin;
    for (; block + 2 <= args.block_end; block += 2) indexer.Blocks<2>(block);
    for (; block < args.block_end; ++block) indexer.Blocks<1>(block);
    indexer.FoldLast();
    Tiles::Release();
  }

 private:
  explicit AmxIndexer(const IndexScoreArgs& args)
      : args_(args), d_(args.layout.head_dim), tiles_(CeilDiv(args.heads, kHeads)) {
    for (int64_t i = 0; i < args.heads * d_; i += kLanes) {
      Tiles::StoreRounded(queries_ + i * 2, Load(args.q + i));
    }
    // Heads that a last tile is filled up with, which nobody looks at.
    __builtin_memset(queries_ + args.heads * d_ * 2, 0,
                     static_cast<size_t>((tiles_ * kHeads - args.heads) * d_ * 2));
  }

  // Up to two tiles of heads and two blocks.
  struct Unit {
    int64_t heads = 0;
    const float* weights = nullptr;
    int64_t blocks = 0;
    bool first = false;  // no heads before these
    float* scores = nullptr;
    alignas(64) float products[2][2][kHeads * kLanes];  // [tile of heads][block]
  };

  template <int P>
  void Blocks(int64_t block) {
    const std::byte* keys[P];
    const std::byte* next[P];
    for (int p = 0; p < P; ++p) {
      keys[p] = args_.blocks[block + p] + args_.key_offset;
      next[p] = args_.blocks[MinOf(block + P + p, args_.block_end - 1)] + args_.key_offset;
    }
    // The next blocks are asked for line after line.
    const int64_t steps = d_ / kStepDims;
    const int64_t share = CeilDiv(kHeads * P * steps, CeilDiv(tiles_, 2) * steps);
    int64_t asked = 0;
    for (int64_t tile = 0; tile < tiles_; tile += 2) {
      tile + 1 < tiles_ ? Multiply<2, P>(block, tile, keys, next, share, asked)
                        : Multiply<1, P>(block, tile, keys, next, share, asked);
    }
  }

  template <int R, int P>
  MOESAIC_INLINE void Multiply(int64_t block, int64_t tile, const std::byte* const (&keys)[P],
                               const std::byte* const (&next)[P], int64_t share, int64_t& asked) {
    Unit& unit = units_[count_ % 2];
    const Unit& before = units_[(count_ + 1) % 2];
    ++count_;
    const int64_t head = tile * kHeads;
    unit.heads = MinOf<int64_t>(R * kHeads, args_.heads - head);
    unit.weights = args_.weights + head;
    unit.blocks = P;
    unit.first = tile == 0;
    unit.scores = args_.scores + block * kKvBlockTokens;
    const std::byte* const x = queries_ + head * d_ * 2;
    ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::ZeroSums<kRow, kPanel>(); });
    const int64_t lines = d_ / kStepDims * kHeads;
    for (int64_t step = 0; step < d_ / kStepDims; ++step) {
      const int64_t offset = step * kHeads * kLineBytes;
      for (int64_t i = 0; i < share && asked < P * lines; ++i, ++asked) {
        PrefetchLevel2(next[asked / lines] + asked % lines * kLineBytes);
      }
      Tiles::LoadX<0>(x + step * kLineBytes, d_ * 2);
      Tiles::LoadWeights<0>(keys[0] + offset);
      if constexpr (P == 2) Tiles::LoadWeights<1>(keys[1] + offset);
      if constexpr (R == 2) Tiles::LoadX<1>(x + kHeads * d_ * 2 + step * kLineBytes, d_ * 2);
      ForTiles<R, P>([&]<int kRow, int kPanel>() { Tiles::DotBf16<kRow, kPanel>(); });
    }
    Fold(before);
    ForTiles<R, P>([&]<int kRow, int kPanel>() {
      Tiles::StoreSums<kRow, kPanel>(unit.products[kRow][kPanel]);
    });
  }

  MOESAIC_INLINE void FoldLast() { Fold(units_[(count_ + 1) % 2]); }

  MOESAIC_INLINE static void Fold(const Unit& unit) {
    if (unit.blocks == 2) {
      FoldBlocks<2>(unit);
    } else if (unit.blocks == 1) {
      FoldBlocks<1>(unit);
    }
  }
  template <int P>
  MOESAIC_INLINE static void FoldBlocks(const Unit& unit) {
    Vec16 scores[P];
    for (int p = 0; p < P; ++p) {
      scores[p] = unit.first ? Zero() : Load(unit.scores + p * kKvBlockTokens);
    }
    for (int64_t head = 0; head < unit.heads; ++head) {
      const Vec16 weight = Set(unit.weights[head]);
      for (int p = 0; p < P; ++p) {
        const float* const products = unit.products[head / kHeads][p];
        // A NaN stays one: Max gives its second operand.
        const Vec16 product = Load(products + head % kHeads * kLanes);
        scores[p] = Fma(weight, Max(Zero(), product), scores[p]);
      }
    }
    for (int p = 0; p < P; ++p) Store(unit.scores + p * kKvBlockTokens, scores[p]);
  }

  const IndexScoreArgs& args_;
  const int64_t d_;
  const int64_t tiles_;
  int64_t count_ = 0;
  Unit units_[2];
  alignas(64) std::byte queries_[kMostValues * 2];  // [heads][d] bf16
};

// `others`: of class kF32, for what does not fit.
inline void AmxIndexScores(const CpuKernels& others, const IndexScoreArgs& args) {
  if (!AmxIndexer::Fits(args)) return others.index_scores(args);
  AmxIndexer::Score(args);
}

}  // namespace
}  // namespace moesaic
