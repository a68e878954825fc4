#include "core/device/pinned_host_pool.h"

#include "core/device/numa_memory.h"

namespace moesaic {

PinnedHostPool::PinnedHostPool(uint64_t capacity_bytes, int numa_node, HostPinner& pinner)
    : pinner_(pinner),
      memory_(capacity_bytes),
      arena_(memory_.data(), capacity_bytes, kAlignment),
      // Before the pages exist: pinning makes them.
      on_node_(PreferNumaNode(pages(), numa_node)),
      why_not_pinned_(pinner_.Pin(pages())) {}

PinnedHostPool::~PinnedHostPool() {
  if (pinned()) pinner_.Unpin(pages());
}

}  // namespace moesaic
