// The KV cache and attention: against a naive double-precision attention, with windows, several
// chunks, groups of heads, blocks of rows, odd head sizes and rubbish in the parts of blocks that
// are not attended to.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "tests/kernels/cpu/emulated_amx.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;
using testing_util::RoundToBf16;
using testing_util::SameBits;
using testing_util::TestSeed;

struct Shape {
  int64_t kv_heads = 1;
  int64_t group = 1;
  int64_t head_dim = 64;
  int64_t tokens = 100;  // stored
  int64_t begin = 0;     // attended
  int64_t end = 100;
  WeightType type = WeightType::kBf16;  // of the cache
};

std::string Describe(const Shape& s) {
  return fmt::format("{} kv_heads={} group={} head_dim={} tokens={} context=[{}, {}) seed={}",
                     WeightTypeName(s.type), s.kv_heads, s.group, s.head_dim, s.tokens, s.begin,
                     s.end, TestSeed());
}

// A sequence of random keys and values in blocks that are handed out in a shuffled order. All other
// bytes are NaN.
class Sequence {
 public:
  Sequence(const CpuKernels& kernels, const Shape& shape, Random& random)
      : layout_{shape.kv_heads, shape.head_dim, shape.type},
        keys_(random.Normals(shape.tokens * shape.kv_heads * shape.head_dim)),
        values_(random.Normals(shape.tokens * shape.kv_heads * shape.head_dim)) {
    const int64_t blocks = (shape.tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    memory_ = AlignedBuffer(static_cast<size_t>(blocks * layout_.block_bytes()));
    std::memset(memory_.data(), 0xff, memory_.bytes());
    std::vector<std::byte*> writable;
    for (int64_t b = 0; b < blocks; ++b) {
      writable.push_back(memory_.data() + (blocks - 1 - b) * layout_.block_bytes());
    }
    blocks_.assign(writable.begin(), writable.end());
    for (int64_t t = 0; t < shape.tokens; ++t) {
      for (int64_t h = 0; h < shape.kv_heads; ++h) {
        kernels.store_kv(layout_, writable[t / kKvBlockTokens], h, t % kKvBlockTokens, Key(t, h),
                         Value(t, h));
      }
    }
  }
  const KvLayout& layout() const { return layout_; }
  const std::byte* const* blocks() const { return blocks_.data(); }
  AlignedBuffer& memory() { return memory_; }
  const float* Key(int64_t t, int64_t h) const {
    return &keys_[(t * layout_.num_kv_heads + h) * layout_.head_dim];
  }
  const float* Value(int64_t t, int64_t h) const {
    return &values_[(t * layout_.num_kv_heads + h) * layout_.head_dim];
  }

 private:
  KvLayout layout_;
  std::vector<float> keys_, values_;
  AlignedBuffer memory_;
  std::vector<const std::byte*> blocks_;
};

AttendArgs ArgsFor(const Sequence& sequence, const Shape& shape, const std::vector<float>& q,
                   int64_t kv_head, float scale) {
  AttendArgs args;
  args.q = q.data() + kv_head * shape.group * shape.head_dim;
  args.q_stride = shape.head_dim;
  args.group = shape.group;
  args.scale = scale;
  args.layout = sequence.layout();
  args.kv_head = kv_head;
  args.blocks = sequence.blocks();
  args.context_end = shape.end;
  args.window = shape.begin > 0 ? shape.end - shape.begin : 0;
  return args;
}

// All heads and rows of `args`, chunk after chunk into one total: [kv_heads, rows, group,
// head_dim].
std::vector<float> AttendInOneCall(const CpuKernels& kernels, const AttendArgs& args) {
  const int64_t d = args.layout.head_dim;
  const int64_t queries = args.kv_heads * args.rows * args.group;
  const int64_t first = args.window > 0 ? std::max<int64_t>(0, args.context_end - args.window) : 0;
  std::vector<float> totals(queries * AttentionPartialFloats(d));
  std::vector<float> scratch(AttentionScratchFloats(d, args.layout.type), NAN);
  kernels.attend_chunks(args, first / kAttentionChunkTokens,
                        (args.context_end + args.rows - 2) / kAttentionChunkTokens + 1,
                        totals.data(), 0, scratch.data());
  std::vector<float> out(queries * d, NAN);
  kernels.finish_attention(totals.data(), queries, d, out.data(), d);
  return out;
}

struct Attended {
  std::vector<float> partials;  // [chunks][group][...]
  std::vector<float> out;       // [group, head_dim]
};

// One row, the chunks apart and then merged.
Attended Attend(const CpuKernels& kernels, const Sequence& sequence, const Shape& shape,
                const std::vector<float>& q, int64_t kv_head, float scale) {
  const AttendArgs args = ArgsFor(sequence, shape, q, kv_head, scale);
  const int64_t first = shape.begin / kAttentionChunkTokens;
  const int64_t chunks = (shape.end + kAttentionChunkTokens - 1) / kAttentionChunkTokens - first;
  const int64_t floats = shape.group * AttentionPartialFloats(shape.head_dim);
  Attended result;
  result.partials.assign(chunks * floats, 0.0f);
  std::vector<float> scratch(AttentionScratchFloats(shape.head_dim, shape.type), NAN);
  // Any order, one or several a call: the chunks are independent.
  const int64_t middle = chunks / 2;
  kernels.attend_chunks(args, first + middle, first + chunks, &result.partials[middle * floats],
                        floats, scratch.data());
  for (int64_t c = middle - 1; c >= 0; --c) {
    kernels.attend_chunks(args, first + c, first + c + 1, &result.partials[c * floats], floats,
                          scratch.data());
  }
  std::vector<float> totals(floats);
  for (int64_t c = 0; c < chunks; ++c) {
    kernels.fold_partials(&result.partials[c * floats], shape.group, shape.head_dim, totals.data());
  }
  result.out.assign(shape.group * shape.head_dim, NAN);
  kernels.finish_attention(totals.data(), shape.group, shape.head_dim, result.out.data(),
                           shape.head_dim);
  EXPECT_TRUE(SameBits(result.out, AttendInOneCall(kernels, args))) << Describe(shape);
  return result;
}

// Whether queries and exponentials are rounded to bf16 (class kAmxBf16; odd head sizes are as in
// the others).
bool Rounds(const CpuKernels& kernels, const Shape& shape) {
  return kernels.numerics == NumericsClass::kAmxBf16 && shape.type != WeightType::kF32 &&
         shape.head_dim % 32 == 0;
}

constexpr WeightType kKvTypes[] = {WeightType::kBf16, WeightType::kF32, WeightType::kInt8};

// A token's key or value as the cache has it.
std::vector<double> Stored(const float* x, int64_t d, WeightType type) {
  std::vector<double> stored(x, x + d);
  if (type == WeightType::kBf16) {
    for (double& v : stored) v = RoundToBf16(static_cast<float>(v));
  } else if (type == WeightType::kInt8) {
    float max = 0;
    for (int64_t i = 0; i < d; ++i) max = std::max(max, std::abs(x[i]));
    const double scale = max / 127.0f;
    for (int64_t i = 0; i < d; ++i) stored[i] = std::nearbyint(x[i] * (127.0f / max)) * scale;
  }
  return stored;
}

// An instruction set, or the tiles of AMX emulated.
struct BlockTable {
  std::string name;
  CpuKernels kernels;
};

std::vector<BlockTable> Tables() {
  std::vector<BlockTable> tables;
  for (const Isa isa : testing_util::SupportedIsas()) {
    tables.push_back({IsaName(isa), KernelsFor(isa)});
  }
  tables.push_back({"emulated_amx", testing_util::WithEmulatedAmx(KernelsFor(Isa::kScalar))});
  return tables;
}

class AttentionTest : public ::testing::TestWithParam<BlockTable> {
 protected:
  void TearDown() override { EXPECT_TRUE(testing_util::EmulatedTilesAreReleased()); }

