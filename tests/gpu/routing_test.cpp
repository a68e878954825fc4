// Choice of experts, grouping and summing, against plain loops on the host.
#include "kernels/cuda/routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <span>

#include "core/device/pinned_host_pool.h"
#include "tests/gpu/gpu_test_util.h"

namespace moesaic {
namespace {

using testing_util::CudaKernelTest;

struct Choice {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

class CudaRoutingTest : public CudaKernelTest {
 protected:
  Choice Route(const std::vector<float>& logits, int64_t experts, int64_t top_k, bool normalize) {
    const auto tokens = static_cast<int64_t>(logits.size()) / experts;
    const auto logits_gpu = Upload(logits);
    const auto ids = Output<int32_t>(tokens * top_k);
    const auto weights = Output<float>(tokens * top_k);
    Run([&](cuda::StreamHandle stream) {
      return cuda::RouterTopK({.logits = logits_gpu.data(),
                               .tokens = tokens,
                               .experts = experts,
                               .top_k = top_k,
                               .normalize = normalize,
                               .ids = ids.data(),
                               .weights = weights.data()},
                              stream);
    });
    return {ids.Read(), weights.Read()};
  }

  // As Model::Route does it, with the CPU's softmax.
  Choice Expected(std::vector<float> logits, int64_t experts, int64_t top_k, bool normalize) const {
    Choice choice;
    for (size_t row = 0; row < logits.size(); row += static_cast<size_t>(experts)) {
      float* p = logits.data() + row;
      reference_.softmax(p, experts, p);
      float sum = 0;
      for (int64_t slot = 0; slot < top_k; ++slot) {
        const auto best = std::max_element(p, p + experts) - p;
        choice.ids.push_back(static_cast<int32_t>(best));
        choice.weights.push_back(p[best]);
        sum += p[best];
        p[best] = -1.0f;
      }
      if (!normalize) continue;
      for (int64_t slot = 0; slot < top_k; ++slot) *(choice.weights.end() - 1 - slot) /= sum;
    }
    return choice;
  }
};

TEST_F(CudaRoutingTest, TopKOfSoftmax) {
  struct Shape {
    int64_t tokens, experts, top_k;
  };
  for (const Shape& s : {Shape{1, 1, 1},
                         {3, 8, 2},
                         {5, 33, 4},
                         {17, 64, 8},
                         {4, 128, 8},
                         {2, 257, 16},
                         {2, 1024, 10},
                         {3, 8, 8}}) {
    for (const bool normalize : {false, true}) {
      SCOPED_TRACE(fmt::format("{} tokens, top {} of {}", s.tokens, s.top_k, s.experts));
      const std::vector<float> logits = random_.Normals(s.tokens * s.experts, 2.0f);
      const Choice expected = Expected(logits, s.experts, s.top_k, normalize);
      const Choice actual = Route(logits, s.experts, s.top_k, normalize);
      // Two of these random logits are not so close that rounding could swap them.
      ASSERT_EQ(actual.ids, expected.ids);
      for (size_t i = 0; i < actual.weights.size(); ++i) {
        ASSERT_NEAR(actual.weights[i], expected.weights[i], expected.weights[i] * 1e-5) << i;
      }
    }
  }
}

// DeepSeek's routers, one token: as modeling_deepseek does it, in double precision.
struct DeepSeekRouter {
  cuda::RouterScores scores = cuda::RouterScores::kSoftmax;
  std::vector<float> bias;
  int64_t groups = 1;
  int64_t top_groups = 1;
  bool best_two = false;
  bool normalize = false;
  float scale = 1.0f;

