// The MoE operator and the parallel products: against a naive MoE, and bit for bit over threads,
// batch mates and the order of experts.
#include "kernels/cpu/moe.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "kernels/cpu/product_grid.h"
#include "tests/kernels/cpu/kernel_test_util.h"

namespace moesaic {
namespace {

using testing_util::Activations;
using testing_util::DotOf;
using testing_util::Random;
using testing_util::RoundToBf16;
using testing_util::SameBits;
using testing_util::TestSeed;
using testing_util::Weights;

// Threads take turns on nodes, which are not those of this machine.
ThreadLayout OverNodes(int nodes) {
  ThreadLayout layout;
  for (int node = 0; node < nodes; ++node) {
    layout.nodes.push_back(node);
    layout.places.push_back({{}, node});
  }
  return layout;
}

struct ExpertWeights {
  std::unique_ptr<Weights> gate, up, down;
  std::vector<float> gate_bias, up_bias, down_bias;  // empty: none
};

// Low enough that some sums are clamped and some are not.
constexpr GatedActivation kClamped = {.clamped = true, .alpha = 1.702f, .limit = 0.75f};

// A layer of random experts of different widths, and tokens routed to them.
class Layer {
 public:
  Layer(const CpuKernels& kernels, Random& random, int64_t experts, int64_t hidden,
        int64_t intermediate, int64_t tokens, int64_t top_k, WeightType type = WeightType::kBf16)
      : kernels_(kernels),
        type_(type),
        hidden_(hidden),
        tokens_(tokens),
        top_k_(top_k),
        x_(kernels, random.Normals(tokens * hidden), tokens, hidden, type) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(hidden));
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t width = intermediate - e % 3;
      ExpertWeights w;
      w.gate = std::make_unique<Weights>(kernels, random.Normals(width * hidden, scale), width,
                                         hidden, type);
      w.up = std::make_unique<Weights>(kernels, random.Normals(width * hidden, scale), width,
                                       hidden, type);
      w.down = std::make_unique<Weights>(kernels, random.Normals(width * hidden, scale), hidden,
                                         width, type);
      weights_.push_back(std::move(w));
    }
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int32_t> ids(experts);
      std::iota(ids.begin(), ids.end(), 0);
      for (int64_t s = 0; s < top_k; ++s) {
        std::swap(ids[s], ids[random.Uniform(s, experts - 1)]);
        routes_.push_back(ids[s]);
        routing_weights_.push_back(std::abs(random.Normal()));
      }
    }
  }

  // As the experts of gpt-oss.
  void AddBiasesAndClamp(Random& random) {
    for (ExpertWeights& w : weights_) {
      w.gate_bias = random.Normals(w.gate->matrix.n, 0.5f);
      w.up_bias = random.Normals(w.up->matrix.n, 0.5f);
      w.down_bias = random.Normals(w.down->matrix.n, 0.5f);
    }
    clamped_ = true;
  }

  // Slot outputs of tokens [0, tokens) computed in calls of `experts_per_call` experts.
  std::vector<float> Run(int threads, int64_t tokens, int64_t experts_per_call, bool reversed,
                         int nodes = 1) {
    ThreadPool pool(threads, OverNodes(nodes));
    return RunOn(pool, tokens, experts_per_call, reversed);
  }

  std::vector<float> RunOn(ThreadPool& pool, int64_t tokens, int64_t experts_per_call,
                           bool reversed) {
    MoeWorkspace workspace;
    workspace.Reserve(x_.type, tokens * top_k_, MaxWidth());
    std::vector<float> slots(tokens * top_k_ * hidden_, -1.0f);
    std::vector<int64_t> order(weights_.size());
    std::iota(order.begin(), order.end(), 0);
    if (reversed) std::reverse(order.begin(), order.end());
    for (size_t begin = 0; begin < order.size(); begin += experts_per_call) {
      std::vector<std::vector<int32_t>> token_rows, slot_rows;
      std::vector<ExpertWork> work;
      const size_t end = std::min(begin + experts_per_call, order.size());
      for (size_t i = begin; i < end; ++i) {
        token_rows.emplace_back();
        slot_rows.emplace_back();
        for (int64_t slot = 0; slot < tokens * top_k_; ++slot) {
          if (routes_[slot] != order[i]) continue;
          token_rows.back().push_back(static_cast<int32_t>(slot / top_k_));
          slot_rows.back().push_back(static_cast<int32_t>(slot));
        }
      }
      for (size_t i = begin; i < end; ++i) {
        const ExpertWeights& w = weights_[order[i]];
        work.push_back({w.gate->matrix, w.up->matrix, w.down->matrix, token_rows[i - begin].data(),
                        slot_rows[i - begin].data(),
                        static_cast<int64_t>(token_rows[i - begin].size())});
        if (!clamped_) continue;
        work.back().gate_bias = w.gate_bias.data();
        work.back().up_bias = w.up_bias.data();
        work.back().down_bias = w.down_bias.data();
        work.back().activation = kClamped;
      }
      RunExperts(pool, kernels_, x_.memory.data(), x_.stride_bytes, work, slots.data(), workspace);
    }
    return slots;
  }

  std::vector<float> Combine(int threads, const std::vector<float>& slots, float start) {
    ThreadPool pool(threads);
    std::vector<float> y(tokens_ * hidden_, start);
    CombineSlots(pool, kernels_, slots.data(), routing_weights_.data(), tokens_, top_k_, hidden_,
                 y.data());
    return y;
  }

  void CheckAgainstNaive(const std::vector<float>& slots) {
    const bool bf16 = x_.type == ActivationType::kBf16;
    for (int64_t slot = 0; slot < tokens_ * top_k_; ++slot) {
      const ExpertWeights& w = weights_[routes_[slot]];
      const int64_t width = w.gate->matrix.n;
      const float* x = &x_.values[slot / top_k_ * hidden_];
      std::vector<float> h;
      const double rounding = x_.type == ActivationType::kF32 ? 1e-5 : 4e-3;
      for (int64_t i = 0; i < width; ++i) {
        double g = DotOf(x, &w.gate->values[i * hidden_], hidden_).sum;
        double u = DotOf(x, &w.up->values[i * hidden_], hidden_).sum;
        double product = g / (1.0 + std::exp(-g)) * u;
        if (clamped_) {
          const auto limit = static_cast<double>(kClamped.limit);
          g = std::min(g + static_cast<double>(w.gate_bias[i]), limit);
          u = std::clamp(u + static_cast<double>(w.up_bias[i]), -limit, limit);
          const double alpha = static_cast<double>(kClamped.alpha);
          product = (u + 1.0) * g / (1.0 + std::exp(-alpha * g));
        }
        const auto value = static_cast<float>(product);
        h.push_back(bf16 ? RoundToBf16(value) : value);
      }
      if (IsQuantized(type_)) h = Activations(kernels_, h, 1, width, type_).values;
      for (int64_t i = 0; i < hidden_; ++i) {
        const auto dot = DotOf(h.data(), &w.down->values[i * width], width);
        // A hidden value near the middle of two bf16 or int8 may round to the other one.
        const double bias = clamped_ ? static_cast<double>(w.down_bias[i]) : 0.0;
        ASSERT_NEAR(slots[slot * hidden_ + i], dot.sum + bias, dot.magnitude * rounding + 1e-6)
            << "slot " << slot << " output " << i;
      }
    }
  }

  int64_t MaxWidth() const {
    int64_t width = 0;
    for (const ExpertWeights& w : weights_) width = std::max(width, w.gate->matrix.n);
    return width;
  }
  const std::vector<float>& routing_weights() const { return routing_weights_; }

 private:
  const CpuKernels& kernels_;
  WeightType type_;
  int64_t hidden_, tokens_, top_k_;
  bool clamped_ = false;
  Activations x_;
  std::vector<ExpertWeights> weights_;
  std::vector<int32_t> routes_;  // [tokens, top_k]
  std::vector<float> routing_weights_;
};

