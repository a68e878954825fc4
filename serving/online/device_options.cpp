#include "serving/online/device_options.h"

#include "serving/online/device_backend.h"

namespace moesaic {

const cuda::Kernels* KernelsOf(const DeviceOptions& options) {
  return BackendOf(options.kind).Kernels(options);
}

std::vector<int> DeviceNodes(const DeviceOptions& options) {
  std::vector<int> nodes;
  for (int d = 0; d < options.count; ++d) {
    const auto turns = options.numa_nodes.size();
    nodes.push_back(turns == 0 ? -1 : options.numa_nodes[static_cast<size_t>(d) % turns]);
  }
  return nodes;
}

}  // namespace moesaic
