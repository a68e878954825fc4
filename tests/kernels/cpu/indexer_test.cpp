// What chooses the positions that are attended to: scores against the formula in double precision
// and, bit for bit, against the scalar reference (on tiles: emulated ones) and against calls of
// other positions; gathered keys; the choice itself.
#include "kernels/cpu/indexer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/kernels/cpu/emulated_amx.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;
using testing_util::SameBits;

constexpr int64_t kOffset = 128;  // of the keys in a block

struct IndexShape {
  int64_t heads = 0;
  int64_t dim = 0;
  WeightType type = WeightType::kBf16;
  KvLayout layout() const {
    return {.num_kv_heads = 1, .head_dim = dim, .type = type, .latent_values = dim};
  }
};

// Keys of tokens in blocks that do not follow each other; all other bytes are NaN.
class KeyBlocks {
 public:
  KeyBlocks(const CpuKernels& kernels, const KvLayout& layout, const std::vector<float>& keys,
            int64_t offset)
      : block_bytes_(layout.key_bytes() + offset) {
    const int64_t tokens = std::ssize(keys) / layout.head_dim;
    const int64_t blocks = (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    memory_ = AlignedBuffer(static_cast<size_t>(blocks * block_bytes_));
    std::memset(memory_.data(), 0xff, memory_.bytes());
    blocks_.reserve(static_cast<size_t>(blocks));
    for (int64_t b = 0; b < blocks; ++b) {
      blocks_.push_back(memory_.data() + (blocks - 1 - b) * block_bytes_);
    }
    for (int64_t t = 0; t < tokens; ++t) {
      std::byte* const block = memory_.data() + (blocks - 1 - t / kKvBlockTokens) * block_bytes_;
      kernels.store_kv(layout, block + offset, 0, t % kKvBlockTokens,
                       keys.data() + t * layout.head_dim, nullptr);
    }
  }
  const std::byte* const* blocks() const { return blocks_.data(); }

 private:
  int64_t block_bytes_;
  AlignedBuffer memory_;
  std::vector<const std::byte*> blocks_;
};

class IndexerKernelTest : public ::testing::TestWithParam<Isa> {
 protected:
  Random random_;
};

// What is scored: keys of a sequence, and queries and weights of heads.
class Scored {
 public:
  static constexpr int64_t kTokens = 85;
  static constexpr int64_t kBlocks = 6;

  Scored(const IndexShape& shape, Random& random)
      : shape_(shape),
        keys_(random.Normals(kTokens * shape.dim)),
        q_(random.Normals(shape.heads * shape.dim)),
        weights_(random.Normals(shape.heads)),
        blocks_(KernelsFor(Isa::kScalar), shape.layout(), keys_, kOffset) {}

  // Of the blocks between each border and the next.
  std::vector<float> Scores(const CpuKernels& kernels, const std::vector<int64_t>& borders) const {
    std::vector<float> scores(kBlocks * kKvBlockTokens);
    IndexScoreArgs args;
    args.q = q_.data();
    args.weights = weights_.data();
    args.heads = shape_.heads;
    args.layout = shape_.layout();
    args.blocks = blocks_.blocks();
    args.key_offset = kOffset;
    args.scores = scores.data();
    for (size_t i = 1; i < borders.size(); ++i) {
      args.block_begin = borders[i - 1];
      args.block_end = borders[i];
      kernels.index_scores(args);
    }
    scores.resize(kTokens);  // the rest is of what is not there
    return scores;
  }

  void ExpectFormula(const std::vector<float>& scores, bool rounded_queries) const {
    const auto rounded = [](float value, bool yes) {
      return static_cast<double>(yes ? testing_util::RoundToBf16(value) : value);
    };
    for (int64_t t = 0; t < kTokens; ++t) {
      double expected = 0;
      for (int64_t h = 0; h < shape_.heads; ++h) {
        double product = 0;
        for (int64_t i = 0; i < shape_.dim; ++i) {
          product += rounded(q_[h * shape_.dim + i], rounded_queries) *
                     rounded(keys_[t * shape_.dim + i], shape_.type == WeightType::kBf16);
        }
        expected += weights_[h] * std::max(0.0, product);
      }
      ASSERT_NEAR(scores[t], expected, 5e-4) << t;
    }
  }

 private:
  IndexShape shape_;
  std::vector<float> keys_, q_, weights_;
  KeyBlocks blocks_;
};

// 40 and 64 heads of 32 and 128 are what tiles take, with a tile of heads that is not full.
constexpr std::pair<int64_t, int64_t> kIndexShapes[] = {{1, 16}, {4, 17},  {11, 26}, {16, 128},
                                                        {3, 96}, {40, 32}, {64, 128}};

TEST_P(IndexerKernelTest, ScoresAreTheFormula) {
  const CpuKernels& kernels = KernelsFor(GetParam());
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    for (const auto& [heads, dim] : kIndexShapes) {
      SCOPED_TRACE(fmt::format("{} {} heads of {}", WeightTypeName(type), heads, dim));
      const Scored scored({heads, dim, type}, random_);
      const std::vector<float> scores = scored.Scores(kernels, {0, 6});
      EXPECT_TRUE(SameBits(scores, scored.Scores(kernels, {0, 1, 4, 6})));
      const bool on_tiles = GetParam() == Isa::kAmx && type == WeightType::kBf16 && dim % 32 == 0;
      if (!on_tiles) {
        EXPECT_TRUE(SameBits(scores, scored.Scores(KernelsFor(Isa::kScalar), {0, 6})));
      }
      scored.ExpectFormula(scores, on_tiles);
    }
  }
}