class MoeTest : public ::testing::TestWithParam<Isa> {
 protected:
  MoeTest() : trace_(__FILE__, __LINE__, "seed " + std::to_string(TestSeed())) {}
  const CpuKernels& kernels_ = KernelsFor(GetParam());
  Random random_;
  ::testing::ScopedTrace trace_;
};

TEST_P(MoeTest, MatchesNaive) {
  for (const WeightType type :
       {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4, WeightType::kMxfp4F32}) {
    for (const int64_t tokens : {1, 2, 9, 40}) {
      SCOPED_TRACE(WeightTypeName(type));
      Layer layer(kernels_, random_, 7, 100, 52, tokens, 3, type);
      layer.CheckAgainstNaive(layer.Run(2, tokens, 7, false));
    }
  }
}

TEST_P(MoeTest, ClampedActivationAndBiasesMatchNaive) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32, WeightType::kInt8,
                                WeightType::kInt4, WeightType::kMxfp4F32}) {
    for (const int64_t tokens : {1, 9, 40}) {
      SCOPED_TRACE(WeightTypeName(type));
      Layer layer(kernels_, random_, 5, 100, 52, tokens, 3, type);
      layer.AddBiasesAndClamp(random_);
      const std::vector<float> slots = layer.Run(2, tokens, 5, false);
      layer.CheckAgainstNaive(slots);
      EXPECT_TRUE(SameBits(layer.Run(3, tokens, 1, true, 2), slots));
    }
  }
}