  const CpuKernels& kernels_ = GetParam().kernels;
  Random random_;

  void CheckAgainstNaive(Shape shape) {
    for (const WeightType type : kKvTypes) {
      shape.type = type;
      CheckOne(shape);
    }
  }

  void CheckHeads(WeightType type, int64_t head_dim, int64_t group, int64_t rows);

  void CheckOne(const Shape& s) {
    SCOPED_TRACE(Describe(s));
    const Sequence sequence(kernels_, s, random_);
    const std::vector<float> q = random_.Normals(s.kv_heads * s.group * s.head_dim);
    const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    // Half a unit in the last place of bf16.
    const double tolerance = Rounds(kernels_, s) ? 1.0 / 256 : 1e-5;
    for (int64_t h = 0; h < s.kv_heads; ++h) {
      std::vector<std::vector<double>> keys, values;  // from s.begin on
      for (int64_t t = s.begin; t < s.end; ++t) {
        keys.push_back(Stored(sequence.Key(t, h), s.head_dim, s.type));
        values.push_back(Stored(sequence.Value(t, h), s.head_dim, s.type));
      }
      const Attended attended = Attend(kernels_, sequence, s, q, h, scale);
      for (int64_t g = 0; g < s.group; ++g) {
        std::vector<double> p;
        double max = -std::numeric_limits<double>::infinity();
        for (int64_t t = s.begin; t < s.end; ++t) {
          double score = 0.0;
          for (int64_t d = 0; d < s.head_dim; ++d) {
            const float query = q[(h * s.group + g) * s.head_dim + d];
            score += (Rounds(kernels_, s) ? RoundToBf16(query) : static_cast<double>(query)) *
                     keys[t - s.begin][d];
          }
          p.push_back(score * scale);
          max = std::max(max, p.back());
        }
        double sum = 0.0;
        for (double& v : p) sum += v = std::exp(v - max);
        for (int64_t d = 0; d < s.head_dim; ++d) {
          double o = 0.0;
          double magnitude = 0.0;
          for (int64_t t = s.begin; t < s.end; ++t) {
            const double term = p[t - s.begin] / sum * values[t - s.begin][d];
            o += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(attended.out[g * s.head_dim + d], o, magnitude * (tolerance + 1e-5) + 1e-7)
              << "kv head " << h << " query " << g << " dim " << d;
        }
      }
    }
  }
};

// Heads of one call, chunks into one total or apart, give what calls of their own give.
void AttentionTest::CheckHeads(WeightType type, int64_t head_dim, int64_t group, int64_t rows) {
  const Shape shape = {
      .kv_heads = 4, .group = group, .head_dim = head_dim, .tokens = 700, .end = 690, .type = type};
  SCOPED_TRACE(Describe(shape) + fmt::format(" rows={}", rows));
  const Sequence sequence(kernels_, shape, random_);
  const int64_t width = shape.kv_heads * group * head_dim;
  const std::vector<float> q = random_.Normals(rows * width);
  AttendArgs args = ArgsFor(sequence, shape, q, 1, 0.2f);
  args.rows = rows;
  args.q_row_stride = width;
  args.window = 600;
  std::vector<float> apart;
  for (int64_t head = 1; head < 4; ++head) {
    args.kv_head = head;
    args.q = q.data() + head * group * head_dim;
    const std::vector<float> one = AttendInOneCall(kernels_, args);
    apart.insert(apart.end(), one.begin(), one.end());
  }
  args.kv_head = 1;
  args.kv_heads = 3;
  args.q = q.data() + group * head_dim;
  EXPECT_TRUE(SameBits(AttendInOneCall(kernels_, args), apart));

  const int64_t queries = 3 * rows * group;
  const int64_t floats = queries * AttentionPartialFloats(head_dim) + 16;
  std::vector<float> partials(3 * floats);
  std::vector<float> scratch(AttentionScratchFloats(head_dim, type), NAN);
  kernels_.attend_chunks(args, 0, 3, partials.data(), floats, scratch.data());
  for (int64_t chunk = 1; chunk < 3; ++chunk) {
    kernels_.fold_partials(&partials[chunk * floats], queries, head_dim, partials.data());
  }
  std::vector<float> out(queries * head_dim, NAN);
  kernels_.finish_attention(partials.data(), queries, head_dim, out.data(), head_dim);
  EXPECT_TRUE(SameBits(out, apart));
}

TEST_P(AttentionTest, MatchesNaiveForEveryGroup) {
  for (int64_t group = 1; group <= 9; ++group) {
    CheckAgainstNaive({.group = group, .head_dim = 64, .tokens = 77, .end = 77});
    CheckAgainstNaive({.group = group, .head_dim = 128, .tokens = 300, .end = 299});
  }
}

TEST_P(AttentionTest, MatchesNaiveForManyHeadSizes) {
  for (const int64_t head_dim : {32, 36, 48, 64, 80, 96, 100, 112, 128, 192, 256, 1, 7, 33}) {
    CheckAgainstNaive({.kv_heads = 2, .group = 3, .head_dim = head_dim, .tokens = 50, .end = 50});
  }
}

TEST_P(AttentionTest, MatchesNaiveForEveryContextLength) {
  for (int64_t end = 1; end <= 40; ++end) {
    CheckAgainstNaive({.group = 2, .head_dim = 32, .tokens = end, .end = end});
  }
  for (const int64_t end : {255, 256, 257, 271, 512, 513, 1000}) {
    CheckAgainstNaive({.group = 4, .head_dim = 32, .tokens = end, .end = end});
  }
}

TEST_P(AttentionTest, MatchesNaiveForWindows) {
  for (const int64_t begin : {1, 15, 16, 17, 100, 255, 256, 257, 500, 599}) {
    CheckAgainstNaive(
        {.kv_heads = 2, .group = 4, .head_dim = 48, .tokens = 600, .begin = begin, .end = 600});
    CheckAgainstNaive({.group = 1,
                       .head_dim = 48,
                       .tokens = 600,
                       .begin = begin,
                       .end = std::min<int64_t>(begin + 33, 600)});
  }
}

// Contexts of several chunks that end, and windows that begin, beside the border of a chunk.
TEST_P(AttentionTest, MatchesNaiveAcrossChunks) {
  constexpr int64_t kChunk = kAttentionChunkTokens;
  for (const int64_t end : {3 * kChunk - 1, 3 * kChunk, 3 * kChunk + 1, 4 * kChunk + 1}) {
    for (const int64_t begin : {int64_t{0}, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk - 300}) {
      CheckAgainstNaive(
          {.kv_heads = 2, .group = 2, .head_dim = 32, .tokens = end, .begin = begin, .end = end});
    }
  }
}

// What is outside the context changes no bit, be it NaN, infinite or ordinary.
TEST_P(AttentionTest, OutsideOfTheContextCannotBeSeen) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    const Shape shape = {
        .group = 3, .head_dim = 36, .tokens = 600, .begin = 21, .end = 555, .type = type};
    Sequence sequence(kernels_, shape, random_);
    const std::vector<float> q = random_.Normals(shape.group * shape.head_dim);
    const Attended before = Attend(kernels_, sequence, shape, q, 0, 0.2f);
    for (const float v : before.out) ASSERT_TRUE(std::isfinite(v));
    for (const float rubbish : {NAN, INFINITY, -INFINITY, 3e38f}) {
      const std::vector<float> row(shape.head_dim, rubbish);
      for (int64_t t = 0; t < shape.tokens; ++t) {
        if (t >= shape.begin && t < shape.end) continue;
        kernels_.store_kv(sequence.layout(),
                          const_cast<std::byte*>(sequence.blocks()[t / kKvBlockTokens]), 0,
                          t % kKvBlockTokens, row.data(), row.data());
      }
      const Attended after = Attend(kernels_, sequence, shape, q, 0, 0.2f);
      EXPECT_TRUE(SameBits(before.out, after.out)) << rubbish;
    }
  }
}

