#include "serving/model/indexer.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "kernels/cpu/indexer.h"
#include "serving/model/attention_sizes.h"

namespace moesaic {
namespace {

KvLayout KeyLayout(const IndexerSpec& spec, WeightType type) {
  return {.num_kv_heads = 1, .head_dim = spec.dim, .type = type, .latent_values = spec.dim};
}

int64_t BlocksOf(int64_t tokens) { return (tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

// Of the scores of a context, whole blocks.
int64_t ScoreFloats(const ModelLimits& limits) {
  return BlocksOf(limits.max_context_tokens) * kKvBlockTokens;
}

bool ContextsAreLonger(const LatentSpec& spec, const ModelLimits& limits) {
  return spec.top_k > 0 && limits.max_context_tokens > spec.top_k;
}

// In double precision, so that no sum has to be in the order of an instruction set.
void LayerNorm(const float* weight, const float* bias, double eps, int64_t n, float* x) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
  const double mean = sum / static_cast<double>(n);
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double apart = static_cast<double>(x[i]) - mean;
    squares += apart * apart;
  }
  const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
  for (int64_t i = 0; i < n; ++i) {
    const double normed = (static_cast<double>(x[i]) - mean) * factor;
    x[i] =
        static_cast<float>(normed * static_cast<double>(weight[i]) + static_cast<double>(bias[i]));
  }
}

}  // namespace

uint64_t Indexer::KeyBlockBytes(const LatentSpec& spec, WeightType kv_type) {
  if (spec.indexer.heads == 0) return 0;
  return static_cast<uint64_t>(KeyLayout(spec.indexer, kv_type).block_bytes());
}

// Queries, the key, and weights of heads.
int64_t Indexer::ProjectedFloats(const LatentSpec& spec) {
  return (spec.indexer.heads + (spec.indexer.heads > 0 ? 1 : 0)) * spec.indexer.dim +
         spec.indexer.heads;
}

uint64_t Indexer::ChoiceBytes(const LatentSpec& spec) {
  return static_cast<uint64_t>(spec.top_k) * sizeof(int32_t);
}

uint64_t Indexer::WorkspaceBytes(const LatentSpec& spec, const ModelLimits& limits, int threads) {
  if (!ContextsAreLonger(spec, limits)) return 0;
  return static_cast<uint64_t>(ScoreFloats(limits) * threads) * sizeof(float) +
         static_cast<uint64_t>(limits.max_batch_tokens) * ChoiceBytes(spec);
}

Indexer::Indexer(const LatentSpec& spec, const RopeTable& rope, const CpuKernels& kernels,
                 const ModelLimits& limits, int most_threads, int64_t first_value,
                 int64_t key_offset)
    : spec_(spec.indexer),
      top_k_(spec.top_k),
      rope_dim_(spec.rope_dim),
      rope_(rope),
      kernels_(kernels),
      f32_kernels_(F32KernelsOf(kernels)),
      layout_(KeyLayout(spec.indexer, limits.kv_type)),
      first_value_(first_value),
      key_offset_(key_offset),
      score_floats_(ScoreFloats(limits)) {
  if (!ContextsAreLonger(spec, limits)) return;
  scores_ = ZeroedFloats(score_floats_ * most_threads);
  choices_ = AlignedBuffer(static_cast<size_t>(limits.max_batch_tokens) *
                           static_cast<size_t>(ChoiceBytes(spec)));
}

void Indexer::Rotate(int64_t position, float* x) const {
  const int64_t half = rope_dim_ / 2;
  if (spec_.rope_form == RopeForm::kInterleaved) {
    // Values 2j to the first half, in place: what is after them is moved up by one at a time.
    for (int64_t j = 1; j < half; ++j) {
      std::rotate(x + j, x + 2 * j, x + 2 * j + 1);
    }
  }
  kernels_.rope(x, rope_.cos(position), rope_.sin(position), half);
}

void Indexer::MakeKeys(const IndexerWeights& w, RowRange rows, const float* normed, int64_t stride,
                       const ActivatedRows& x, const PassBlocks& pass, const HostMixer::Rows& at,
                       ThreadPool& pool) const {
  const int64_t key = spec_.heads * spec_.dim;
  const int64_t heads = key + spec_.dim;
  MultiplyRows(pool, kernels_, x, rows.count(), w.key, Projected(at, rows.begin) + key,
               at.projected_stride);
  MultiplyRows(pool, f32_kernels_, UnroundedRows(normed, stride), rows.count(), w.heads,
               Projected(at, rows.begin) + heads, at.projected_stride);
  // Of the formula's dim^-1/2 in each product and heads^-1/2 in the sum.
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(key)));
  ForRows(pool, rows, [&](int64_t row) {
    float* const of_row = Projected(at, row);
    LayerNorm(w.key_norm, w.key_bias, spec_.norm_eps, spec_.dim, of_row + key);
    Rotate(pass.PositionOf(row), of_row + key);
    for (int64_t head = 0; head < spec_.heads; ++head) of_row[heads + head] *= scale;
  });
}

