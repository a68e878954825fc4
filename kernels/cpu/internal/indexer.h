// Scores of positions by an indexer, and the keys of those that are chosen (kernels/cpu/indexer.h).
// Included after attention.h, whose chains of multiply-adds are the same.
#pragma once

#include "kernels/cpu/indexer.h"
#include "kernels/cpu/internal/attention.h"

namespace moesaic {
namespace {

// Heads whose products are computed at once, over ScoreBlocksFor blocks.
constexpr int kIndexHeads = kMaxExactQueries >= 8 ? 8 : 4;

// scores += those of M heads from `head` on.
template <class Kv, int M, int B>
MOESAIC_INLINE void AddHeadScores(const IndexScoreArgs& args, int64_t head,
                                  const std::byte* const (&keys)[B], Vec16 (&scores)[B]) {
  const int64_t d = args.layout.head_dim;
  const float* q[M];
  Vec16 products[M][B];
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    q[m] = args.q + (head + m) * d;
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) products[m][b] = Zero();
  }
  const int64_t pairs = d / 2;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    ScoreStep<Kv, M, B, 0>(q, keys, pair, products);
    ScoreStep<Kv, M, B, 1>(q, keys, pair, products);
  }
  if (d % 2 != 0) ScoreStep<Kv, M, B, 0>(q, keys, pairs, products);
  MOESAIC_UNROLL
  for (int m = 0; m < M; ++m) {
    const Vec16 weight = Set(args.weights[head + m]);
    MOESAIC_UNROLL
    for (int b = 0; b < B; ++b) {
      // A NaN stays one: Max gives its second operand.
      scores[b] = Fma(weight, Max(Zero(), products[m][b]), scores[b]);
    }
  }
}

template <class Kv, int B>
void IndexBlocks(const IndexScoreArgs& args, int64_t block) {
  const std::byte* keys[B];
  Vec16 scores[B];
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) {
    keys[b] = args.blocks[block + b] + args.key_offset;
    scores[b] = Zero();
    // The next ones, while these are computed.
    if (block + B + b >= args.block_end) continue;
    const std::byte* const next = args.blocks[block + B + b] + args.key_offset;
    for (int64_t at = 0; at < Kv::KeyBytes(args.layout.head_dim); at += kLineBytes) {
      PrefetchLevel2(next + at);
    }
  }
  int64_t head = 0;
  for (; head + kIndexHeads <= args.heads; head += kIndexHeads) {
    AddHeadScores<Kv, kIndexHeads, B>(args, head, keys, scores);
  }
  for (; head < args.heads; ++head) AddHeadScores<Kv, 1, B>(args, head, keys, scores);
  MOESAIC_UNROLL
  for (int b = 0; b < B; ++b) Store(args.scores + (block + b) * kKvBlockTokens, scores[b]);
}

template <class Kv>
void IndexScoresOf(const IndexScoreArgs& args) {
  constexpr int kBlocks = ScoreBlocksFor(kIndexHeads);
  int64_t block = args.block_begin;
  for (; block + kBlocks <= args.block_end; block += kBlocks) IndexBlocks<Kv, kBlocks>(args, block);
  for (; block < args.block_end; ++block) IndexBlocks<Kv, 1>(args, block);
}

inline void IndexScores(const IndexScoreArgs& args) {
  if (args.layout.type == WeightType::kF32) {
    IndexScoresOf<F32Kv>(args);
  } else {
    IndexScoresOf<Bf16Kv>(args);
  }
}

// A line of a key panel has four bytes of each token, whether these are two dimensions or one.
constexpr int64_t kLaneBytes = kLineBytes / kKvBlockTokens;

// `count` tokens of a block, at these lanes, to lanes from `to` on of the block at `out`.
template <int kCount>
MOESAIC_INLINE void GatherLanes(const std::byte* keys, const int64_t* lanes, int64_t key_bytes,
                                std::byte* out) {
  int64_t from[kCount];
  MOESAIC_UNROLL
  for (int i = 0; i < kCount; ++i) from[i] = lanes[i] * kLaneBytes;
  for (int64_t line = 0; line < key_bytes; line += kLineBytes) {
    MOESAIC_UNROLL
    for (int i = 0; i < kCount; ++i) {
      StoreAs(out + line + i * kLaneBytes, LoadAs<uint32_t>(keys + line + from[i]));
    }
  }
}

inline void GatherKeys(const GatherKeysArgs& args) {
  const int64_t d = args.layout.head_dim;
  const int64_t key_bytes =
      args.layout.type == WeightType::kF32 ? F32Kv::KeyBytes(d) : Bf16Kv::KeyBytes(d);
  int64_t done = 0;
  while (done < args.count) {
    // Tokens of one block that go to one block.
    const int64_t block = args.positions[done] / kKvBlockTokens;
    const int64_t to = done % kKvBlockTokens;
    const int64_t most = MinOf(args.count - done, kKvBlockTokens - to);
    int64_t lanes[kKvBlockTokens];
    int64_t count = 0;
    while (count < most && args.positions[done + count] / kKvBlockTokens == block) {
      lanes[count] = args.positions[done + count] % kKvBlockTokens;
      ++count;
    }
    const std::byte* const keys = args.blocks[block];
    std::byte* const out = args.out + done / kKvBlockTokens * key_bytes + to * kLaneBytes;
    if (count == kKvBlockTokens) {
      __builtin_memcpy(out, keys, static_cast<size_t>(key_bytes));
    } else {
      int64_t i = 0;
      for (; i + 4 <= count; i += 4) {
        GatherLanes<4>(keys, lanes + i, key_bytes, out + i * kLaneBytes);
      }
      for (; i < count; ++i) GatherLanes<1>(keys, lanes + i, key_bytes, out + i * kLaneBytes);
    }
    done += count;
  }
}

}  // namespace
}  // namespace moesaic