// A group is computed in tiles of heads: a head's bits do not depend on its neighbours.
TEST_P(AttentionTest, BitsDoNotDependOnTheGroup) {
  const Shape shape = {.group = 8, .head_dim = 80, .tokens = 300, .end = 300};
  const Sequence sequence(kernels_, shape, random_);
  const std::vector<float> q = random_.Normals(shape.group * shape.head_dim);
  const Attended all = Attend(kernels_, sequence, shape, q, 0, 0.1f);
  for (int64_t group = 1; group < 8; ++group) {
    Shape part = shape;
    part.group = group;
    const Attended some = Attend(kernels_, sequence, part, q, 0, 0.1f);
    EXPECT_TRUE(SameBits(some.out, {all.out.begin(), all.out.begin() + group * shape.head_dim}));
  }
}

// Context that ends later changes no partial of an earlier chunk: prefill in pieces gives the same
// bits.
TEST_P(AttentionTest, FullChunksDoNotDependOnTheContextEnd) {
  Shape shape = {.group = 2, .head_dim = 64, .tokens = 700, .end = 700};
  const Sequence sequence(kernels_, shape, random_);
  const std::vector<float> q = random_.Normals(shape.group * shape.head_dim);
  const Attended late = Attend(kernels_, sequence, shape, q, 0, 0.1f);
  shape.end = 513;
  const Attended early = Attend(kernels_, sequence, shape, q, 0, 0.1f);
  const int64_t floats = 2 * shape.group * AttentionPartialFloats(shape.head_dim);
  EXPECT_TRUE(SameBits({late.partials.begin(), late.partials.begin() + floats},
                       {early.partials.begin(), early.partials.begin() + floats}));
}

