// The collection and its incremental match against whole matrices in double precision.
#include "tracer/eam_collection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/kernels.h"

namespace moesaic {
namespace {

class EamCollectionTest : public ::testing::TestWithParam<Isa> {
 protected:
  const CpuKernels& kernels_ = KernelsFor(GetParam());
};

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (IsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

INSTANTIATE_TEST_SUITE_P(Isas, EamCollectionTest, ::testing::ValuesIn(SupportedIsas()),
                         [](const auto& isa) { return std::string(IsaName(isa.param)); });

// Requests of a few kinds, each with favourite experts: `tokens` tokens of top_k experts a layer.
// Layers below first_layer have none.
class Requests {
 public:
  Requests(int layers, int experts, int top_k, int first_layer = 0)
      : layers_(layers), experts_(experts), top_k_(top_k), first_layer_(first_layer) {}

  ExpertActivationMatrix Make(int tokens) {
    const int kind = Uniform(0, 7);
    ExpertActivationMatrix eam(layers_, experts_);
    for (int t = 0; t < tokens; ++t) {
      for (int layer = first_layer_; layer < layers_; ++layer) {
        for (int k = 0; k < top_k_; ++k) {
          const bool favourite = Uniform(0, 3) > 0;
          const int at = favourite ? kind * 5 + layer + Uniform(0, 5) : Uniform(0, experts_ - 1);
          eam.Add(layer, at % experts_);
        }
      }
    }
    return eam;
  }
  int Uniform(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }

 private:
  std::mt19937 engine_{7};
  int layers_;
  int experts_;
  int top_k_;
  int first_layer_;
};

// Similarities are compared to what float holds; ranks where the similarities differ by more.
void ExpectBest(std::span<const EamMatch> found, const std::vector<ExpertActivationMatrix>& stored,
                const ExpertActivationMatrix& live, int layers, int n, double tolerance) {
  std::vector<double> exact;
  for (const auto& eam : stored) exact.push_back(CosineSimilarity(live, eam, layers));
  std::vector<double> sorted = exact;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const auto positive = std::count_if(exact.begin(), exact.end(), [](double v) { return v > 0; });
  ASSERT_EQ(found.size(), static_cast<size_t>(std::min<int64_t>(n, positive)));
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i].similarity, exact[static_cast<size_t>(found[i].entry)], tolerance);
    EXPECT_NEAR(found[i].similarity, sorted[i], tolerance) << "rank " << i;
    for (size_t j = 0; j < i; ++j) EXPECT_NE(found[i].entry, found[j].entry);
  }
}

TEST_P(EamCollectionTest, EqualsTheCosineOverTheLayersSeenSoFar) {
  constexpr int kLayers = 9;
  constexpr int kExperts = 40;
  constexpr int kEntries = 150;
  Requests requests(kLayers, kExperts, 4, /*first_layer=*/1);
  EamCollection collection(kLayers, kExperts, kEntries, kernels_);
  std::vector<ExpertActivationMatrix> stored;
  for (int i = 0; i < kEntries; ++i) {
    stored.push_back(requests.Make(requests.Uniform(1, 60)));
    ASSERT_EQ(collection.Insert(stored.back()), i);
  }
  EamMatcher matcher(collection, 8);
  for (const int tokens : {1, 3, 64, 700}) {
    const ExpertActivationMatrix live = requests.Make(tokens);
    matcher.Begin();
    EXPECT_TRUE(matcher.Best(8).empty());
    for (int layer = 0; layer < kLayers; ++layer) {
      matcher.ObserveRow(layer, live.Row(layer));
      ExpectBest(matcher.Best(8), stored, live, layer + 1, 8, 1e-6);
    }
  }
}

TEST_P(EamCollectionTest, ChoicesAndRowsAreTheSame) {
  Requests requests(4, 16, 2);
  EamCollection collection(4, 16, 10, kernels_);
  for (int i = 0; i < 10; ++i) collection.Insert(requests.Make(20));
  EamMatcher by_row(collection, 3);
  EamMatcher by_choice(collection, 3);
  by_row.Begin();
  by_choice.Begin();
  for (int layer = 0; layer < 4; ++layer) {
    const std::vector<int32_t> choices = {layer, 3, 15, layer, 7, 3};
    std::vector<uint32_t> row(16);
    for (const int32_t expert : choices) ++row[static_cast<size_t>(expert)];
    by_row.ObserveRow(layer, row);
    by_choice.ObserveExperts(layer, choices);
    const auto a = by_row.Best(3);
    const auto b = by_choice.Best(3);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      EXPECT_EQ(a[i].entry, b[i].entry);
      EXPECT_EQ(a[i].similarity, b[i].similarity);
    }
  }
}