  void Route(std::span<const float> logits, int64_t top_k, std::vector<int32_t>& ids,
             std::vector<double>& weights) const {
    const auto experts = static_cast<int64_t>(logits.size());
    std::vector<double> score(logits.begin(), logits.end());
    if (scores == cuda::RouterScores::kSigmoid) {
      for (double& s : score) s = 1 / (1 + std::exp(-s));
    } else {
      double sum = 0;
      for (double& s : score) sum += s = std::exp(s);
      for (double& s : score) s /= sum;
    }
    std::vector<double> choice = score;
    for (size_t e = 0; e < bias.size(); ++e) choice[e] += bias[e];
    const int64_t size = experts / groups;
    std::vector<std::pair<double, int64_t>> ranked;  // worst first
    for (int64_t g = 0; g < groups; ++g) {
      std::vector<double> of_group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(of_group.rbegin(), of_group.rend());
      ranked.emplace_back(of_group[0] + (best_two ? of_group[1] : 0), -g);
    }
    std::sort(ranked.begin(), ranked.end());
    for (int64_t i = 0; i < groups - top_groups; ++i) {
      const int64_t group = -ranked[static_cast<size_t>(i)].second;
      std::fill_n(choice.begin() + group * size, size, -1e30);
    }
    double sum = 0;
    const size_t first = weights.size();
    for (int64_t slot = 0; slot < top_k; ++slot) {
      const auto best = std::max_element(choice.begin(), choice.end()) - choice.begin();
      ids.push_back(static_cast<int32_t>(best));
      weights.push_back(score[static_cast<size_t>(best)]);
      sum += weights.back();
      choice[static_cast<size_t>(best)] = -1e30;
    }
    for (size_t i = first; i < weights.size(); ++i) {
      weights[i] *= scale / (normalize ? sum : 1.0);
    }
  }
};

TEST_F(CudaRoutingTest, DeepSeekRouters) {
  struct Shape {
    int64_t experts, top_k;
    DeepSeekRouter router;
  };
  using cuda::RouterScores;
  const std::vector<Shape> shapes = {
      // DeepSeek-V3, V2, V2-Lite, and odd ones.
      {256, 8, {RouterScores::kSigmoid, random_.Normals(256, 0.1f), 8, 4, true, true, 2.5f}},
      {160, 6, {RouterScores::kSoftmax, {}, 8, 3, false, false, 16.0f}},
      {64, 6, {RouterScores::kSoftmax, {}, 1, 1, false, false, 1.0f}},
      {96, 5, {RouterScores::kSigmoid, random_.Normals(96, 2.0f), 32, 3, true, false, 1.0f}},
      {30, 4, {RouterScores::kSigmoid, {}, 3, 1, false, true, 0.5f}},
      {40, 7, {RouterScores::kSigmoid, random_.Normals(40, 1.0f), 5, 5, true, true, 1.0f}}};
  for (const Shape& shape : shapes) {
    constexpr int64_t kTokens = 6;
    SCOPED_TRACE(
        fmt::format("top {} of {} in {} groups", shape.top_k, shape.experts, shape.router.groups));
    const std::vector<float> logits = random_.Normals(kTokens * shape.experts, 1.5f);
    std::vector<int32_t> expected_ids;
    std::vector<double> expected;
    for (int64_t t = 0; t < kTokens; ++t) {
      shape.router.Route(std::span(logits).subspan(static_cast<size_t>(t * shape.experts),
                                                   static_cast<size_t>(shape.experts)),
                         shape.top_k, expected_ids, expected);
    }
    const auto logits_gpu = Upload(logits);
    const auto bias = Upload(shape.router.bias);
    const auto ids = Output<int32_t>(kTokens * shape.top_k);
    const auto weights = Output<float>(kTokens * shape.top_k);
    Run([&](cuda::StreamHandle stream) {
      return cuda::RouterTopK({.logits = logits_gpu.data(),
                               .tokens = kTokens,
                               .experts = shape.experts,
                               .top_k = shape.top_k,
                               .scores = shape.router.scores,
                               .bias = shape.router.bias.empty() ? nullptr : bias.data(),
                               .groups = shape.router.groups,
                               .top_groups = shape.router.top_groups,
                               .groups_by_best_two = shape.router.best_two,
                               .normalize = shape.router.normalize,
                               .scale = shape.router.scale,
                               .ids = ids.data(),
                               .weights = weights.data()},
                              stream);
    });
    ASSERT_EQ(ids.Read(), expected_ids);
    const std::vector<float> actual = weights.Read();
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], expected[i] * 1e-5) << i;
    }
  }
}

