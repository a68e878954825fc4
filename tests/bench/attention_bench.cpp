// Speed of the attention kernels beside the peaks of the machine measured in the same rounds, and
// beside plain loops that the compiler vectorises. Prints Markdown tables.
//
//   attention_bench [decode|prefill|chosen|all] [rounds] [avx2|avx512|amx] [bf16|int8]
//
// Every number is the median over rounds; a round runs all candidates of a row one after the other.
// "decode" cycles through more KV than the last-level cache holds. "Read peak" is of consecutive
// memory; "in that order" reads the same keys and values as attention does, and computes nothing.
// One thread is timed in CPU time, two by the clock. The hash is of the outputs of one call.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/hash.h"
#include "core/base/tensor.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/indexer.h"
#include "kernels/cpu/kernels.h"
#include "tests/bench/kernel_bench_util.h"
#include "tests/bench/plain_attention.h"

namespace moesaic {
namespace {

constexpr int64_t kKvHeads = 4;
constexpr int64_t kColdBytes = int64_t{1536} << 20;
constexpr int64_t kCallBytes = int64_t{32} << 20;  // KV that one call of a candidate reads

struct Shape {
  int64_t head_dim;
  int64_t group;
  int64_t context;
  WeightType kv;
};

// Sequences of one context length, whose blocks lie in the memory one after another. The plain
// loops take the same bytes for rows.
class Decoder {
 public:
  Decoder(const CpuKernels& kernels, const Shape& shape, ThreadPool& pool, AlignedBuffer& memory)
      : kernels_(kernels), shape_(shape), pool_(pool), memory_(memory) {
    layout_ = {kKvHeads, shape.head_dim, shape.kv};
    sequence_bytes_ = shape.context / kKvBlockTokens * layout_.block_bytes();
    per_call_ = kCallBytes / sequence_bytes_;
    sequences_ = kColdBytes / sequence_bytes_ / per_call_ * per_call_;
    for (int64_t b = 0; b < sequences_ * shape.context / kKvBlockTokens; ++b) {
      blocks_.push_back(memory.data() + b * layout_.block_bytes());
    }
    const int64_t blocks = shape.context / kKvBlockTokens;
    constexpr int64_t kChunkBlocks = kAttentionChunkTokens / kKvBlockTokens;
    for (int64_t chunk = 0; chunk < sequences_ * blocks / kChunkBlocks; ++chunk) {
      for (int64_t piece = 0; piece < kKvHeads * 2 * kChunkBlocks; ++piece) {
        const int64_t of_head = piece % (2 * kChunkBlocks);
        pieces_.push_back(blocks_[chunk * kChunkBlocks + of_head % kChunkBlocks] +
                          piece / (2 * kChunkBlocks) * layout_.head_bytes() +
                          of_head / kChunkBlocks * layout_.key_bytes());
      }
    }
    const int64_t heads = kKvHeads * shape.group;
    q_ = Normals(heads * shape.head_dim);
    out_.resize(static_cast<size_t>(per_call_ * heads * shape.head_dim));
    total_floats_ = heads * AttentionPartialFloats(shape.head_dim);
    scratch_floats_ = total_floats_ + AttentionScratchFloats(shape.head_dim, shape.kv);
    scratch_floats_ = (std::max(scratch_floats_, shape.group * shape.context) + 15) / 16 * 16;
    scratch_ = AlignedBuffer(static_cast<size_t>(pool.threads() * scratch_floats_) * sizeof(float));
  }
  double CallBytes() const { return static_cast<double>(per_call_ * sequence_bytes_); }
  uint64_t OutHash() const {
    return Hash64({reinterpret_cast<const std::byte*>(out_.data()), out_.size() * sizeof(float)});
  }

