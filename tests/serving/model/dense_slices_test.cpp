// How the dense weights are cut over devices: nothing is left out or twice, and every output of a
// slice has the weights that it has in the whole.
#include "serving/model/dense_slices.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "tests/core/config/made_up_layers.h"
#include "tests/serving/model/odd_model.h"

namespace moesaic {
namespace {

TEST(DenseSlicesTest, OutputsAreSharedOutInWholePanels) {
  for (const int64_t n : {1, 16, 31, 56, 171, 4096, 151936}) {
    for (const int devices : {1, 2, 3, 5, 8, 16}) {
      int64_t end = 0;
      int64_t least = n;
      int64_t most = 0;
      for (int d = 0; d < devices; ++d) {
        const RowRange slice = OutputSlice(n, devices, d);
        EXPECT_EQ(slice.begin, end);
        if (slice.count() > 0) {
          EXPECT_EQ(slice.begin % kPanelOutputs, 0);
        }
        end = slice.end;
        least = std::min(least, slice.count());
        most = std::max(most, slice.count());
      }
      EXPECT_EQ(end, n);
      // The last panels may be short.
      EXPECT_LE(most - least, 2 * 8 * kPanelOutputs) << n << " over " << devices;
    }
  }
}

TEST(DenseSlicesTest, KvHeadsAreSharedOut) {
  const auto counts = [](int64_t heads, int devices) {
    std::vector<int64_t> counted;
    int64_t end = 0;
    for (int d = 0; d < devices; ++d) {
      const RowRange slice = KvHeadSlice(heads, devices, d);
      EXPECT_EQ(slice.begin, end);
      end = slice.end;
      counted.push_back(slice.count());
    }
    EXPECT_EQ(end, heads);
    return counted;
  };
  EXPECT_EQ(counts(8, 2), (std::vector<int64_t>{4, 4}));
  EXPECT_EQ(counts(8, 3), (std::vector<int64_t>{2, 3, 3}));
  EXPECT_EQ(counts(2, 3), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(counts(1, 4), (std::vector<int64_t>{0, 0, 0, 1}));
}

class SlicedWeights : public testing::TestWithParam<WeightType> {
 protected:
  // Rows [from, ...) of the whole matrix are those of the slice from row `row` on.
  void ExpectRows(const PackedMatrix& slice, int64_t row, const PackedMatrix& whole,
                  RowRange from) {
    if (from.count() == 0) return;
    ASSERT_EQ(slice.k, whole.k);
    std::vector<float> expected(static_cast<size_t>(whole.k));
    std::vector<float> actual(expected.size());
    for (int64_t i = 0; i < from.count(); ++i) {
      kernels_.unpack_row(whole, from.begin + i, expected.data());
      kernels_.unpack_row(slice, row + i, actual.data());
      ASSERT_EQ(actual, expected) << i;
    }
  }
  void ExpectSlice(const PackedMatrix& slice, const PackedMatrix& whole, int devices, int device) {
    const RowRange rows = OutputSlice(whole.n, devices, device);
    ASSERT_EQ(slice.n, rows.count());
    ExpectRows(slice, 0, whole, rows);
  }

  const CpuKernels& kernels_ = KernelsFor(Isa::kScalar);
};

TEST_P(SlicedWeights, AreThoseOfTheWhole) {
  for (const bool tied : {false, true}) {
    ModelConfig config = OddModel();
    config.tie_word_embeddings = tied;
    ChangeAttention(config, [](GroupedQuerySpec& spec) { spec.qk_norm = QkNorm::kPerHead; });
    ThreadPool pool(1);
    const ModelWeights whole =
        ModelWeights::Load(config, GetParam(), MadeUpTensors(), kernels_, pool);
    const GroupedQuerySpec& attention = config.attention();
    const int64_t d = attention.head_dim;
    const int64_t group = attention.group();
    const int64_t keys = attention.q_width();
    const int64_t values = keys + attention.kv_width();
    for (const int devices : {1, 2, 3, 5}) {
      for (int device = 0; device < devices; ++device) {
        SCOPED_TRACE(testing::Message() << "device " << device << " of " << devices);
        const uint64_t bytes = DenseSlices::Bytes(config, GetParam(), devices, device);
        AlignedBuffer memory(bytes);
        DenseSlices slices(config, whole, devices, device, memory.data());
        for (const DenseSlices::Piece& piece : slices.pieces()) {
          ASSERT_LE(piece.offset + piece.source.size(), bytes);
          std::memcpy(memory.data() + piece.offset, piece.source.data(), piece.source.size());
        }
        const ModelWeights part = slices.TakeWeights();
        ExpectSlice(part.head, whole.head, devices, device);
        ASSERT_EQ(part.embedding.n, device == 0 ? config.vocab_size : 0);
        ExpectRows(part.embedding, 0, whole.embedding, {0, part.embedding.n});
        EXPECT_EQ(std::memcmp(part.final_norm, whole.final_norm,
                              static_cast<size_t>(config.hidden_size) * sizeof(float)),
                  0);
        const RowRange heads = KvHeadSlice(attention.kv_heads, devices, device);
        for (size_t l = 0; l < whole.layers.size(); ++l) {
          const LayerWeights& from = whole.layers[l];
          const LayerWeights& w = part.layers[l];
          ASSERT_EQ(w.attention().qkv.n(), heads.count() * (group + 2) * d);
          ExpectRows(w.attention().qkv.whole(), 0, from.attention().qkv.whole(),
                     {heads.begin * group * d, heads.end * group * d});
          ExpectRows(w.attention().qkv.whole(), heads.count() * group * d,
                     from.attention().qkv.whole(), {keys + heads.begin * d, keys + heads.end * d});
          ExpectRows(w.attention().qkv.whole(), heads.count() * (group + 1) * d,
                     from.attention().qkv.whole(),
                     {values + heads.begin * d, values + heads.end * d});
          ExpectSlice(w.attention().output, from.attention().output, devices, device);
          ExpectSlice(w.gate, from.gate, devices, device);
          ExpectSlice(w.up, from.up, devices, device);
          ExpectSlice(w.down, from.down, devices, device);
          ASSERT_EQ(w.router.n, device == 0 ? from.router.n : 0);
          ExpectRows(w.router, 0, from.router, {0, w.router.n});
          EXPECT_EQ(std::memcmp(w.input_norm, from.input_norm,
                                static_cast<size_t>(config.hidden_size) * sizeof(float)),
                    0);
          EXPECT_EQ(std::memcmp(w.attention().q_norm, from.attention().q_norm,
                                static_cast<size_t>(d) * sizeof(float)),
                    0);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SlicedWeights,
                         testing::Values(WeightType::kBf16, WeightType::kInt8, WeightType::kInt4),
                         [](const auto& param) {
                           return std::string(WeightTypeName(param.param));
                         });

}  // namespace
}  // namespace moesaic