// Rows of a prompt together: each has the bits that it has alone, and what comes after it in the
// prompt cannot be seen.
TEST_P(AttentionTest, RowsTogetherHaveTheBitsOfEach) {
  struct Case {
    int64_t rows, group, head_dim, end, window;
  };
  const Case cases[] = {{2, 1, 64, 1, 0},     {48, 1, 64, 1, 0},     {13, 1, 33, 250, 0},
                        {12, 4, 128, 505, 0}, {6, 8, 96, 509, 0},    {7, 3, 80, 256, 0},
                        {10, 2, 36, 500, 40}, {30, 1, 48, 540, 5},   {9, 5, 32, 245, 257},
                        {3, 16, 64, 30, 0},   {20, 1, 256, 100, 90}, {100, 1, 32, 200, 0},
                        {100, 1, 32, 1, 20}};
  for (const WeightType type : kKvTypes) {
    for (const Case& c : cases) {
      const int64_t tokens = c.end + c.rows - 1;
      Shape shape = {.group = c.group, .head_dim = c.head_dim, .tokens = tokens, .type = type};
      const Sequence sequence(kernels_, shape, random_);
      const std::vector<float> q = random_.Normals(c.rows * c.group * c.head_dim);
      shape.end = c.end;
      AttendArgs args = ArgsFor(sequence, shape, q, 0, 0.1f);
      args.q_row_stride = c.group * c.head_dim;
      args.rows = c.rows;
      args.window = c.window;
      const std::vector<float> all = AttendInOneCall(kernels_, args);
      const std::vector<float> rubbish(c.head_dim, NAN);
      for (int64_t row = c.rows - 1; row >= 0; --row) {
        // Those up to `row`, while everything after it is rubbish, which the next row sees.
        if (row + 1 < c.rows) {
          args.q = q.data();
          args.context_end = c.end;
          args.rows = row + 2;
          std::vector<float> some = AttendInOneCall(kernels_, args);
          some.resize((row + 1) * c.group * c.head_dim);
          ASSERT_TRUE(
              SameBits(some, {all.begin(), all.begin() + static_cast<int64_t>(some.size())}))
              << Describe(shape) << " window=" << c.window << " rows up to " << row;
        }
        args.rows = 1;
        args.q = q.data() + row * c.group * c.head_dim;
        args.context_end = c.end + row;
        const auto from = all.begin() + row * c.group * c.head_dim;
        ASSERT_TRUE(SameBits(AttendInOneCall(kernels_, args), {from, from + c.group * c.head_dim}))
            << Describe(shape) << " window=" << c.window << " row=" << row;
        const int64_t last = c.end + row - 1;
        kernels_.store_kv(sequence.layout(),
                          const_cast<std::byte*>(sequence.blocks()[last / kKvBlockTokens]), 0,
                          last % kKvBlockTokens, rubbish.data(), rubbish.data());
      }
    }
  }
}