// A sum that is no number ends its request, and must not be clamped to one.
TEST_P(MoeTest, ClampingKeepsNan) {
  constexpr int64_t kHidden = 32, kWidth = 16;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Weights w(kernels_, random_.Normals(kWidth * kHidden), kWidth, kHidden, WeightType::kBf16);
  const Activations x(kernels_, random_.Normals(kHidden), 1, kHidden);
  for (const bool in_gate : {true, false}) {
    const std::vector<float> poisoned(kWidth, nan), zeros(kWidth, 0.0f);
    AlignedBuffer h(static_cast<size_t>(ActivationRowBytes(x.type, kWidth)));
    GateUpArgs args;
    args.x = x.memory.data();
    args.x_stride_bytes = x.stride_bytes;
    args.m = 1;
    args.gate = args.up = w.matrix;
    args.panel_end = 1;
    args.gate_bias = in_gate ? poisoned.data() : zeros.data();
    args.up_bias = in_gate ? zeros.data() : poisoned.data();
    args.activation = kClamped;
    args.h = h.data();
    args.h_stride_bytes = static_cast<int64_t>(h.bytes());
    kernels_.gate_up(args);
    for (int64_t i = 0; i < kWidth; ++i) {
      const float value =
          x.type == ActivationType::kF32 ? h.as<float>()[i] : Bf16ToF32(h.as<uint16_t>()[i]);
      EXPECT_TRUE(std::isnan(value)) << in_gate << " " << i;
    }
  }
}

TEST_P(MoeTest, BitsDoNotDependOnThreadsOrderWavesOrBatchMates) {
  constexpr int64_t kTokens = 150, kHidden = 200, kTopK = 2;
  for (const WeightType type :
       {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4, WeightType::kMxfp4F32}) {
    SCOPED_TRACE(WeightTypeName(type));
    Layer layer(kernels_, random_, 5, kHidden, 88, kTokens, kTopK, type);
    const std::vector<float> all = layer.Run(1, kTokens, 5, false);
    EXPECT_TRUE(SameBits(layer.Run(2, kTokens, 5, false), all));
    EXPECT_TRUE(SameBits(layer.Run(5, kTokens, 5, true), all));
    EXPECT_TRUE(SameBits(layer.Run(2, kTokens, 1, true), all));
    for (const int64_t tokens : {1, 2, 7, 33}) {
      const std::vector<float> some = layer.Run(2, tokens, 2, false);
      EXPECT_TRUE(SameBits(some, {all.begin(), all.begin() + tokens * kTopK * kHidden})) << tokens;
    }
    const std::vector<float> y = layer.Combine(1, all, 0.5f);
    for (const int threads : {2, 3, 7}) EXPECT_TRUE(SameBits(layer.Combine(threads, all, 0.5f), y));
  }
}

// An intermediate size that neither nodes nor groups divide, and more nodes than some slices.
TEST_P(MoeTest, BitsDoNotDependOnNodes) {
  constexpr int64_t kTokens = 40, kHidden = 200, kTopK = 2;
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    for (const int64_t width : {17, 88, 163}) {
      SCOPED_TRACE(fmt::format("{} {}", WeightTypeName(type), width));
      Layer layer(kernels_, random_, 5, kHidden, width, kTokens, kTopK, type);
      const std::vector<float> one = layer.Run(1, kTokens, 5, false);
      layer.CheckAgainstNaive(one);
      for (const int nodes : {2, 3}) {
        for (const int threads : {1, 2, 5}) {
          EXPECT_TRUE(SameBits(layer.Run(threads, kTokens, 5, false, nodes), one))
              << threads << " threads on " << nodes << " nodes";
        }
        EXPECT_TRUE(SameBits(layer.Run(2, kTokens, 2, true, nodes), one)) << nodes << " nodes";
      }
    }
  }
}