TEST_F(CudaRoutingTest, APoisonedRowIsRoutedWithinItsGroups) {
  std::vector<float> logits = random_.Normals(32);
  logits[3] = std::numeric_limits<float>::quiet_NaN();
  const auto logits_gpu = Upload(logits);
  const auto ids = Output<int32_t>(4);
  const auto weights = Output<float>(4);
  Run([&](cuda::StreamHandle stream) {
    return cuda::RouterTopK({.logits = logits_gpu.data(),
                             .tokens = 1,
                             .experts = 32,
                             .top_k = 4,
                             .groups = 4,
                             .top_groups = 2,
                             .groups_by_best_two = true,
                             .ids = ids.data(),
                             .weights = weights.data()},
                            stream);
  });
  const std::vector<int32_t> chosen = ids.Read();
  EXPECT_EQ(std::set<int32_t>(chosen.begin(), chosen.end()).size(), 4u);
  for (const int32_t id : chosen) EXPECT_TRUE(id >= 0 && id < 32) << id;
}

TEST_F(CudaRoutingTest, GroupsOutOfRangeAreRefused) {
  const auto refused = [](const cuda::RouterTopKArgs& args) {
    return !cuda::RouterTopK(args, nullptr).ok();
  };
  EXPECT_TRUE(refused({.experts = 30, .top_k = 1, .groups = 4}));
  EXPECT_TRUE(refused({.experts = 64, .top_k = 1, .groups = 64}));
  EXPECT_TRUE(refused({.experts = 32, .top_k = 1, .groups = 4, .top_groups = 5}));
  EXPECT_TRUE(refused({.experts = 32, .top_k = 9, .groups = 4, .top_groups = 1}));
}

TEST_F(CudaRoutingTest, ATieGoesToTheLowerExpert) {
  const Choice choice = Route(std::vector<float>(70, 1.5f), 70, 3, true);
  EXPECT_EQ(choice.ids, (std::vector<int32_t>{0, 1, 2}));
  for (const float weight : choice.weights) EXPECT_NEAR(weight, 1.0f / 3, 1e-6);
}

TEST_F(CudaRoutingTest, APoisonedRowGetsValidExperts) {
  std::vector<float> logits = random_.Normals(2 * 40);
  logits[7] = std::numeric_limits<float>::quiet_NaN();
  const Choice choice = Route(logits, 40, 6, false);
  const std::set<int32_t> distinct(choice.ids.begin(), choice.ids.begin() + 6);
  EXPECT_EQ(distinct.size(), 6u);
  EXPECT_GE(*distinct.begin(), 0);
  EXPECT_LT(*distinct.rbegin(), 40);
  EXPECT_TRUE(std::isnan(choice.weights[0]));
  EXPECT_FALSE(std::isnan(choice.weights[6]));  // the other row
}