  void Rewind() { next_ = 0; }
  void Attend() {
    ForSequences([&](int64_t sequence, float* scratch, float* out) {
      AttendArgs args;
      args.q = q_.data();
      args.q_stride = shape_.head_dim;
      args.group = shape_.group;
      args.scale = Scale();
      args.layout = layout_;
      args.kv_heads = kKvHeads;
      args.blocks = blocks_.data() + sequence * shape_.context / kKvBlockTokens;
      args.context_end = shape_.context;
      std::fill_n(scratch, total_floats_, 0.0f);
      kernels_.attend_chunks(args, 0, shape_.context / kAttentionChunkTokens, scratch, 0,
                             scratch + total_floats_);
      kernels_.finish_attention(scratch, kKvHeads * shape_.group, shape_.head_dim, out,
                                shape_.head_dim);
    });
  }
  void Plain(decltype(&PlainAttention) attention) {
    ForSequences([&](int64_t sequence, float* scratch, float* out) {
      const int64_t elements = shape_.context * shape_.head_dim;
      const int64_t queries = shape_.group * shape_.head_dim;
      for (int64_t head = 0; head < kKvHeads; ++head) {
        const uint16_t* keys = memory_.as<uint16_t>() + (sequence * kKvHeads + head) * 2 * elements;
        attention(keys, keys + elements, q_.data() + head * queries, shape_.group, shape_.context,
                  shape_.head_dim, Scale(), scratch, out + head * queries);
      }
    });
  }
  void Read(void (*read)(const std::byte* data, int64_t bytes)) {
    ForSequences([&](int64_t sequence, float*, float*) {
      read(memory_.data() + sequence * sequence_bytes_, sequence_bytes_);
    });
  }
  // A head's keys of a chunk, its values, the next head's; the next chunk.
  void ReadInOrder() {
    const int64_t pieces = kKvHeads * 2 * shape_.context / kKvBlockTokens;
    ForSequences([&](int64_t sequence, float*, float*) {
      ReadPieces(pieces_.data() + sequence * pieces, pieces, layout_.key_bytes());
    });
  }

 private:
  float Scale() const { return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)); }
  template <typename F>
  void ForSequences(F body) {
    next_ = (next_ + per_call_) % sequences_;
    pool_.ParallelFor(per_call_, [&](int64_t item, int worker) {
      body(next_ + item, scratch_.as<float>() + worker * scratch_floats_,
           out_.data() + item * kKvHeads * shape_.group * shape_.head_dim);
    });
  }

  const CpuKernels& kernels_;
  Shape shape_;
  ThreadPool& pool_;
  AlignedBuffer& memory_;
  KvLayout layout_;
  int64_t sequence_bytes_ = 0, per_call_ = 0, sequences_ = 0, next_ = 0;
  int64_t total_floats_ = 0, scratch_floats_ = 0;
  std::vector<const std::byte*> blocks_;
  std::vector<const std::byte*> pieces_;  // [sequences] keys and values as they are read
  std::vector<float> q_, out_;
  AlignedBuffer scratch_;
};