TEST_P(AttentionTest, HeadsOfOneCall) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt8}) {
    for (const int64_t head_dim : {20, 64, 128}) {
      for (const int64_t group : {1, 5, 8}) {
        for (const int64_t rows : {1, 3}) CheckHeads(type, head_dim, group, rows);
      }
    }
  }
}

TEST_P(AttentionTest, EmptyChunkIsNeutral) {
  const Shape shape = {.group = 2, .head_dim = 20, .tokens = 100, .end = 100};
  const Sequence sequence(kernels_, shape, random_);
  const std::vector<float> q = random_.Normals(shape.group * shape.head_dim);
  const AttendArgs args = ArgsFor(sequence, shape, q, 0, 0.3f);
  const int64_t floats = shape.group * AttentionPartialFloats(shape.head_dim);
  std::vector<float> empty(floats), totals(floats);
  std::vector<float> scratch(AttentionScratchFloats(shape.head_dim, shape.type), NAN);
  kernels_.attend_chunks(args, 1, 6, empty.data(), 0, scratch.data());
  std::vector<float> out(shape.group * shape.head_dim, NAN);
  kernels_.finish_attention(empty.data(), shape.group, shape.head_dim, out.data(), shape.head_dim);
  for (const float v : out) EXPECT_EQ(v, 0.0f);

  kernels_.fold_partials(empty.data(), shape.group, shape.head_dim, totals.data());
  kernels_.attend_chunks(args, 0, 1, totals.data(), 0, scratch.data());
  kernels_.fold_partials(empty.data(), shape.group, shape.head_dim, totals.data());
  kernels_.finish_attention(totals.data(), shape.group, shape.head_dim, out.data(), shape.head_dim);
  EXPECT_TRUE(SameBits(out, AttendInOneCall(kernels_, args)));
}

