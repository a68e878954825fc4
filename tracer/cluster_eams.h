// ClusterEams: the part of CompactTraces that needs a library for k-means. A program is linked with
// it or without (its property MOESAIC_WITHOUT_FAISS).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "tracer/compact_traces.h"

namespace moesaic {

// matrices: more than capacity, of one shape, none of them zero. Throws Error(kUnsupported) in a
// program without the library.
std::vector<ExpertActivationMatrix> ClusterEams(
    std::span<const ExpertActivationMatrix* const> matrices, int capacity,
    const CompactOptions& options);

// "FAISS 1.7.3"; empty: none.
std::string ClusteringLibrary();

}  // namespace moesaic