TEST_F(CudaRoutingTest, GroupsKeepTheirOrder) {
  for (const int64_t experts : {1, 7, 32, 128, 1000}) {
    for (const int64_t tokens : {1, 6, 100}) {
      constexpr int64_t kTopK = 4;
      const int64_t pairs = tokens * kTopK;
      std::vector<int32_t> ids(static_cast<size_t>(pairs));
      // Some experts are computed elsewhere, or are not experts at all.
      for (int32_t& id : ids) id = static_cast<int32_t>(random_.Uniform(-1, experts));
      const auto ids_gpu = Upload(ids);
      const auto offsets = Output<int32_t>(experts + 1);
      const auto token_rows = Output<int32_t>(pairs);
      const auto slot_rows = Output<int32_t>(pairs);
      Run([&](cuda::StreamHandle stream) {
        return cuda::GroupRows({.ids = ids_gpu.data(),
                                .pairs = pairs,
                                .top_k = kTopK,
                                .experts = experts,
                                .offsets = offsets.data(),
                                .token_rows = token_rows.data(),
                                .slot_rows = slot_rows.data()},
                               stream);
      });
      std::vector<int32_t> expected_offsets = {0};
      std::vector<int32_t> expected_slots;
      for (int64_t e = 0; e < experts; ++e) {
        for (size_t i = 0; i < ids.size(); ++i) {
          if (ids[i] == e) expected_slots.push_back(static_cast<int32_t>(i));
        }
        expected_offsets.push_back(static_cast<int32_t>(expected_slots.size()));
      }
      ASSERT_EQ(offsets.Read(), expected_offsets);
      std::vector<int32_t> slots = slot_rows.Read();
      std::vector<int32_t> tokens_of = token_rows.Read();
      slots.resize(expected_slots.size());
      ASSERT_EQ(slots, expected_slots);
      for (size_t i = 0; i < slots.size(); ++i) ASSERT_EQ(tokens_of[i], slots[i] / kTopK);
    }
  }
}

// As GroupRows of the pairs whose expert the table has, in rows that count.
TEST_F(CudaRoutingTest, ExpertsAreLookedUp) {
  constexpr int64_t kTopK = 3;
  constexpr int64_t kRows = 8;
  constexpr int64_t kPairs = kRows * kTopK;
  constexpr int64_t kSections[3] = {0, 640, 1280};
  Device& device = machine_->device();
  PinnedHostPool pool(uint64_t{1} << 16, device.numa_node(), device.host_pinner());
  for (const int64_t experts : {4, 33, 300}) {
    for (const int percent_here : {0, 50, 100}) {
      const int32_t rows = percent_here == 50 ? 5 : 8;
      const auto count = static_cast<size_t>(experts);
      const HostBuffer table = pool.Allocate(count * sizeof(std::byte*)).value();
      const HostBuffer list = pool.Allocate((count + 3) * sizeof(int32_t)).value();
      if (!device.KernelsReach(table.span())) GTEST_SKIP() << "SKIPPED: no memory is shared";
      auto** const slots = reinterpret_cast<const std::byte**>(table.data());
      auto* const missed = reinterpret_cast<int32_t*>(list.data());
      auto* const words = reinterpret_cast<uint32_t*>(missed + 1 + experts);
      const auto blobs = Upload(std::vector<std::byte>(2048 * count));
      for (int64_t e = 0; e < experts; ++e) {
        slots[e] = random_.Uniform(0, 99) < percent_here ? blobs.data() + 2048 * e : nullptr;
      }
      words[0] = words[1] = 0;
      std::vector<int32_t> ids(kPairs);
      for (int32_t& id : ids) id = static_cast<int32_t>(random_.Uniform(0, experts - 1));
      const auto ids_gpu = Upload(ids);
      const auto rows_gpu = Upload(std::vector<int32_t>{rows});
      const auto weights = Zeros<const std::byte*>(3 * experts);
      const auto offsets = Output<int32_t>(experts + 1);
      const auto token_rows = Output<int32_t>(kPairs);
      const auto slot_rows = Output<int32_t>(kPairs);
      const auto places = Output<int32_t>(kPairs);
      Run([&](cuda::StreamHandle stream) {
        return cuda::LookUpExperts(
            {.ids = ids_gpu.data(),
             .pairs = kPairs,
             .top_k = kTopK,
             .experts = experts,
             .rows = rows_gpu.data(),
             .slots = slots,
             .sections = {kSections[0], kSections[1], kSections[2]},
             .progress = words,
             .number = 17,
             .weights = {weights.data(), weights.data() + experts, weights.data() + 2 * experts},
             .offsets = offsets.data(),
             .token_rows = token_rows.data(),
             .slot_rows = slot_rows.data(),
             .places = places.data(),
             .missed = missed,
             .go = words + 1},
            stream);
      });
      const auto pairs = static_cast<size_t>(rows * kTopK);
      std::vector<int32_t> expected_offsets = {0};
      std::vector<int32_t> expected_slots;
      std::vector<int32_t> expected_missed;
      std::vector<int32_t> expected_places(kPairs, cuda::kNoRow);
      std::vector<const std::byte*> expected_weights(3 * count);
      for (int64_t e = 0; e < experts; ++e) {
        const auto at = static_cast<size_t>(e);
        bool wanted = false;
        for (size_t i = 0; i < pairs; ++i) {
          if (ids[i] != e) continue;
          wanted = true;
          expected_places[i] = slots[e] != nullptr ? static_cast<int32_t>(i) : cuda::kElsewhere;
          if (slots[e] != nullptr) expected_slots.push_back(static_cast<int32_t>(i));
        }
        if (wanted && slots[e] == nullptr) expected_missed.push_back(static_cast<int32_t>(e));
        for (size_t s = 0; wanted && slots[e] != nullptr && s < 3; ++s) {
          expected_weights[s * count + at] = slots[e] + kSections[s];
        }
        expected_offsets.push_back(static_cast<int32_t>(expected_slots.size()));
      }
      EXPECT_EQ(offsets.Read(), expected_offsets);
      EXPECT_EQ(places.Read(), expected_places);
      EXPECT_EQ(weights.Read(), expected_weights);
      std::vector<int32_t> slots_of = slot_rows.Read();
      std::vector<int32_t> tokens_of = token_rows.Read();
      slots_of.resize(expected_slots.size());
      EXPECT_EQ(slots_of, expected_slots);
      for (size_t i = 0; i < slots_of.size(); ++i) EXPECT_EQ(tokens_of[i], slots_of[i] / kTopK);
      EXPECT_EQ(std::vector<int32_t>(missed + 1, missed + 1 + missed[0]), expected_missed);
      EXPECT_EQ(words[0], 17u);
      EXPECT_EQ(words[1], expected_missed.empty() ? 1u : 0u);
    }
  }
}