void Indexer::MakeQueries(const IndexerWeights& w, RowRange rows, const ActivatedRows& x,
                          const PassBlocks& pass, const HostMixer::Rows& at,
                          ThreadPool& pool) const {
  // From the first to the last row that chooses.
  RowRange choosing = rows;
  while (choosing.count() > 0 && !Chooses(pass.PositionOf(choosing.begin))) ++choosing.begin;
  while (choosing.count() > 0 && !Chooses(pass.PositionOf(choosing.end - 1))) --choosing.end;
  if (choosing.count() == 0) return;
  const ActivatedRows first = {x.data + (choosing.begin - rows.begin) * x.stride_bytes,
                               x.stride_bytes};
  MultiplyRows(pool, kernels_, first, choosing.count(), w.query, Projected(at, choosing.begin),
               at.projected_stride);
  ForRows(pool, choosing, [&](int64_t row) {
    const int64_t position = pass.PositionOf(row);
    if (!Chooses(position)) return;
    for (int64_t head = 0; head < spec_.heads; ++head) {
      Rotate(position, Projected(at, row) + head * spec_.dim);
    }
  });
}

void Indexer::StoreKey(int64_t row, int64_t position, const HostMixer::Rows& at,
                       std::byte* block) const {
  kernels_.store_kv(layout_, block + key_offset_, 0, position % kKvBlockTokens,
                    Projected(at, row) + spec_.heads * spec_.dim, nullptr);
}

void Indexer::Score(int64_t row, int64_t block_begin, int64_t block_end, const PassBlocks& pass,
                    const HostMixer::Rows& at, float* scores) const {
  IndexScoreArgs args;
  args.q = Projected(at, row);
  args.weights = args.q + (spec_.heads + 1) * spec_.dim;
  args.heads = spec_.heads;
  args.layout = layout_;
  args.blocks = pass.Of(row);
  args.key_offset = key_offset_;
  args.block_begin = block_begin;
  args.block_end = block_end;
  args.scores = scores;
  kernels_.index_scores(args);
}

void Indexer::Choose(std::span<const int64_t> rows, const PassBlocks& pass,
                     const HostMixer::Rows& at, ThreadPool& pool) {
  const auto count = static_cast<int64_t>(rows.size());
  const auto choose = [&](int64_t i, const float* scores) {
    const int64_t row = rows[static_cast<size_t>(i)];
    TopPositions(scores, pass.PositionOf(row) + 1, top_k_, choices_.as<int32_t>() + row * top_k_);
  };
  const auto blocks_of = [&](int64_t i) {
    return BlocksOf(pass.PositionOf(rows[static_cast<size_t>(i)]) + 1);
  };
  if (count > pool.threads()) {
    pool.ParallelFor(count, [&](int64_t i, int worker) {
      Score(rows[static_cast<size_t>(i)], 0, blocks_of(i), pass, at, Scores(worker));
      choose(i, Scores(worker));
    });
    return;
  }
  // A row's context is shared out, and each row has a thread's memory.
  const int64_t parts = (kSplitItemsPerThread * pool.threads() + count - 1) / count;
  pool.ParallelFor(count * parts, [&](int64_t item, int) {
    const int64_t i = item / parts;
    const int64_t blocks = blocks_of(i);
    Score(rows[static_cast<size_t>(i)], blocks * (item % parts) / parts,
          blocks * (item % parts + 1) / parts, pass, at, Scores(i));
  });
  pool.ParallelFor(count, [&](int64_t i, int) { choose(i, Scores(i)); });
}

}  // namespace moesaic
