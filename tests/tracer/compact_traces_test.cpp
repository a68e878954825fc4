#include "tracer/compact_traces.h"

#include <faiss/IndexFlat.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "tracer/eam_collection.h"

namespace moesaic {
namespace {

constexpr int kLayers = 4;
constexpr int kExperts = 16;

// A request of one of `kinds` kinds: its own experts, and a little of any.
ExpertActivationMatrix Request(int kind, std::mt19937& random) {
  ExpertActivationMatrix eam(kLayers, kExperts);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int t = 0; t < 40; ++t) eam.Add(layer, (kind * 3 + layer + t % 3) % kExperts);
    for (int t = 0; t < 6; ++t) eam.Add(layer, static_cast<int>(random() % kExperts));
  }
  return eam;
}

TEST(CompactTracesTest, FindsTheKindsOfRequests) {
  std::mt19937 random(1);
  std::vector<ExpertActivationMatrix> archive;
  archive.reserve(200);
  for (int i = 0; i < 200; ++i) archive.push_back(Request(i % 5, random));
  // k-means may begin with two centres in one kind; a few more than kinds find them all.
  const std::vector<ExpertActivationMatrix> kept = CompactTraces(archive, 12, {.seed = 3});
  ASSERT_LE(kept.size(), 12u);
  uint64_t tokens = 0;
  for (const ExpertActivationMatrix& matrix : kept) tokens += matrix.total();
  for (const ExpertActivationMatrix& request : archive) {
    double best = 0;
    for (const auto& matrix : kept) best = std::max(best, CosineSimilarity(request, matrix));
    EXPECT_GT(best, 0.95);
  }
  // Nobody's tokens are lost, but for rounding.
  EXPECT_NEAR(static_cast<double>(tokens), 200.0 * kLayers * 46, 6.0 * kLayers * kExperts);
}

TEST(CompactTracesTest, AClusterOfOneRequestIsThatRequest) {
  std::mt19937 random(6);
  std::vector<ExpertActivationMatrix> archive = {Request(0, random)};
  for (int i = 0; i < 30; ++i) archive.push_back(archive[0]);
  ExpertActivationMatrix odd(kLayers, kExperts);
  for (int layer = 0; layer < kLayers; ++layer) odd.Add(layer, 12 + layer % 3, 3 + 7 * layer);
  archive.push_back(odd);
  const std::vector<ExpertActivationMatrix> kept = CompactTraces(archive, 2);
  EXPECT_NE(std::find(kept.begin(), kept.end(), odd), kept.end());
}

TEST(CompactTracesTest, IsDeterministic) {
  std::mt19937 random(2);
  std::vector<ExpertActivationMatrix> archive;
  archive.reserve(60);
  for (int i = 0; i < 60; ++i) archive.push_back(Request(i % 7, random));
  EXPECT_EQ(CompactTraces(archive, 9), CompactTraces(archive, 9));
}

TEST(CompactTracesTest, ASmallArchiveIsKeptAsItIs) {
  std::mt19937 random(2);
  std::vector<ExpertActivationMatrix> archive = {Request(0, random), Request(1, random),
                                                 ExpertActivationMatrix(kLayers, kExperts)};
  const std::vector<ExpertActivationMatrix> kept = CompactTraces(archive, 2);
  ASSERT_EQ(kept.size(), 2u);  // the zero matrix says nothing
  EXPECT_EQ(kept[0], archive[0]);
  EXPECT_EQ(kept[1], archive[1]);
  EXPECT_TRUE(CompactTraces({}, 5).empty());
}

// The collection finds nearest neighbours by its own columns; FAISS is the independent answer.
TEST(CompactTracesTest, NearestNeighboursAreThoseOfFaiss) {
  std::mt19937 random(4);
  EamCollection collection(kLayers, kExperts, 300, SelectKernels());
  faiss::IndexFlatIP index(kLayers * kExperts);
  const auto normalised = [](const ExpertActivationMatrix& eam) {
    std::vector<float> row;
    double norm_squared = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const uint32_t count : eam.Row(layer)) {
        row.push_back(static_cast<float>(count));
        norm_squared += static_cast<double>(count) * count;
      }
    }
    for (float& v : row) v /= static_cast<float>(std::sqrt(norm_squared));
    return row;
  };
  for (int i = 0; i < 300; ++i) {
    const ExpertActivationMatrix eam = Request(i % 9, random);
    collection.Insert(eam);
    index.add(1, normalised(eam).data());
  }
  for (int i = 0; i < 100; ++i) {
    const ExpertActivationMatrix eam = Request(i % 11, random);
    float similarity = 0;
    int64_t nearest = -1;
    index.search(1, normalised(eam).data(), 1, &similarity, &nearest);
    const EamMatch match = collection.Nearest(eam);
    EXPECT_NEAR(match.similarity, similarity, 1e-5);
    if (match.entry != nearest) {  // two that are equally near
      EXPECT_NEAR(CosineSimilarity(eam, collection.Entry(match.entry)), similarity, 1e-5);
    }
  }
}

}  // namespace
}  // namespace moesaic