TEST_P(MoeTest, CombinesInSlotOrder) {
  for (const int64_t tokens : {1, 3, 64}) {
    constexpr int64_t kHidden = 1000, kTopK = 6;
    Layer layer(kernels_, random_, 8, kHidden, 4, tokens, kTopK);
    const std::vector<float> slots = random_.Normals(tokens * kTopK * kHidden);
    std::vector<float> expected(tokens * kHidden, 0.25f);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t s = 0; s < kTopK; ++s) {
        for (int64_t i = 0; i < kHidden; ++i) {
          float& y = expected[t * kHidden + i];
          y = std::fma(layer.routing_weights()[t * kTopK + s], slots[(t * kTopK + s) * kHidden + i],
                       y);
        }
      }
    }
    for (const int threads : {1, 4}) {
      EXPECT_TRUE(SameBits(layer.Combine(threads, slots, 0.25f), expected)) << tokens;
    }
  }
}

TEST_P(MoeTest, CombinesTheSlotsOfOneMask) {
  constexpr int64_t kTokens = 2, kTopK = 3, kHidden = 5;
  const std::vector<uint8_t> mask = {0, 1, 1, 1, 0, 0};
  const std::vector<float> weights = {1, 2, 4, 8, 16, 32};
  const std::vector<float> slots(kTokens * kTopK * kHidden, 1.0f);
  ThreadPool pool(2);
  const auto combined = [&](SlotMask some) {
    std::vector<float> y(kTokens * kHidden, 0.0f);
    CombineSlots(pool, kernels_, slots.data(), weights.data(), kTokens, kTopK, kHidden, y.data(),
                 some);
    return std::vector<float>{y.front(), y.back()};
  };
  EXPECT_EQ(combined({mask.data(), 0}), (std::vector<float>{1, 16 + 32}));
  EXPECT_EQ(combined({mask.data(), 1}), (std::vector<float>{2 + 4, 8}));
  EXPECT_EQ(combined({}), (std::vector<float>{7, 56}));
}

TEST_P(MoeTest, NothingToDo) {
  ThreadPool pool(2);
  MoeWorkspace workspace;
  RunExperts(pool, kernels_, nullptr, 0, {}, nullptr, workspace);
  const Weights w(kernels_, random_.Normals(16), 4, 4, WeightType::kBf16);
  const ExpertWork idle = {w.matrix, w.matrix, w.matrix, nullptr, nullptr, 0};
  RunExperts(pool, kernels_, nullptr, 0, {&idle, 1}, nullptr, workspace);
  CombineSlots(pool, kernels_, nullptr, nullptr, 0, 2, 8, nullptr);
  MatmulArgs args;
  args.w = w.matrix;
  ParallelMatmul(pool, kernels_, args);
}

using MoeDeathTest = MoeTest;
TEST_P(MoeDeathTest, TooSmallWorkspaceIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  ThreadPool pool(1);
  MoeWorkspace workspace;
  workspace.Reserve(ActivationType::kF32, 1, 4);
  const Weights w(kernels_, random_.Normals(100 * 100), 100, 100, WeightType::kBf16);
  const Activations x(kernels_, random_.Normals(100 * 40), 40, 100);
  std::vector<int32_t> rows(40);
  std::vector<float> out(40 * 100);
  const ExpertWork work = {w.matrix, w.matrix, w.matrix, rows.data(), rows.data(), 40};
  EXPECT_DEATH(RunExperts(pool, kernels_, x.memory.data(), x.stride_bytes, {&work, 1}, out.data(),
                          workspace),
               "CHECK|against");
}

