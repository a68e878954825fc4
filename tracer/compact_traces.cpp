#include "tracer/compact_traces.h"

#include "core/base/check.h"
#include "tracer/cluster_eams.h"

namespace moesaic {

std::vector<ExpertActivationMatrix> CompactTraces(std::span<const ExpertActivationMatrix> archive,
                                                  int capacity, const CompactOptions& options) {
  CHECK_GT(capacity, 0);
  std::vector<const ExpertActivationMatrix*> matrices;
  for (const ExpertActivationMatrix& matrix : archive) {
    CHECK_EQ(matrix.num_layers(), archive.front().num_layers());
    CHECK_EQ(matrix.num_experts(), archive.front().num_experts());
    if (matrix.total() > 0) matrices.push_back(&matrix);
  }
  if (matrices.size() > static_cast<size_t>(capacity)) {
    return ClusterEams(matrices, capacity, options);
  }
  std::vector<ExpertActivationMatrix> result;
  for (const ExpertActivationMatrix* matrix : matrices) result.push_back(*matrix);
  return result;
}

}  // namespace moesaic