TEST_F(CudaRoutingTest, TheHostIsToldWhatIsCopiedBeforeTheWord) {
  Device& device = machine_->device();
  PinnedHostPool pool(uint64_t{1} << 18, device.numa_node(), device.host_pinner());
  const HostBuffer there = pool.Allocate(uint64_t{1} << 17).value();
  if (!device.KernelsReach(there.span())) GTEST_SKIP() << "SKIPPED: no memory is shared";
  const auto run = [&](const std::vector<int64_t>& words) {
    const auto from = Upload(random_.Normals(1 << 15));
    cuda::TellHostArgs args;
    std::byte* to = there.data();
    for (size_t i = 0; i < words.size(); ++i) {
      args.from[i] = reinterpret_cast<const std::byte*>(from.data()) + 400 * i;
      args.to[i] = to;
      args.bytes[i] = 4 * words[i];
      to += args.bytes[i] + 64;  // a gap that stays as it is
    }
    args.word = reinterpret_cast<uint32_t*>(there.data() + (1 << 17) - 4);
    std::memset(there.data(), 0x5a, 1 << 17);
    Run([&](cuda::StreamHandle stream) { return cuda::TellHost(args, stream); });
    const std::vector<float> expected = from.Read();
    for (size_t i = 0; i < words.size(); ++i) {
      EXPECT_EQ(
          std::memcmp(args.to[i], expected.data() + 100 * i, static_cast<size_t>(args.bytes[i])),
          0);
      EXPECT_EQ(args.to[i][args.bytes[i]], std::byte{0x5a});
    }
    EXPECT_EQ(*args.word, 1u);
  };
  run({1, 2, 3});
  run({16, 2048, 2048});
  run({0, 5000, 11384});
  EXPECT_FALSE(cuda::TellHost({.bytes = {65536, 4, 0}}, nullptr).ok());
}