void Decode(const CpuKernels& kernels, int rounds, WeightType kv) {
  std::printf("\n## Decode attention (%s), %ld KV heads, %s, cold: GB/s of KV\n\n",
              IsaName(kernels.isa), kKvHeads, WeightTypeName(kv));
  std::printf(
      "| threads | head | group | context | read peak | in that order | ours | spread | plain | "
      "plain, -ffast-math | hash |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  AlignedBuffer memory(static_cast<size_t>(kColdBytes));
  const std::vector<float> values = Normals((1 << 16) - 1);
  for (size_t i = 0; i < memory.bytes() / 2; ++i) {
    memory.as<uint16_t>()[i] = F32ToBf16(values[i % values.size()]);
  }
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    for (const int64_t head_dim : {64, 128}) {
      for (const int64_t group : {1, 4, 8}) {
        for (const int64_t context : {1024, 4096}) {
          Decoder decoder(kernels, {head_dim, group, context, kv}, pool, memory);
          std::vector<Candidate> candidates = {{"read8", [&] { decoder.Read(ReadPeak); }},
                                               {"ours", [&] { decoder.Attend(); }},
                                               {"read1", [&] { decoder.Read(ReadPeakSequential); }},
                                               {"in order", [&] { decoder.ReadInOrder(); }}};
          if (context == 4096 && kv == WeightType::kBf16) {
            candidates.push_back({"plain", [&] { decoder.Plain(PlainAttention); }});
            candidates.push_back({"fast", [&] { decoder.Plain(PlainAttentionFastMath); }});
          }
          Measure(candidates, rounds, 0.01,
                  threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
          decoder.Rewind();
          decoder.Attend();
          const auto rate = [&](size_t i) {
            return decoder.CallBytes() / candidates[i].Median() / 1e9;
          };
          const double peak = std::max(rate(0), rate(2));
          std::printf("| %d | %ld | %ld | %ld | %.1f | %.1f (%.0f%%) | %.1f (%.0f%%) | %.1f%% |",
                      threads, head_dim, group, context, peak, rate(3), 100 * rate(3) / peak,
                      rate(1), 100 * rate(1) / peak, 100 * candidates[1].Spread());
          if (candidates.size() > 4) {
            std::printf(" %.1f (x %.1f) | %.1f (x %.1f) |", rate(4), rate(1) / rate(4), rate(5),
                        rate(1) / rate(5));
          } else {
            std::printf(" - | - |");
          }
          std::printf(" %08x |\n", static_cast<uint32_t>(decoder.OutHash()));
          std::fflush(stdout);
        }
      }
    }
  }
}

// A prompt's attention, all rows, `rows` of them a call.
class Prefiller {
 public:
  Prefiller(const CpuKernels& kernels, const Shape& shape, int64_t rows)
      : kernels_(kernels), shape_(shape), rows_(rows), layout_{kKvHeads, shape.head_dim, shape.kv} {
    const int64_t blocks = shape.context / kKvBlockTokens;
    memory_ = AlignedBuffer(static_cast<size_t>(blocks * layout_.block_bytes()));
    const std::vector<float> values = Normals((1 << 16) - 1);
    for (size_t i = 0; i < memory_.bytes() / 2; ++i) {
      memory_.as<uint16_t>()[i] = F32ToBf16(values[i % values.size()]);
    }
    for (int64_t b = 0; b < blocks; ++b) {
      blocks_.push_back(memory_.data() + b * layout_.block_bytes());
    }
    row_floats_ = kKvHeads * shape.group * shape.head_dim;
    q_ = Normals(shape.context * row_floats_);
    out_.resize(q_.size());
    const int64_t totals = rows * shape.group * AttentionPartialFloats(shape.head_dim);
    totals_ = AlignedBuffer(static_cast<size_t>(totals) * sizeof(float));
    scratch_ = AlignedBuffer(static_cast<size_t>(AttentionScratchFloats(shape.head_dim, shape.kv)) *
                             sizeof(float));
  }
  double Flops() const {
    return 2.0 * static_cast<double>(kKvHeads * shape_.group * shape_.head_dim) *
           static_cast<double>(shape_.context * (shape_.context + 1));
  }
  uint64_t OutHash() const {
    return Hash64({reinterpret_cast<const std::byte*>(out_.data()), out_.size() * sizeof(float)});
  }
  void Run() {
    for (int64_t row = 0; row < shape_.context; row += rows_) {
      for (int64_t head = 0; head < kKvHeads; ++head) RunRows(row, head);
    }
  }

 private:
  void RunRows(int64_t row, int64_t head) {
    const int64_t offset = row * row_floats_ + head * shape_.group * shape_.head_dim;
    AttendArgs args;
    args.q = q_.data() + offset;
    args.q_stride = shape_.head_dim;
    args.q_row_stride = row_floats_;
    args.rows = std::min(rows_, shape_.context - row);
    args.group = shape_.group;
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    args.layout = layout_;
    args.kv_head = head;
    args.blocks = blocks_.data();
    args.context_end = row + 1;
    totals_.Zero();
    kernels_.attend_chunks(args, 0, (row + args.rows - 1) / kAttentionChunkTokens + 1,
                           totals_.as<float>(), 0, scratch_.as<float>());
    for (int64_t r = 0; r < args.rows; ++r) {
      kernels_.finish_attention(
          totals_.as<float>() + r * shape_.group * AttentionPartialFloats(shape_.head_dim),
          shape_.group, shape_.head_dim, out_.data() + offset + r * row_floats_, shape_.head_dim);
    }
  }

  const CpuKernels& kernels_;
  Shape shape_;
  int64_t rows_, row_floats_ = 0;
  KvLayout layout_;
  AlignedBuffer memory_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> q_, out_;
  AlignedBuffer totals_, scratch_;
};

void Prefill(const CpuKernels& kernels, int rounds, WeightType kv) {
  std::printf(
      "\n## Prefill attention (%s), one thread, %ld KV heads, %s: GFLOP/s of causal pairs\n\n",
      IsaName(kernels.isa), kKvHeads, WeightTypeName(kv));
  std::printf(
      "| head | group | tokens | FMA peak | row by row | blocked | spread | same bits "
      "|\n|---|---|---|---|---|---|---|---|\n");
  const bool wide = kernels.isa != Isa::kAvx2;
  for (const int64_t head_dim : {64, 128}) {
    for (const int64_t group : {1, 4, 8}) {
      for (const int64_t tokens : {512, 2048}) {
        Prefiller rows(kernels, {head_dim, group, tokens, kv}, 1);
        Prefiller blocked(kernels, {head_dim, group, tokens, kv}, AttentionRows(group));
        std::vector<Candidate> candidates = {{"peak", wide ? FmaPeak : FmaPeak256},
                                             {"rows", [&] { rows.Run(); }},
                                             {"blocked", [&] { blocked.Run(); }}};
        Measure(candidates, rounds, 0.01);
        const double peak = (wide ? kFmaPeakFlops : kFmaPeak256Flops) / candidates[0].Median();
        const double by_row = rows.Flops() / candidates[1].Median();
        const double by_block = rows.Flops() / candidates[2].Median();
        std::printf("| %ld | %ld | %ld | %.0f | %.0f (%.0f%%) | %.0f (%.0f%%) | %.1f%% | %s |\n",
                    head_dim, group, tokens, peak / 1e9, by_row / 1e9, 100 * by_row / peak,
                    by_block / 1e9, 100 * by_block / peak, 100 * candidates[2].Spread(),
                    rows.OutHash() == blocked.OutHash() ? "yes" : "NO");
        std::fflush(stdout);
      }
    }
  }
}

// A row of DeepSeek-V3.2 in one layer, whose indexer chooses 2048 positions (which: at random), and
// the same row attending to all of them.
class Chooser {
 public:
  static constexpr int64_t kHeads = 128, kIndexHeads = 64, kIndexDim = 128, kTopK = 2048;
  static constexpr int64_t kGroup = 64;  // heads of a call

  Chooser(const CpuKernels& kernels, int64_t context) : kernels_(kernels), context_(context) {
    block_bytes_ = layout_.block_bytes() + index_.block_bytes();
    memory_ = AlignedBuffer(static_cast<size_t>(context / kKvBlockTokens * block_bytes_));
    const std::vector<float> values = Normals((1 << 16) - 1);
    for (size_t i = 0; i < memory_.bytes() / 2; ++i) {
      memory_.as<uint16_t>()[i] = F32ToBf16(values[i % values.size()]);
    }
    for (int64_t b = 0; b < context / kKvBlockTokens; ++b) {
      blocks_.push_back(memory_.data() + b * block_bytes_);
    }
    q_ = Normals(kHeads * layout_.head_dim);
    index_q_ = Normals(kIndexHeads * (kIndexDim + 1));
    scores_.resize(static_cast<size_t>(context));
    positions_.resize(static_cast<size_t>(context));
    std::iota(positions_.begin(), positions_.end(), 0);
    std::shuffle(positions_.begin(), positions_.end(), std::mt19937(7));
    positions_.resize(kTopK);
    std::sort(positions_.begin(), positions_.end());
    gathered_ = AlignedBuffer(static_cast<size_t>(kChunkBlocks * layout_.block_bytes()));
    totals_ =
        AlignedBuffer(static_cast<size_t>(kGroup * AttentionPartialFloats(layout_.latent_values)) *
                      sizeof(float));
    scratch_ = AlignedBuffer(static_cast<size_t>(AttentionScratchFloats(layout_)) * sizeof(float));
  }
  void Score() {
    IndexScoreArgs args;
    args.q = index_q_.data();
    args.weights = index_q_.data() + kIndexHeads * kIndexDim;
    args.heads = kIndexHeads;
    args.layout = index_;
    args.blocks = blocks_.data();
    args.key_offset = layout_.block_bytes();
    args.block_end = context_ / kKvBlockTokens;
    args.scores = scores_.data();
    kernels_.index_scores(args);
  }
  void Choose() {
    std::array<int32_t, kTopK> chosen;
    TopPositions(scores_.data(), context_, kTopK, chosen.data());
    sink = static_cast<float>(chosen.back());
  }
  void Gather(int64_t chunk) {
    GatherKeysArgs args;
    args.layout = layout_;
    args.blocks = blocks_.data();
    args.positions = positions_.data() + chunk * kAttentionChunkTokens;
    args.count = kAttentionChunkTokens;
    args.out = gathered_.data();
    kernels_.gather_keys(args);
  }
  void GatherAll() {
    for (int64_t head = 0; head < kHeads; head += kGroup) {
      for (int64_t chunk = 0; chunk < kTopK / kAttentionChunkTokens; ++chunk) Gather(chunk);
    }
  }
  void AttendToChosen() {
    std::array<const std::byte*, kChunkBlocks> blocks;
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i] = gathered_.data() + static_cast<int64_t>(i) * layout_.block_bytes();
    }
    for (int64_t head = 0; head < kHeads; head += kGroup) {
      totals_.Zero();
      for (int64_t chunk = 0; chunk < kTopK / kAttentionChunkTokens; ++chunk) {
        Gather(chunk);
        kernels_.attend_chunks(Args(head, blocks.data(), kAttentionChunkTokens), 0, 1,
                               totals_.as<float>(), 0, scratch_.as<float>());
      }
    }
  }
  void AttendToAll() {
    for (int64_t head = 0; head < kHeads; head += kGroup) {
      totals_.Zero();
      kernels_.attend_chunks(Args(head, blocks_.data(), context_), 0,
                             context_ / kAttentionChunkTokens, totals_.as<float>(), 0,
                             scratch_.as<float>());
    }
  }
  double ScoreFlops() const {
    return 2.0 * static_cast<double>(kIndexHeads * kIndexDim) * static_cast<double>(context_);
  }
  double AttentionFlops(int64_t positions) const {
    return 2.0 * static_cast<double>(kHeads * (layout_.head_dim + layout_.latent_values)) *
           static_cast<double>(positions);
  }

 private:
  static constexpr int64_t kChunkBlocks = kAttentionChunkTokens / kKvBlockTokens;

  AttendArgs Args(int64_t head, const std::byte* const* blocks, int64_t end) const {
    AttendArgs args;
    args.q = q_.data() + head * layout_.head_dim;
    args.q_stride = layout_.head_dim;
    args.group = kGroup;
    args.scale = 0.07f;
    args.layout = layout_;
    args.blocks = blocks;
    args.context_end = end;
    return args;
  }

  const CpuKernels& kernels_;
  const int64_t context_;
  const KvLayout layout_ = {.num_kv_heads = 1, .head_dim = 576, .latent_values = 512};
  const KvLayout index_ = {.num_kv_heads = 1, .head_dim = kIndexDim, .latent_values = kIndexDim};
  int64_t block_bytes_ = 0;
  AlignedBuffer memory_;
  std::vector<const std::byte*> blocks_;
  std::vector<float> q_, index_q_, scores_;
  std::vector<int32_t> positions_;
  AlignedBuffer gathered_, totals_, scratch_;
};

