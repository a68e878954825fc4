#include "tracer/cluster_eams.h"

#include <faiss/Clustering.h>
#include <faiss/IndexFlat.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

// [matrices, layers * experts], each row of length 1.
std::vector<float> Normalised(std::span<const ExpertActivationMatrix* const> matrices,
                              size_t cells) {
  std::vector<float> rows;
  rows.reserve(matrices.size() * cells);
  for (const ExpertActivationMatrix* matrix : matrices) {
    const size_t begin = rows.size();
    double norm_squared = 0;
    for (int layer = 0; layer < matrix->num_layers(); ++layer) {
      for (const uint32_t count : matrix->Row(layer)) {
        norm_squared += static_cast<double>(count) * count;
        rows.push_back(static_cast<float>(count));
      }
    }
    const auto scale = static_cast<float>(1 / std::sqrt(norm_squared));
    for (size_t i = begin; i < rows.size(); ++i) rows[i] *= scale;
  }
  return rows;
}

// A cluster of one request gives that request: its counts come back whole.
ExpertActivationMatrix RoundedCentroid(std::span<const float> centroid, uint64_t tokens, int layers,
                                       int experts) {
  double sum = 0;
  for (const float v : centroid) sum += v;
  ExpertActivationMatrix matrix(layers, experts);
  for (size_t cell = 0; cell < centroid.size(); ++cell) {
    const double count = std::round(static_cast<double>(tokens) * centroid[cell] / sum);
    if (count >= 1) {
      matrix.Add(static_cast<int>(cell) / experts, static_cast<int>(cell) % experts,
                 static_cast<uint32_t>(std::min(count, 4294967295.0)));
    }
  }
  return matrix;
}

}  // namespace

std::vector<ExpertActivationMatrix> ClusterEams(
    std::span<const ExpertActivationMatrix* const> matrices, int capacity,
    const CompactOptions& options) {
  const int layers = matrices.front()->num_layers();
  const int experts = matrices.front()->num_experts();
  const size_t cells = static_cast<size_t>(layers) * static_cast<size_t>(experts);
  const std::vector<float> rows = Normalised(matrices, cells);

  faiss::ClusteringParameters parameters;
  parameters.niter = options.iterations;
  parameters.seed = options.seed;
  parameters.spherical = true;
  // The archive is small beside what FAISS is used to: every request counts, few per cluster do.
  parameters.min_points_per_centroid = 1;
  parameters.max_points_per_centroid = static_cast<int>(matrices.size());
  faiss::Clustering clustering(static_cast<int>(cells), capacity, parameters);
  faiss::IndexFlatIP index(static_cast<int64_t>(cells));
  const auto n = static_cast<int64_t>(matrices.size());
  clustering.train(n, rows.data(), index);
  // Training ends with an update of the centres: the clusters are those of the final ones.
  std::vector<float> similarities(matrices.size());
  std::vector<int64_t> cluster_of(matrices.size());
  index.search(n, rows.data(), 1, similarities.data(), cluster_of.data());

  std::vector<ExpertActivationMatrix> result;
  for (int cluster = 0; cluster < capacity; ++cluster) {
    uint64_t tokens = 0;
    for (size_t i = 0; i < matrices.size(); ++i) {
      if (cluster_of[i] == cluster) tokens += matrices[i]->total();
    }
    if (tokens == 0) continue;  // an empty cluster
    const std::span<const float> centroids = clustering.centroids;
    result.push_back(RoundedCentroid(centroids.subspan(static_cast<size_t>(cluster) * cells, cells),
                                     tokens, layers, experts));
  }
  return result;
}

std::string ClusteringLibrary() {
  return fmt::format("FAISS {}.{}.{}", FAISS_VERSION_MAJOR, FAISS_VERSION_MINOR,
                     FAISS_VERSION_PATCH);
}

}  // namespace moesaic