TEST_P(EamCollectionTest, ALayerLeftOutIsARowOfZeros) {
  Requests requests(6, 16, 2);
  EamCollection collection(6, 16, 20, kernels_);
  std::vector<ExpertActivationMatrix> stored;
  for (int i = 0; i < 20; ++i) {
    stored.push_back(requests.Make(30));
    collection.Insert(stored.back());
  }
  const ExpertActivationMatrix whole = requests.Make(5);
  ExpertActivationMatrix live(6, 16);
  EamMatcher matcher(collection, 4);
  matcher.Begin();
  for (const int layer : {1, 4}) {
    for (int e = 0; e < 16; ++e) live.Add(layer, e, whole.count(layer, e));
    matcher.ObserveRow(layer, whole.Row(layer));
    ExpectBest(matcher.Best(4), stored, live, layer + 1, 4, 1e-6);
  }
}

// A prefill of a million tokens: scores pass 2^31 several times over.
TEST_P(EamCollectionTest, ManyTokensDoNotOverflow) {
  constexpr int kLayers = 60;
  Requests requests(kLayers, 32, 4);
  EamCollection collection(kLayers, 32, 70, kernels_);
  std::vector<ExpertActivationMatrix> stored;
  for (int i = 0; i < 70; ++i) {
    stored.push_back(requests.Make(40));
    collection.Insert(stored.back());
  }
  ExpertActivationMatrix live(kLayers, 32);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int e = 0; e < 32; ++e) {
      const int share = requests.Uniform(0, 10);
      live.Add(layer, e, static_cast<uint32_t>(share * share * 4001));
    }
  }
  EamMatcher matcher(collection, 5);
  matcher.Begin();
  for (int layer = 0; layer < kLayers; ++layer) {
    matcher.ObserveRow(layer, live.Row(layer));
    ExpectBest(matcher.Best(5), stored, live, layer + 1, 5, 1e-5);
  }
}

TEST_P(EamCollectionTest, LargeCountsAreScaledTogether) {
  Requests requests(5, 24, 3);
  EamCollection collection(5, 24, 40, kernels_);
  std::vector<ExpertActivationMatrix> stored;
  for (int i = 0; i < 40; ++i) {
    stored.push_back(requests.Make(3000));
    collection.Insert(stored.back());
    EXPECT_GT(collection.scale(i), 1);
    EXPECT_NEAR(CosineSimilarity(collection.Entry(i), stored.back()), 1, 1e-4);
    EXPECT_NEAR(static_cast<double>(collection.Entry(i).total()),
                static_cast<double>(stored.back().total()), 5 * 24 * collection.scale(i));
  }
  const ExpertActivationMatrix live = requests.Make(10);
  EamMatcher matcher(collection, 4);
  matcher.Begin();
  for (int layer = 0; layer < 5; ++layer) {
    matcher.ObserveRow(layer, live.Row(layer));
    ExpectBest(matcher.Best(4), stored, live, layer + 1, 4, 2e-3);
  }
}

TEST_P(EamCollectionTest, AFullCollectionReplacesTheNearest) {
  constexpr int kCapacity = 30;
  Requests requests(5, 24, 3);
  EamCollection collection(5, 24, kCapacity, kernels_);
  std::vector<ExpertActivationMatrix> stored;
  for (int i = 0; i < kCapacity; ++i) {
    stored.push_back(requests.Make(40));
    EXPECT_EQ(collection.Insert(stored.back()), i);
  }
  for (int i = 0; i < 200; ++i) {
    const ExpertActivationMatrix eam = requests.Make(40);
    double best = 0;
    for (const auto& other : stored) best = std::max(best, CosineSimilarity(eam, other));
    const int entry = collection.Insert(eam);
    ASSERT_GE(entry, 0);
    EXPECT_NEAR(CosineSimilarity(eam, stored[static_cast<size_t>(entry)]), best, 1e-6);
    stored[static_cast<size_t>(entry)] = eam;
  }
  EXPECT_EQ(collection.size(), kCapacity);
  for (int i = 0; i < kCapacity; ++i) {
    EXPECT_EQ(collection.Entry(i), stored[static_cast<size_t>(i)]);
  }
  // What was replaced left no trace in the columns.
  EamMatcher matcher(collection, 4);
  const ExpertActivationMatrix live = requests.Make(2);
  matcher.Begin();
  for (int layer = 0; layer < 5; ++layer) {
    matcher.ObserveRow(layer, live.Row(layer));
    ExpectBest(matcher.Best(4), stored, live, layer + 1, 4, 1e-6);
  }
}