// The kernel of tile registers on emulated ones: the same bits as on real ones, where there are
// any.
TEST(TiledIndexerTest, ScoresAreTheFormula) {
  Random random;
  const CpuKernels emulated = testing_util::WithEmulatedAmx(KernelsFor(Isa::kScalar));
  for (const auto& [heads, dim] : kIndexShapes) {
    SCOPED_TRACE(fmt::format("{} heads of {}", heads, dim));
    const Scored scored({heads, dim, WeightType::kBf16}, random);
    const std::vector<float> scores = scored.Scores(emulated, {0, 6});
    EXPECT_TRUE(SameBits(scores, scored.Scores(emulated, {0, 3, 4, 6})));
    scored.ExpectFormula(scores, dim % 32 == 0);
    if (IsaSupported(Isa::kAmx)) {
      EXPECT_TRUE(SameBits(scores, scored.Scores(KernelsFor(Isa::kAmx), {0, 6})));
    }
  }
  EXPECT_TRUE(testing_util::EmulatedTilesAreReleased());
}

TEST_P(IndexerKernelTest, GatheredKeysAreThoseOfTheTokens) {
  const CpuKernels& kernels = KernelsFor(GetParam());
  constexpr int64_t kTokens = 100;
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    const IndexShape shape = {1, 23, type};
    const std::vector<float> keys = random_.Normals(kTokens * shape.dim);
    const KeyBlocks all(kernels, shape.layout(), keys, 0);
    // Whole blocks at the beginning, then some of each, then all of one but elsewhere.
    std::vector<int32_t> positions(33);
    std::iota(positions.begin(), positions.end(), 0);
    for (int32_t p = 34; p < 80; p += 1 + p % 3) positions.push_back(p);
    for (int32_t p = 80; p < 97; ++p) positions.push_back(p);
    const auto count = std::ssize(positions);
    std::vector<float> chosen;
    for (const int32_t p : positions) {
      chosen.insert(chosen.end(), keys.begin() + p * shape.dim, keys.begin() + (p + 1) * shape.dim);
    }
    const KeyBlocks expected(kernels, shape.layout(), chosen, 0);
    const int64_t blocks = (count + kKvBlockTokens - 1) / kKvBlockTokens;
    const int64_t key_bytes = shape.layout().key_bytes();
    AlignedBuffer out(static_cast<size_t>(blocks * key_bytes));
    std::memset(out.data(), 0xff, out.bytes());
    GatherKeysArgs args;
    args.layout = shape.layout();
    args.blocks = all.blocks();
    args.positions = positions.data();
    args.count = count;
    args.out = out.data();
    kernels.gather_keys(args);
    for (int64_t block = 0; block < blocks; ++block) {
      EXPECT_EQ(std::memcmp(out.data() + block * key_bytes, expected.blocks()[block],
                            static_cast<size_t>(key_bytes)),
                0)
          << WeightTypeName(type) << " block " << block;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, IndexerKernelTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

std::vector<int32_t> Top(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> positions(static_cast<size_t>(k));
  TopPositions(scores.data(), std::ssize(scores), k, positions.data());
  return positions;
}

TEST(TopPositionsTest, AreTheHighestInOrder) {
  Random random;
  for (const int64_t count : {1, 2, 40, 3000}) {
    std::vector<float> scores;
    // Few values, so that there are many equals, some of them on the border.
    for (int64_t i = 0; i < count; ++i) {
      const float few = 0.25f * static_cast<float>(random.Uniform(-6, 6));
      scores.push_back(i % 3 == 0 ? random.Normal() * 1e-3f : few);
    }
    for (const int64_t k : {int64_t{1}, count / 3, count - 1, count}) {
      if (k < 1) continue;
      std::vector<int32_t> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
        return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
      });
      order.resize(static_cast<size_t>(k));
      std::sort(order.begin(), order.end());
      EXPECT_EQ(Top(scores, k), order) << count << " " << k;
    }
  }
}

TEST(TopPositionsTest, EqualsGoByPosition) {
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(Top({0.0f, -0.0f, 0.0f, -0.0f}, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(Top({-0.0f, 0.0f, 1.0f, 0.0f}, 2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(Top({-infinity, -1e30f, infinity, 1e-40f, -1e-40f}, 3),
            (std::vector<int32_t>{2, 3, 4}));
  // Whatever a NaN counts as, as many positions are chosen.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(Top({nan, 1.0f, -nan, 2.0f, nan}, 4).size(), 4u);
}

}  // namespace
}  // namespace moesaic