TEST_F(CudaRoutingTest, SlotsAreSummedInOrder) {
  constexpr int64_t kTokens = 3;
  constexpr int64_t kTopK = 5;
  constexpr int64_t kHidden = 301;
  const std::vector<float> slot_out = random_.Normals(kTokens * kTopK * kHidden);
  const std::vector<float> weights = random_.Normals(kTokens * kTopK);
  std::vector<float> expected = random_.Normals(kTokens * kHidden);
  const auto slot_gpu = Upload(slot_out);
  const auto weights_gpu = Upload(weights);
  const auto y = Upload(expected);
  Run([&](cuda::StreamHandle stream) {
    return cuda::CombineSlots({.slot_out = slot_gpu.data(),
                               .weights = weights_gpu.data(),
                               .tokens = kTokens,
                               .top_k = kTopK,
                               .hidden = kHidden,
                               .y = y.data()},
                              stream);
  });
  for (int64_t pair = 0; pair < kTokens * kTopK; ++pair) {
    reference_.axpy(weights[static_cast<size_t>(pair)], slot_out.data() + pair * kHidden, kHidden,
                    expected.data() + pair / kTopK * kHidden);
  }
  // The same fused multiply-adds in the same order: the same bits.
  EXPECT_TRUE(testing_util::SameBits(y.Read(), expected));
}

// The sum is of slots in their order, wherever their outputs lie.
TEST_F(CudaRoutingTest, CombineSlotsOfRowsAnywhere) {
  constexpr int64_t kTokens = 4;
  constexpr int64_t kTopK = 3;
  constexpr int64_t kHidden = 77;
  const std::vector<float> in_order = random_.Normals(kTokens * kTopK * kHidden);
  const std::vector<float> weights = random_.Normals(kTokens * kTopK);
  const std::vector<float> before = random_.Normals(kTokens * kHidden);
  std::vector<int32_t> rows(kTokens * kTopK);
  std::vector<float> anywhere(in_order.size());
  for (int64_t pair = 0; pair < kTokens * kTopK; ++pair) {
    const int64_t row = pair * 5 % (kTokens * kTopK);
    rows[static_cast<size_t>(pair)] = static_cast<int32_t>(row);
    std::copy_n(in_order.begin() + pair * kHidden, kHidden, anywhere.begin() + row * kHidden);
  }
  const auto weights_gpu = Upload(weights);
  const auto rows_gpu = Upload(rows);
  const auto sum = [&](const std::vector<float>& slot_out, const int32_t* slot_rows) {
    const auto slots = Upload(slot_out);
    const auto y = Upload(before);
    Run([&](cuda::StreamHandle stream) {
      return cuda::CombineSlots({.slot_out = slots.data(),
                                 .slot_rows = slot_rows,
                                 .weights = weights_gpu.data(),
                                 .tokens = kTokens,
                                 .top_k = kTopK,
                                 .hidden = kHidden,
                                 .y = y.data()},
                                stream);
    });
    return y.Read();
  };
  const std::vector<float> expected = sum(in_order, nullptr);
  EXPECT_TRUE(testing_util::SameBits(sum(anywhere, rows_gpu.data()), expected));
  EXPECT_FALSE(testing_util::SameBits(sum(anywhere, nullptr), expected));
}

