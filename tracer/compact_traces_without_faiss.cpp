// CompactTraces of a build without FAISS (MOESAIC_FAISS=OFF, as in wheels): archives that need no
// clustering.
#include "core/base/check.h"
#include "core/base/error.h"
#include "tracer/compact_traces.h"

namespace moesaic {

std::vector<ExpertActivationMatrix> CompactTraces(std::span<const ExpertActivationMatrix> archive,
                                                  int capacity, const CompactOptions& /*options*/) {
  CHECK_GT(capacity, 0);
  std::vector<ExpertActivationMatrix> kept;
  for (const ExpertActivationMatrix& matrix : archive) {
    CHECK_EQ(matrix.num_layers(), archive.front().num_layers());
    CHECK_EQ(matrix.num_experts(), archive.front().num_experts());
    if (matrix.total() > 0) kept.push_back(matrix);
  }
  if (kept.size() <= static_cast<size_t>(capacity)) return kept;
  Fail(ErrorKind::kUnsupported,
       "{} requests do not fit a capacity of {}, and this program was built without FAISS, which "
       "clusters them (MOESAIC_FAISS): take one that was built from source, or a capacity of {}",
       kept.size(), capacity, kept.size());
}

}  // namespace moesaic
