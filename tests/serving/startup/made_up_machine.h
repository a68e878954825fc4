// A machine that is made up, for tests of start-up.
#pragma once

#include <cstdint>

#include "serving/startup/machine.h"

namespace moesaic {

// Two cores with two threads each, one node, a gibibyte of free memory, nothing measured.
inline Machine MadeUpMachine() {
  Machine machine;
  for (int cpu = 0; cpu < 4; ++cpu) machine.topology.cpus.push_back({cpu, cpu % 2, 0, 0});
  machine.topology.nodes.push_back({0, {0, 1, 2, 3}, 0});
  machine.topology.memory_total_bytes = uint64_t{4} << 30;
  machine.topology.memory_free_bytes = uint64_t{1} << 30;
  machine.why_no_profile = "made up";
  machine.module_costs = "/nonexistent/module-costs";
  return machine;
}

// The profile says how the disk under the root is read best.
inline void AddDisk(Machine& machine, uint32_t block_bytes, int depth) {
  if (!machine.profile) machine.profile.emplace();
  DiskProfile disk;
  disk.path = "/";
  DiskRate& rate = disk.rates.emplace_back();
  rate.block_bytes = block_bytes;
  rate.depth = depth;
  rate.read.value = 1e9;
  machine.profile->disks.push_back(std::move(disk));
}

}  // namespace moesaic
