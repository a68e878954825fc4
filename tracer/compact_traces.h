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

struct CompactOptions {
  int iterations = 20;
  int seed = 1;
};

// What stands for a cluster is its centre, scaled to the tokens of its requests and rounded to
// whole counts. Recall on held-out requests (docs/tracing.md): that is level with the nearest
// request or better, and better than the sum of the requests' counts, in which the long ones hide
// the others.
//
// At most `capacity` matrices; the archive itself (without zero matrices) when it has no more.
// CHECKs that the shapes are equal and capacity positive. Throws Error(kUnsupported) when there are
// more and the program was linked without FAISS.
std::vector<ExpertActivationMatrix> CompactTraces(std::span<const ExpertActivationMatrix> archive,
                                                  int capacity, const CompactOptions& options = {});

}  // namespace moesaic
