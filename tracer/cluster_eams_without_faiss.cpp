// ClusterEams of programs without FAISS: wheels, and builds with MOESAIC_FAISS=OFF.
#include "core/base/error.h"
#include "tracer/cluster_eams.h"

namespace moesaic {

std::vector<ExpertActivationMatrix> ClusterEams(
    std::span<const ExpertActivationMatrix* const> matrices, int capacity,
    const CompactOptions& /*options*/) {
  Fail(ErrorKind::kUnsupported,
       "{} requests do not fit a capacity of {}, and this program has no FAISS, which clusters "
       "them: take one that was built from source, or a capacity of {}",
       matrices.size(), capacity, matrices.size());
}

std::string ClusteringLibrary() { return {}; }

}  // namespace moesaic
