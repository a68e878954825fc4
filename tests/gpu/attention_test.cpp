// The KV cache byte for byte against the CPU's, attention against double precision, and bit for bit
// against itself however the work is cut.
#include "kernels/cuda/attention.h"

#include <cmath>
#include <numeric>

#include "tests/gpu/gpu_test_util.h"

namespace moesaic {
namespace {

using testing_util::CudaKernelTest;
using testing_util::RoundToBf16;

static_assert(cuda::kBlockTokens == kKvBlockTokens);

struct Shape {
  int64_t head_dim, kv_heads, group;
  int64_t window = 0;
};

// Rows [start, start + rows) of a request.
struct Request {
  int64_t start, rows;
  int64_t context() const { return start + rows; }
};

std::string Describe(const Shape& s) {
  return fmt::format("head_dim={} kv_heads={} group={} window={}", s.head_dim, s.kv_heads, s.group,
                     s.window);
}

class CudaAttentionTest : public CudaKernelTest {
 protected:
  // Requests in a cache of shuffled blocks; what nobody has written is NaN.
  struct Problem {
    Shape shape;
    std::vector<Request> requests;
    std::vector<std::vector<float>> keys, values;  // of each request [context, kv_heads, head_dim]
    std::vector<std::byte> cache;
    int64_t block_stride_bytes = 0;
    std::vector<int32_t> blocks;
    std::vector<int32_t> first_block;  // of each request
    std::vector<float> q;              // [rows, heads, head_dim]
    int64_t rows = 0;
  };

  Problem Make(const Shape& shape, std::vector<Request> requests) {
    Problem p;
    p.shape = shape;
    p.requests = std::move(requests);
    const KvLayout layout{shape.kv_heads, shape.head_dim, WeightType::kBf16};
    EXPECT_EQ(cuda::KvHeadBytes(shape.head_dim), layout.head_bytes());
    p.block_stride_bytes = layout.block_bytes() + 64;  // other layers' blocks may lie between
    int64_t blocks = 3;
    for (const Request& r : p.requests) {
      p.first_block.push_back(static_cast<int32_t>(p.blocks.size()));
      const int64_t count = (r.context() + kKvBlockTokens - 1) / kKvBlockTokens;
      p.blocks.resize(p.blocks.size() + static_cast<size_t>(count));
      blocks += count;
      p.rows += r.rows;
    }
    std::vector<int32_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    for (size_t i = 1; i < order.size(); ++i) {
      std::swap(order[i], order[static_cast<size_t>(random_.Uniform(0, static_cast<int64_t>(i)))]);
    }
    std::copy_n(order.begin(), p.blocks.size(), p.blocks.begin());
    p.cache.assign(static_cast<size_t>(blocks * p.block_stride_bytes), std::byte{0xFF});
    const int64_t width = shape.kv_heads * shape.head_dim;
    for (size_t i = 0; i < p.requests.size(); ++i) {
      const int64_t context = p.requests[i].context();
      p.keys.push_back(random_.Normals(context * width));
      p.values.push_back(random_.Normals(context * width));
      for (int64_t t = 0; t < context; ++t) {
        std::byte* block =
            p.cache.data() + p.blocks[static_cast<size_t>(p.first_block[i] + t / kKvBlockTokens)] *
                                 p.block_stride_bytes;
        for (int64_t h = 0; h < shape.kv_heads; ++h) {
          const auto at = static_cast<size_t>(t * width + h * shape.head_dim);
          reference_.store_kv(layout, block, h, t % kKvBlockTokens, &p.keys[i][at],
                              &p.values[i][at]);
        }
      }
      for (float& v : p.keys[i]) v = RoundToBf16(v);
      for (float& v : p.values[i]) v = RoundToBf16(v);
    }
    p.q = random_.Normals(p.rows * width * shape.group);
    for (float& v : p.q) v = RoundToBf16(v);
    return p;
  }