// Scores far apart: the softmax is max-subtracted inside a chunk and between chunks.
TEST_P(AttentionTest, HugeScoresDoNotOverflow) {
  const Shape shape = {.head_dim = 16, .tokens = 600, .end = 600};
  const Sequence sequence(kernels_, shape, random_);
  const std::vector<float> q = random_.Normals(shape.head_dim, 1000.0f);
  const Attended attended = Attend(kernels_, sequence, shape, q, 0, 1.0f);
  for (const float v : attended.out) EXPECT_TRUE(std::isfinite(v));
}

TEST_P(AttentionTest, NanInTheContextIsNotHidden) {
  for (const WeightType type : kKvTypes) {
    for (const int64_t head_dim : {16, 64}) {
      const Shape shape = {.head_dim = head_dim, .tokens = 30, .end = 30, .type = type};
      SCOPED_TRACE(Describe(shape));
      for (const bool key : {true, false}) {
        Sequence sequence(kernels_, shape, random_);
        const std::vector<float> q = random_.Normals(shape.head_dim);
        const std::vector<float> bad(shape.head_dim, NAN);
        kernels_.store_kv(sequence.layout(), const_cast<std::byte*>(sequence.blocks()[0]), 0, 7,
                          key ? bad.data() : sequence.Key(7, 0),
                          key ? sequence.Value(7, 0) : bad.data());
        const Attended attended = Attend(kernels_, sequence, shape, q, 0, 1.0f);
        for (const float v : attended.out) EXPECT_TRUE(std::isnan(v)) << key;
      }
    }
  }
}

TEST_P(AttentionTest, Int8OfZerosAndOfWhatIsNotFinite) {
  const Shape shape = {.head_dim = 64, .tokens = 20, .end = 20, .type = WeightType::kInt8};
  Sequence sequence(kernels_, shape, random_);
  const std::vector<float> q = random_.Normals(shape.head_dim);
  const auto store = [&](float value) {
    const std::vector<float> all(shape.head_dim, value);
    for (int64_t token = 0; token < shape.tokens; ++token) {
      kernels_.store_kv(sequence.layout(),
                        const_cast<std::byte*>(sequence.blocks()[token / kKvBlockTokens]), 0,
                        token % kKvBlockTokens, all.data(), all.data());
    }
    return Attend(kernels_, sequence, shape, q, 0, 1.0f).out;
  };
  for (const float value : {0.0f, 1e-37f, -1e-40f}) {
    for (const float v : store(value)) EXPECT_EQ(v, 0.0f);
  }
  for (const float v : store(INFINITY)) EXPECT_TRUE(std::isnan(v));
  for (const float v : store(-3e5f)) EXPECT_NEAR(v, -3e5f, 2e3f);
}

INSTANTIATE_TEST_SUITE_P(, AttentionTest, ::testing::ValuesIn(Tables()),
                         [](const auto& info) { return info.param.name; });

// In f32 arithmetic all instruction sets agree, and so do tiles and what they are emulated by.
TEST(AttentionIsaTest, SameBits) {
  for (const int64_t head_dim : {36, 80, 96, 128}) {
    for (const int64_t group : {1, 3, 4, 6, 8}) {
      for (const WeightType type : {WeightType::kBf16, WeightType::kInt8}) {
        const Shape shape = {.group = group,
                             .head_dim = head_dim,
                             .tokens = 540,
                             .begin = 9,
                             .end = 530,
                             .type = type};
        std::array<std::vector<float>, 2> expected;  // of vectors, of tiles
        for (const auto& [name, kernels] : Tables()) {
          Random random;
          const Sequence sequence(kernels, shape, random);
          const std::vector<float> q = random.Normals(group * head_dim);
          Attended attended = Attend(kernels, sequence, shape, q, 0, 0.1f);
          std::vector<float>& same = expected[Rounds(kernels, shape) ? 1 : 0];
          if (same.empty()) same = attended.out;
          EXPECT_TRUE(SameBits(attended.out, same)) << name << " " << Describe(shape);
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