TEST_P(MoeTest, ParallelProductsEqualTheKernel) {
  for (const auto& [m, nodes] :
       {std::pair<int64_t, int>{1, 1}, {5, 1}, {200, 1}, {500, 1}, {1, 2}, {5, 3}, {200, 2}}) {
    ThreadPool pool(3, OverNodes(nodes));
    constexpr int64_t kN = 300, kK = 96;
    const Activations x(kernels_, random_.Normals(m * kK), m, kK);
    const Weights w(kernels_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
    const Weights up(kernels_, random_.Normals(kN * kK), kN, kK, WeightType::kBf16);
    for (const bool gathered : {false, true}) {
      std::vector<int32_t> from(m), to(m);
      for (int64_t r = 0; r < m; ++r) {
        from[r] = static_cast<int32_t>((r * 3) % m);
        to[r] = static_cast<int32_t>(m - 1 - r);
      }
      std::vector<float> expected(m * kN), y(m * kN);
      MatmulArgs args;
      args.x = x.memory.data();
      args.x_stride_bytes = x.stride_bytes;
      args.x_rows = gathered ? from.data() : nullptr;
      args.m = m;
      args.w = w.matrix;
      args.panel_end = w.matrix.panels();
      args.y = expected.data();
      args.y_stride = kN;
      args.y_rows = gathered ? to.data() : nullptr;
      kernels_.matmul(args);
      args.y = y.data();
      args.panel_end = 0;  // ignored
      ParallelMatmul(pool, kernels_, args);
      EXPECT_TRUE(SameBits(y, expected)) << m;

      const int64_t stride = ActivationRowBytes(x.type, kN);
      AlignedBuffer h(static_cast<size_t>(m * stride)), parallel_h(static_cast<size_t>(m * stride));
      GateUpArgs both;
      both.x = args.x;
      both.x_stride_bytes = args.x_stride_bytes;
      both.x_rows = args.x_rows;
      both.m = m;
      both.gate = w.matrix;
      both.up = up.matrix;
      both.panel_end = w.matrix.panels();
      both.h = h.data();
      both.h_stride_bytes = stride;
      kernels_.gate_up(both);
      both.h = parallel_h.data();
      ParallelGateUp(pool, kernels_, both);
      EXPECT_TRUE(std::equal(h.data(), h.data() + h.bytes(), parallel_h.data())) << m;
    }
  }
}

// On a pool of one thread, what is run in which order is the queue's choice alone: that of a thread
// of the second node.
TEST(MoeNodesTest, OwnSlicesComeFirst) {
  static const CpuKernels& base = KernelsFor(Isa::kScalar);
  static std::vector<int64_t> gate_up, down;  // first panels
  CpuKernels table = base;
  table.gate_up = [](const GateUpArgs& args) {
    gate_up.push_back(args.panel_begin);
    base.gate_up(args);
  };
  table.matmul = [](const MatmulArgs& args) {
    down.push_back(args.panel_begin);
    base.matmul(args);
  };
  ThreadLayout layout;
  layout.nodes = {0, 1};
  layout.places = {{{}, 1}};
  Random random;
  Layer layer(table, random, 2, 512, 256, 6, 2);
  gate_up.clear();
  down.clear();
  ThreadPool pool(1, layout);
  EXPECT_EQ(pool.node(0), 1);
  layer.RunOn(pool, 6, 2, false);
  const auto second_node_first = [](const std::vector<int64_t>& panels, int64_t border) {
    return panels.front() >= border &&
           std::is_partitioned(panels.begin(), panels.end(),
                               [&](int64_t panel) { return panel >= border; });
  };
  EXPECT_TRUE(second_node_first(gate_up, PanelSlice(16, 2, 1).begin));
  EXPECT_TRUE(second_node_first(down, PanelSlice(32, 2, 1).begin));
  EXPECT_GT(down.size(), 2u);

  down.clear();
  const Activations x(table, random.Normals(64), 1, 64);
  const Weights w(table, random.Normals(int64_t{320} * 64), 320, 64, WeightType::kBf16);
  std::vector<float> y(320);
  ParallelMatmul(pool, table,
                 {.x = x.memory.data(),
                  .x_stride_bytes = x.stride_bytes,
                  .m = 1,
                  .w = w.matrix,
                  .y = y.data(),
                  .y_stride = 320});
  EXPECT_TRUE(second_node_first(down, PanelSlice(20, 2, 1).begin));
}

INSTANTIATE_TEST_SUITE_P(, MoeTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);
INSTANTIATE_TEST_SUITE_P(, MoeDeathTest, ::testing::ValuesIn(testing_util::SupportedIsas()),
                         testing_util::IsaParamName);

}  // namespace
}  // namespace moesaic