  // [rows, stride] with padding.
  std::vector<uint16_t> Attend(const Problem& p, bool split) {
    std::vector<cuda::AttentionSequence> sequences;
    cuda::AttentionArgs args;
    int32_t row = 0;
    for (size_t i = 0; i < p.requests.size(); ++i) {
      const Request& r = p.requests[i];
      sequences.push_back(
          {row, static_cast<int32_t>(r.rows), static_cast<int32_t>(r.start + 1), p.first_block[i]});
      row += static_cast<int32_t>(r.rows);
      args.max_rows = std::max(args.max_rows, r.rows);
      args.max_context = std::max(args.max_context, r.context());
    }
    const int64_t heads = p.shape.kv_heads * p.shape.group;
    const auto cache = Upload(p.cache);
    const auto q = Upload(p.q);
    const auto sequences_gpu = Upload(sequences);
    const auto blocks = Upload(p.blocks);
    args.cache = {cache.data(), p.block_stride_bytes, p.shape.kv_heads, p.shape.head_dim};
    args.q = q.data();
    args.q_row_stride = heads * p.shape.head_dim;
    args.heads = heads;
    args.scale = 1.0f / std::sqrt(static_cast<float>(p.shape.head_dim));
    args.window = p.shape.window;
    args.sequences = sequences_gpu.data();
    args.num_sequences = static_cast<int64_t>(sequences.size());
    args.blocks = blocks.data();
    args.out_stride = cuda::ActivationStride(heads * p.shape.head_dim);
    args.split = split;
    const auto out = Output<uint16_t>(p.rows * args.out_stride);
    const auto workspace = Output<float>(split ? cuda::AttentionWorkspaceFloats(args) : 0);
    args.out = out.data();
    args.workspace = workspace.data();
    Run([&](cuda::StreamHandle stream) { return cuda::Attention(args, stream); });
    workspace.Read();  // its guard
    return out.Read();
  }

  void CheckAgainstDouble(const Problem& p, const std::vector<uint16_t>& out) {
    const int64_t d = p.shape.head_dim;
    const int64_t heads = p.shape.kv_heads * p.shape.group;
    const int64_t width = p.shape.kv_heads * d;
    const int64_t stride = cuda::ActivationStride(heads * d);
    int64_t row = 0;
    for (size_t i = 0; i < p.requests.size(); ++i) {
      for (int64_t r = 0; r < p.requests[i].rows; ++r, ++row) {
        const int64_t end = p.requests[i].start + r + 1;
        const int64_t begin = p.shape.window > 0 ? std::max<int64_t>(0, end - p.shape.window) : 0;
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t kv = h / p.shape.group * d;
          std::vector<double> weights;
          double max = -INFINITY;
          for (int64_t t = begin; t < end; ++t) {
            double score = 0;
            for (int64_t j = 0; j < d; ++j) {
              score += static_cast<double>(p.q[static_cast<size_t>((row * heads + h) * d + j)]) *
                       p.keys[i][static_cast<size_t>(t * width + kv + j)];
            }
            weights.push_back(score / std::sqrt(static_cast<double>(d)));
            max = std::max(max, weights.back());
          }
          double sum = 0;
          for (double& weight : weights) sum += weight = std::exp(weight - max);
          for (int64_t j = 0; j < d; ++j) {
            double exact = 0;
            double magnitude = 0;
            for (int64_t t = begin; t < end; ++t) {
              const double term = weights[static_cast<size_t>(t - begin)] / sum *
                                  p.values[i][static_cast<size_t>(t * width + kv + j)];
              exact += term;
              magnitude += std::abs(term);
            }
            // Probabilities are rounded to bf16, which is what limits the result; the scores' own
            // errors are far smaller.
            const auto at = static_cast<size_t>(row * stride + h * d + j);
            ASSERT_NEAR(Bf16ToF32(out[at]), exact, magnitude * 0x1p-8 + std::abs(exact) * 0x1p-8)
                << "row " << row << " head " << h << " dim " << j;
          }
        }
        for (int64_t j = heads * d; j < stride; ++j) {
          ASSERT_EQ(out[static_cast<size_t>(row * stride + j)], 0);
        }
      }
    }
  }
};

TEST_F(CudaAttentionTest, StoresKeysAndValuesAsTheCpuDoes) {
  for (const int64_t head_dim : {2, 34, 64, 80, 128, 256}) {
    constexpr int64_t kKvHeads = 3;
    const KvLayout layout{kKvHeads, head_dim, WeightType::kBf16};
    const int64_t stride = layout.block_bytes() + 128;
    const int64_t token_stride = 2 * kKvHeads * head_dim + 5;
    const std::vector<int32_t> slots = {0, 1, 33, -1, 47, 18};
    const auto tokens = static_cast<int64_t>(slots.size());
    const std::vector<float> kv = random_.Normals(tokens * token_stride);
    std::vector<std::byte> expected(static_cast<size_t>(3 * stride), std::byte{0x11});
    const auto cache = Upload(expected);
    const auto kv_gpu = Upload(kv);
    const auto slots_gpu = Upload(slots);
    const int64_t values_at = kKvHeads * head_dim;
    Run([&](cuda::StreamHandle stream) {
      return cuda::StoreKv({.cache = {cache.data(), stride, kKvHeads, head_dim},
                            .keys = kv_gpu.data(),
                            .values = kv_gpu.data() + values_at,
                            .token_stride = token_stride,
                            .tokens = tokens,
                            .slots = slots_gpu.data()},
                           stream);
    });
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t slot = slots[static_cast<size_t>(t)];
      if (slot < 0) continue;
      for (int64_t h = 0; h < kKvHeads; ++h) {
        const float* key = kv.data() + t * token_stride + h * head_dim;
        reference_.store_kv(layout, expected.data() + slot / kKvBlockTokens * stride, h,
                            slot % kKvBlockTokens, key, key + values_at);
      }
    }
    EXPECT_EQ(cache.Read(), expected) << head_dim;
  }
}

