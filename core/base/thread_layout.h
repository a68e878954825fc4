// ThreadLayout: how compute threads are spread over the NUMA nodes of a machine, and the nodes that
// weights are sliced over. Plain data; Topology makes one, tests make up others (nodes that are not
// there, or one node twice, give the same answers).
#pragma once

#include <vector>

namespace moesaic {

// More nodes than this are not sliced over.
constexpr int kMaxComputeNodes = 16;

struct ThreadPlace {
  std::vector<int> cpus;  // that the thread is kept on; empty: any
  int node = 0;           // whose slices it works on first: an index of ThreadLayout::nodes
};

struct ThreadLayout {
  std::vector<ThreadPlace> places;  // of thread i: places[i % size]; empty: any CPU, node 0
  std::vector<int> nodes;  // the machine's numbers of the nodes; fewer than two: nothing is sliced
};

}  // namespace moesaic