// Some outputs lie elsewhere, and some pairs have none.
TEST_F(CudaRoutingTest, CombineSlotsOfTwoBuffers) {
  constexpr int64_t kTokens = 3;
  constexpr int64_t kTopK = 2;
  constexpr int64_t kHidden = 70;
  const std::vector<float> here = random_.Normals(kTokens * kTopK * kHidden);
  const std::vector<float> others = random_.Normals(2 * kHidden);
  const std::vector<float> weights = random_.Normals(kTokens * kTopK);
  std::vector<float> expected = random_.Normals(kTokens * kHidden);
  const std::vector<int32_t> rows = {0, ~1, ~0, 3, cuda::kNoRow, cuda::kNoRow};
  const auto here_gpu = Upload(here);
  const auto others_gpu = Upload(others);
  const auto rows_gpu = Upload(rows);
  const auto weights_gpu = Upload(weights);
  const auto y = Upload(expected);
  Run([&](cuda::StreamHandle stream) {
    return cuda::CombineSlots({.slot_out = here_gpu.data(),
                               .slot_rows = rows_gpu.data(),
                               .other_out = others_gpu.data(),
                               .weights = weights_gpu.data(),
                               .tokens = kTokens,
                               .top_k = kTopK,
                               .hidden = kHidden,
                               .y = y.data()},
                              stream);
  });
  for (int64_t pair = 0; pair < kTokens * kTopK; ++pair) {
    const int32_t row = rows[static_cast<size_t>(pair)];
    if (row == cuda::kNoRow) continue;
    const float* const out =
        row < 0 ? others.data() + int64_t{~row} * kHidden : here.data() + int64_t{row} * kHidden;
    reference_.axpy(weights[static_cast<size_t>(pair)], out, kHidden,
                    expected.data() + pair / kTopK * kHidden);
  }
  EXPECT_TRUE(testing_util::SameBits(y.Read(), expected));
}

TEST_F(CudaRoutingTest, RouterLogitsAreNotRounded) {
  for (const WeightType type : {WeightType::kBf16, WeightType::kF32}) {
    for (const auto& shape : {std::pair<int64_t, int64_t>{1, 1}, {5, 31}, {16, 64}, {33, 1100}}) {
      const int64_t experts = shape.first;
      const int64_t k = shape.second;
      SCOPED_TRACE(fmt::format("{} experts={} k={}", WeightTypeName(type), experts, k));
      constexpr int64_t kTokens = 18;  // more than a block of one token each takes
      const std::vector<float> x = random_.Normals(kTokens * k);
      const testing_util::Weights w(reference_, random_.Normals(experts * k), experts, k, type);
      const auto x_gpu = Upload(x);
      const auto w_gpu = Upload(w.matrix);
      const auto run = [&](int64_t first, int64_t tokens) {
        const auto logits = Output<float>(tokens * experts);
        Run([&](cuda::StreamHandle stream) {
          return cuda::RouterLogits({.x = x_gpu.data() + first * k,
                                     .matrix = w_gpu.data(),
                                     .f32_weights = type == WeightType::kF32,
                                     .tokens = tokens,
                                     .experts = experts,
                                     .k = k,
                                     .logits = logits.data()},
                                    stream);
        });
        return logits.Read();
      };
      const std::vector<float> all = run(0, kTokens);
      for (int64_t e = 0; e < experts; ++e) {
        const float* const row = w.values.data() + e * k;
        for (int64_t t = 0; t < kTokens; ++t) {
          double exact = 0;
          double size = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double term = static_cast<double>(x[static_cast<size_t>(t * k + i)]) * row[i];
            exact += term;
            size += std::abs(term);
          }
          // bf16 inputs would be off by up to size / 256.
          EXPECT_NEAR(all[static_cast<size_t>(t * experts + e)], exact, size * 2e-6)
              << t << " " << e;
        }
      }
      const std::vector<float> last = run(kTokens - 1, 1);
      EXPECT_TRUE(testing_util::SameBits(last, {all.end() - experts, all.end()}));
    }
  }
}

TEST_F(CudaRoutingTest, NumbersOutOfRangeAreRefused) {
  EXPECT_FALSE(cuda::RouterTopK({.tokens = 1, .experts = 1025, .top_k = 1}, nullptr).ok());
  EXPECT_FALSE(cuda::RouterTopK({.tokens = 1, .experts = 4, .top_k = 5}, nullptr).ok());
  EXPECT_FALSE(cuda::GroupRows({.pairs = 1, .top_k = 1, .experts = 0}, nullptr).ok());
}

}  // namespace
}  // namespace moesaic