TEST_F(CudaAttentionTest, DecodeSteps) {
  for (const Shape& shape : {Shape{32, 2, 4},
                             {64, 1, 8},
                             {128, 2, 1},
                             {80, 1, 5},
                             {256, 1, 2},
                             {96, 1, 17},
                             {2, 1, 1},
                             {192, 1, 3}}) {
    SCOPED_TRACE(Describe(shape));
    const Problem p =
        Make(shape, {{0, 1}, {15, 1}, {16, 1}, {254, 1}, {255, 1}, {256, 1}, {600, 1}});
    for (const bool split : {false, true}) {
      CheckAgainstDouble(p, Attend(p, split));
    }
  }
}

TEST_F(CudaAttentionTest, Prompts) {
  for (const Shape& shape : {Shape{64, 2, 4}, {128, 1, 3}, {48, 2, 2}, {256, 1, 1}}) {
    SCOPED_TRACE(Describe(shape));
    const Problem p = Make(shape, {{0, 1}, {0, 37}, {250, 20}, {3, 16}, {99, 1}});
    for (const bool split : {false, true}) {
      CheckAgainstDouble(p, Attend(p, split));
    }
  }
}

TEST_F(CudaAttentionTest, SlidingWindows) {
  for (const int64_t window : {1, 7, 16, 40, 300}) {
    const Shape shape{64, 1, 4, window};
    SCOPED_TRACE(Describe(shape));
    const Problem p = Make(shape, {{0, 25}, {290, 12}, {511, 1}});
    for (const bool split : {false, true}) {
      CheckAgainstDouble(p, Attend(p, split));
    }
  }
}

// Architecture, rule 1: split or not, alone or in a batch, in one piece or row by row: the same
// bits.
TEST_F(CudaAttentionTest, TheCutOfTheWorkChangesNoBit) {
  for (const int64_t window : {0, 30}) {
    const Shape shape{64, 1, 3, window};
    const int64_t stride = cuda::ActivationStride(3 * 64);
    Problem p = Make(shape, {{270, 23}, {0, 7}});
    const std::vector<uint16_t> whole = Attend(p, false);
    EXPECT_EQ(Attend(p, true), whole);
    const int64_t width = 3 * 64;
    for (const int64_t row : {0, 1, 10, 22}) {
      Problem one = p;
      one.requests = {{270 + row, 1}};
      one.rows = 1;
      one.q.assign(p.q.begin() + row * width, p.q.begin() + (row + 1) * width);
      const std::vector<uint16_t> expected(whole.begin() + row * stride,
                                           whole.begin() + (row + 1) * stride);
      EXPECT_EQ(Attend(one, false), expected) << "row " << row;
      EXPECT_EQ(Attend(one, true), expected) << "row " << row;
    }
  }
}

TEST_F(CudaAttentionTest, HeadSizesOutOfRangeAreRefused) {
  for (const int64_t head_dim : {0, 33, 258}) {
    cuda::AttentionArgs args;
    args.cache = {nullptr, 0, 1, head_dim};
    args.heads = 1;
    EXPECT_FALSE(cuda::Attention(args, nullptr).ok()) << head_dim;
  }
}

}  // namespace
}  // namespace moesaic
