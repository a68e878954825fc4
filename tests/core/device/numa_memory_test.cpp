#include "core/device/numa_memory.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "core/base/topology.h"

namespace moesaic {
namespace {

int AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  return CPU_COUNT(&set);
}

TEST(NumaMemoryTest, ThreadsRunOnNodesThatAreThere) {
  std::thread([] {
    const int before = AllowedCpus();
    for (const int node : {-1, 4095}) {
      EXPECT_FALSE(RunOnNumaNode(node));
      EXPECT_EQ(AllowedCpus(), before);
    }
    const Topology topology = ReadTopology();
    if (topology.nodes.empty()) return;
    const NumaNode& node = topology.nodes.front();
    if (RunOnNumaNode(node.id)) {
      EXPECT_GE(AllowedCpus(), 1);
      EXPECT_LE(AllowedCpus(), static_cast<int>(node.cpus.size()));
    }
  }).join();
}

}  // namespace
}  // namespace moesaic