void Chosen(const CpuKernels& kernels, int rounds) {
  std::printf(
      "\n## Attention to 2048 chosen positions (%s), one thread, a row of DeepSeek-V3.2 in a "
      "layer: ms (share of the multiply-add peak)\n\n",
      IsaName(kernels.isa));
  std::printf(
      "| context | FMA peak | scores | choice | gathering | gathering and attention | attention to "
      "all | spread |\n|---|---|---|---|---|---|---|---|\n");
  const bool wide = kernels.isa != Isa::kAvx2;
  for (const int64_t context : {4096, 16384, 65536}) {
    Chooser chooser(kernels, context);
    std::vector<Candidate> candidates = {
        {"peak", wide ? FmaPeak : FmaPeak256},         {"scores", [&] { chooser.Score(); }},
        {"choice", [&] { chooser.Choose(); }},         {"gathering", [&] { chooser.GatherAll(); }},
        {"chosen", [&] { chooser.AttendToChosen(); }}, {"all", [&] { chooser.AttendToAll(); }}};
    Measure(candidates, rounds, 0.01);
    const double peak = (wide ? kFmaPeakFlops : kFmaPeak256Flops) / candidates[0].Median();
    const auto ms = [&](size_t i) { return 1e3 * candidates[i].Median(); };
    const auto share = [&](size_t i, double flops) {
      return 100 * flops / candidates[i].Median() / peak;
    };
    std::printf(
        "| %ld | %.0f GFLOP/s | %.2f (%.0f%%) | %.2f | %.2f | %.2f (%.0f%%) | %.2f (%.0f%%) "
        "| %.1f%% |\n",
        context, peak / 1e9, ms(1), share(1, chooser.ScoreFlops()), ms(2), ms(3), ms(4),
        share(4, chooser.AttentionFlops(Chooser::kTopK)), ms(5),
        share(5, chooser.AttentionFlops(context)), 100 * candidates[4].Spread());
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  const std::string isa = argc > 3 ? argv[3] : IsaName(Isa::kAvx512);
  if (!IsaSupported(Isa::kAvx512)) {
    std::printf("this bench measures its peaks with AVX-512, which this CPU lacks\n");
    return 1;
  }
  Isa chosen = Isa::kAvx512;
  if (isa == IsaName(Isa::kAvx2)) chosen = Isa::kAvx2;
  if (isa == IsaName(Isa::kAmx) && IsaSupported(Isa::kAmx)) chosen = Isa::kAmx;
  const CpuKernels& kernels = KernelsFor(chosen);
  const bool int8 = argc > 4 && std::string(argv[4]) == WeightTypeName(WeightType::kInt8);
  const WeightType kv = int8 ? WeightType::kInt8 : WeightType::kBf16;
  if (what == "all" || what == "decode") Decode(kernels, rounds, kv);
  if (what == "all" || what == "prefill") Prefill(kernels, rounds, kv);
  if (what == "all" || what == "chosen") Chosen(kernels, rounds);
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) { return moesaic::Main(argc, argv); }
