// ExpertPlacement: which device holds and computes which expert (expert parallelism), and on which
// NUMA node of the host the expert's home is. Made once from plain numbers; immutable, so that
// reading is safe from any thread.
//
// Several devices work on one layer at the same time, so a layer must be spread evenly; which
// experts of a layer are busy cannot be known beforehand, hence a hash (MoE-Infinity, section 5.3:
// experts to GPUs by hash, after a partition by NUMA node). Per layer:
//   1. the experts are put in an order by the hash of (seed, layer, expert);
//   2. they are dealt to the devices in turn, from where the layer before stopped.
// Dealing, in place of hash modulo devices, gives every device of a layer the same number of
// experts to within one, and over any run of layers too. The devices are dealt to in an order that
// goes round the NUMA nodes, in proportion to the devices of each: so the nodes' shares of a layer
// are as even as the devices' are, and memory bandwidth with them. An expert's home pages belong on
// its device's node: its copies then never cross sockets.
//
// Experts can be fixed instead: to a device, to the host (no device ever has them), and their home
// to a NUMA node. Those are not dealt.
//
// The same arguments give the same placement in every process and on every machine: it may name
// files and be recomputed after a restart.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/expert_grid.h"

namespace moesaic {

// What is not left to the dealing. Empty vectors: nothing.
struct FixedExperts {
  static constexpr int kDealt = -2;

  std::vector<int> devices;  // [grid.total()] a device, ExpertPlacement::kHost or kDealt
  std::vector<std::optional<int>> nodes;  // [grid.total()] of the home; nullopt: the device's
};

class ExpertPlacement {
 public:
  static constexpr int kHost = -1;  // in place of a device: the host computes it, always

  // device_nodes[d] is the NUMA node of device d (Device::numa_node; -1, not known, counts as a
  // node of its own). At least one device.
  ExpertPlacement(const ExpertGrid& grid, std::span<const int> device_nodes, uint64_t seed = 0,
                  const FixedExperts& fixed = {});

  int num_devices() const { return static_cast<int>(experts_of_device_.size()); }
  int device(ExpertIndex expert) const { return device_[At(expert)]; }  // or kHost
  // Of its home, where that is fixed.
  std::optional<int> fixed_node(ExpertIndex expert) const {
    return fixed_nodes_.empty() ? std::nullopt : fixed_nodes_[At(expert)];
  }
  // Of its home; -1: not known, anywhere.
  int node(ExpertIndex expert) const {
    const int on = device(expert);
    return fixed_node(expert).value_or(on == kHost ? -1 : device_nodes_[static_cast<size_t>(on)]);
  }
  // Ascending: layer after layer. The sizes are what the devices' caches are to hold.
  std::span<const ExpertIndex> experts(int device) const {
    return experts_of_device_.at(static_cast<size_t>(device));
  }

 private:
  size_t At(ExpertIndex expert) const {
    CHECK_GE(expert, 0);
    CHECK_LT(static_cast<size_t>(expert), device_.size());
    return static_cast<size_t>(expert);
  }

  std::vector<int> device_nodes_;                            // [devices]
  std::vector<int> device_;                                  // [grid.total()]
  std::vector<std::optional<int>> fixed_nodes_;              // [grid.total()], or empty
  std::vector<std::vector<ExpertIndex>> experts_of_device_;  // [devices]
};

// The order in which devices on these nodes take turns: of the first n turns each node gets its
// share by number of devices, to within one. Ties go to the lower node, within a node to the lower
// device.
std::vector<int> TurnsByNode(std::span<const int> device_nodes);

}  // namespace moesaic