TEST_P(EamCollectionTest, SumsMatchesAndNormalisesRows) {
  EamCollection collection(2, 4, 4, kernels_);
  ExpertActivationMatrix a(2, 4);
  a.Add(0, 0, 6);
  a.Add(0, 1, 2);
  ExpertActivationMatrix b(2, 4);
  b.Add(0, 1, 1020);  // stored as 255 times 4
  b.Add(0, 3, 1020);
  collection.Insert(a);
  collection.Insert(b);
  const std::vector<EamMatch> both = {{0, 0.9f}, {1, 0.8f}};
  std::vector<float> row(4, -1);
  ASSERT_TRUE(collection.PredictRow(0, both, row));
  EXPECT_FLOAT_EQ(row[0], 6.0f / 2048);
  EXPECT_FLOAT_EQ(row[1], 1022.0f / 2048);
  EXPECT_FLOAT_EQ(row[2], 0);
  EXPECT_FLOAT_EQ(row[3], 1020.0f / 2048);
  EXPECT_FALSE(collection.PredictRow(1, both, row));
  EXPECT_EQ(row, std::vector<float>(4));
}

TEST_P(EamCollectionTest, ScaledCountsAreRounded) {
  EamCollection collection(1, 4, 2, kernels_);
  ExpertActivationMatrix eam(1, 4);
  eam.Add(0, 0, 1020);  // the scale is 4
  eam.Add(0, 1, 7);
  eam.Add(0, 2, 5);
  collection.Insert(eam);
  const std::span<const uint8_t> counts = collection.Counts(0);
  EXPECT_EQ(std::vector<int>(counts.begin(), counts.end()), (std::vector<int>{255, 2, 1, 0}));
}

TEST_P(EamCollectionTest, OfEqualsTheFirstComesFirst) {
  EamCollection collection(1, 4, 4, kernels_);
  ExpertActivationMatrix eam(1, 4);
  eam.Add(0, 1, 3);
  for (int i = 0; i < 3; ++i) collection.Insert(eam);
  EamMatcher matcher(collection, 2);
  matcher.Begin();
  matcher.ObserveRow(0, eam.Row(0));
  const std::span<const EamMatch> best = matcher.Best(2);
  ASSERT_EQ(best.size(), 2u);
  EXPECT_EQ(best[0].entry, 0);
  EXPECT_EQ(best[1].entry, 1);
}

TEST_P(EamCollectionTest, ZeroMatricesAreNotKept) {
  EamCollection collection(2, 4, 2, kernels_);
  EXPECT_EQ(collection.Insert(ExpertActivationMatrix(2, 4)), -1);
  EXPECT_EQ(collection.size(), 0);
  EamMatcher matcher(collection, 1);
  matcher.Begin();
  const std::vector<uint32_t> row = {1, 0, 0, 0};
  matcher.ObserveRow(0, row);
  EXPECT_TRUE(matcher.Best(1).empty());
}

TEST_P(EamCollectionTest, RestoredEntriesAreTheSame) {
  Requests requests(3, 20, 3);
  EamCollection collection(3, 20, 9, kernels_);
  for (int i = 0; i < 9; ++i) collection.Insert(requests.Make(i == 4 ? 2000 : 30));
  EamCollection restored(3, 20, 12, kernels_);
  for (int i = 0; i < 9; ++i) restored.Restore(collection.Counts(i), collection.scale(i));
  ASSERT_EQ(restored.size(), 9);
  const ExpertActivationMatrix live = requests.Make(2);
  EamMatcher a(collection, 9);
  EamMatcher b(restored, 9);
  a.Begin();
  b.Begin();
  for (int layer = 0; layer < 3; ++layer) {
    a.ObserveRow(layer, live.Row(layer));
    b.ObserveRow(layer, live.Row(layer));
  }
  const auto x = a.Best(9);
  const auto y = b.Best(9);
  ASSERT_EQ(x.size(), y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(x[i].entry, y[i].entry);
    EXPECT_EQ(x[i].similarity, y[i].similarity);
  }
  collection.Clear();
  EXPECT_EQ(collection.size(), 0);
  EXPECT_EQ(collection.Nearest(live).similarity, 0);
}

TEST(EamMatcherDeathTest, InsertionEndsTheIteration) {
  Requests requests(3, 20, 3);
  EamCollection collection(3, 20, 2, KernelsFor(Isa::kScalar));
  collection.Insert(requests.Make(3));
  EamMatcher matcher(collection, 1);
  matcher.Begin();
  const std::vector<int32_t> choices = {1, 2, 3};
  matcher.ObserveExperts(0, choices);
  collection.Insert(requests.Make(3));
  EXPECT_DEATH(matcher.ObserveExperts(1, choices), "generation");
}

}  // namespace
}  // namespace moesaic
