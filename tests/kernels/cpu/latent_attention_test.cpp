// Attention whose values are the first values of its keys (KvLayout::latent_values): the bits of
// attention over a cache that has them beside the keys, for chunks apart and together, blocks of
// rows, odd sizes, and rubbish in the parts of blocks that are not attended to.
#include <cstring>
#include <limits>

#include "tests/kernels/cpu/emulated_amx.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Random;
using testing_util::SameBits;
using testing_util::TestSeed;

struct LatentShape {
  int64_t row = 96;     // values of a token
  int64_t latent = 64;  // the first of them, which are the value
  int64_t group = 4;
  int64_t rows = 1;
  int64_t end = 100;  // of the first row's context
  WeightType type = WeightType::kBf16;
};

std::string Describe(const LatentShape& s) {
  return fmt::format("{} row={} latent={} group={} rows={} end={} seed={}", WeightTypeName(s.type),
                     s.row, s.latent, s.group, s.rows, s.end, TestSeed());
}

// Random rows in blocks of a layout; all other bytes are NaN.
class RowCache {
 public:
  RowCache(const CpuKernels& kernels, const KvLayout& layout, const std::vector<float>& rows)
      : layout_(layout) {
    const int64_t tokens = std::ssize(rows) / layout.head_dim;
    const int64_t blocks = (tokens + kKvBlockTokens - 1) / kKvBlockTokens;
    memory_ = AlignedBuffer(static_cast<size_t>(blocks * layout.block_bytes()));
    std::memset(memory_.data(), 0xff, memory_.bytes());
    for (int64_t b = 0; b < blocks; ++b) {
      blocks_.push_back(memory_.data() + (blocks - 1 - b) * layout.block_bytes());
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const float* const row = rows.data() + t * layout.head_dim;
      kernels.store_kv(layout, const_cast<std::byte*>(blocks_[t / kKvBlockTokens]), 0,
                       t % kKvBlockTokens, row, layout.latent_values > 0 ? nullptr : row);
    }
  }

  AttendArgs Args(const LatentShape& s, const std::vector<float>& q) const {
    AttendArgs args;
    args.q = q.data();
    args.q_stride = s.row;
    args.q_row_stride = s.group * s.row;
    args.rows = s.rows;
    args.group = s.group;
    args.scale = 0.1f;
    args.layout = layout_;
    args.blocks = blocks_.data();
    args.context_end = s.end;
    return args;
  }

 private:
  KvLayout layout_;
  AlignedBuffer memory_;
  std::vector<const std::byte*> blocks_;
};

class LatentAttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  // [rows, group, latent], chunks into one total or, `apart`, folded one by one.
  std::vector<float> Attend(const CpuKernels& kernels, const AttendArgs& args, int64_t latent,
                            bool apart) const {
    const int64_t d = args.layout.value_dim();
    const int64_t queries = args.rows * args.group;
    const int64_t floats = queries * AttentionPartialFloats(d);
    const int64_t chunks = (args.context_end + args.rows - 2) / kAttentionChunkTokens + 1;
    std::vector<float> scratch(static_cast<size_t>(AttentionScratchFloats(args.layout)),
                               std::numeric_limits<float>::quiet_NaN());
    std::vector<float> totals(static_cast<size_t>(floats * (apart ? chunks : 1)));
    kernels.attend_chunks(args, 0, chunks, totals.data(), apart ? floats : 0, scratch.data());
    for (int64_t chunk = 1; apart && chunk < chunks; ++chunk) {
      kernels.fold_partials(&totals[static_cast<size_t>(chunk * floats)], queries, d,
                            totals.data());
    }
    std::vector<float> all(static_cast<size_t>(queries * d));
    kernels.finish_attention(totals.data(), queries, d, all.data(), d);
    std::vector<float> out;
    for (int64_t i = 0; i < queries; ++i) {
      out.insert(out.end(), all.begin() + i * d, all.begin() + i * d + latent);
    }
    return out;
  }

  void Check(const CpuKernels& kernels, const LatentShape& s) {
    SCOPED_TRACE(Describe(s));
    const std::vector<float> rows = random_.Normals((s.end + s.rows - 1) * s.row);
    const std::vector<float> q = random_.Normals(s.rows * s.group * s.row);
    const RowCache latent(
        kernels, {.num_kv_heads = 1, .head_dim = s.row, .type = s.type, .latent_values = s.latent},
        rows);
    const RowCache both(kernels, {.num_kv_heads = 1, .head_dim = s.row, .type = s.type}, rows);
    const std::vector<float> got = Attend(kernels, latent.Args(s, q), s.latent, false);
    EXPECT_TRUE(SameBits(got, Attend(kernels, latent.Args(s, q), s.latent, true)));
    // Tiles take heads of up to 256, and longer rows where their values are in them.
    const bool tiles = kernels.numerics == NumericsClass::kAmxBf16 && s.row > 256;
    const CpuKernels& others = tiles ? KernelsFor(Isa::kScalar) : kernels;
    const std::vector<float> expected = Attend(others, both.Args(s, q), s.latent, false);
    if (!tiles || s.type == WeightType::kF32) {
      EXPECT_TRUE(SameBits(got, expected));
      return;
    }
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 0.03) << i;
  }

  void CheckAll(const CpuKernels& kernels) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
      for (const auto& [row, latent] : {std::pair<int64_t, int64_t>{96, 64}, {40, 32}, {23, 17}}) {
        for (const int64_t group : {1, 5, 20}) {
          for (const int64_t rows : {1, 3}) {
            for (const int64_t end : {1, 15, 255, 256, 600}) {
              Check(kernels, {row, latent, group, rows, end, type});
            }
          }
        }
      }
      Check(kernels, {576, 512, 16, 1, 40, type});
      Check(kernels, {576, 512, 2, 8, 290, type});
    }
  }

  Random random_;
};

TEST_P(LatentAttentionTest, IsAttentionWhoseValuesAreInTheKeys) {
  CheckAll(KernelsFor(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(, LatentAttentionTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

TEST_F(LatentAttentionTest, OnEmulatedTiles) {
  CheckAll(testing_util::WithEmulatedAmx(KernelsFor(Isa::kScalar)));
  EXPECT_TRUE(testing_util::EmulatedTilesAreReleased());
}

}  // namespace
}  // namespace moesaic
