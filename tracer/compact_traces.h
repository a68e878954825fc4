// CompactTraces: an archive of request EAMs brought down to a number that a collection holds, by
// spherical k-means over the L2-normalised flattened matrices (MoE-Infinity leaves it as future
// work). FAISS does the clustering; OMP_NUM_THREADS says on how many threads.
//
// A library of its own, so that only what compacts links FAISS and a BLAS.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tracer/expert_activation_matrix.h"

namespace moesaic {

// What stands for a cluster. Measured by recall on held-out requests in docs/tracing.md.
enum class ClusterEntry {
  kNearest,   // the request nearest to the cluster's centre
  kCentroid,  // the centre, its largest count scaled to 255 and rounded
  kSum,       // the sum of the cluster's requests
};

struct CompactOptions {
  ClusterEntry entry = ClusterEntry::kSum;
  int iterations = 20;
  int seed = 1;
};

// At most `capacity` matrices; the archive itself (without zero matrices) when it has no more.
// CHECKs that the shapes are equal and capacity positive.
std::vector<ExpertActivationMatrix> CompactTraces(std::span<const ExpertActivationMatrix> archive,
                                                  int capacity, const CompactOptions& options = {});

}  // namespace moesaic
