#include "prefetch/link/expert_placement.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "core/base/hash.h"

namespace moesaic {
namespace {

uint64_t HashOf(ExpertIndex expert, uint64_t seed) {
  const std::array<ExpertIndex, 1> bytes = {expert};  // its number has the layer in it
  return Hash64(std::as_bytes(std::span(bytes)), seed);
}

}  // namespace

std::vector<int> TurnsByNode(std::span<const int> device_nodes) {
  std::map<int, std::vector<int>> devices_of_node;
  for (size_t d = 0; d < device_nodes.size(); ++d) {
    devices_of_node[device_nodes[d]].push_back(static_cast<int>(d));
  }
  // Device i of a node with n of them is due at (i + 1/2) / n of the round; as whole numbers.
  struct Turn {
    int64_t numerator;
    int64_t denominator;
    int node;
    int device;
  };
  std::vector<Turn> turns;
  for (const auto& [node, devices] : devices_of_node) {
    for (size_t i = 0; i < devices.size(); ++i) {
      turns.push_back({2 * static_cast<int64_t>(i) + 1, 2 * static_cast<int64_t>(devices.size()),
                       node, devices[i]});
    }
  }
  std::sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) {
    const int64_t left = a.numerator * b.denominator;
    const int64_t right = b.numerator * a.denominator;
    if (left != right) return left < right;
    return std::pair(a.node, a.device) < std::pair(b.node, b.device);
  });
  std::vector<int> order;
  order.reserve(turns.size());
  for (const Turn& turn : turns) order.push_back(turn.device);
  return order;
}

ExpertPlacement::ExpertPlacement(const ExpertGrid& grid, std::span<const int> device_nodes,
                                 uint64_t seed, const FixedExperts& fixed)
    : device_nodes_(device_nodes.begin(), device_nodes.end()),
      device_(static_cast<size_t>(grid.total()), FixedExperts::kDealt),
      fixed_nodes_(fixed.nodes),
      experts_of_device_(device_nodes.size()) {
  CHECK(!device_nodes_.empty());
  CHECK(fixed.devices.empty() || fixed.devices.size() == device_.size());
  CHECK(fixed.nodes.empty() || fixed.nodes.size() == device_.size());
  if (!fixed.devices.empty()) device_ = fixed.devices;
  CHECK_LE(device_nodes_.size(), size_t{1} << 16);
  const std::vector<int> turns = TurnsByNode(device_nodes_);
  size_t turn = 0;
  std::vector<std::pair<uint64_t, ExpertIndex>> order;
  for (int layer = 0; layer < grid.num_layers(); ++layer) {
    order.clear();
    for (int index = 0; index < grid.num_experts(); ++index) {
      const ExpertIndex expert = layer * grid.num_experts() + index;
      if (device(expert) != FixedExperts::kDealt) continue;
      order.emplace_back(HashOf(expert, seed), expert);
    }
    std::sort(order.begin(), order.end());
    for (const auto& [hash, expert] : order) {
      device_[At(expert)] = turns[turn];
      turn = (turn + 1) % turns.size();
    }
  }
  for (ExpertIndex expert = 0; expert < static_cast<ExpertIndex>(grid.total()); ++expert) {
    const int on = device(expert);
    if (on != kHost) experts_of_device_.at(static_cast<size_t>(on)).push_back(expert);
  }
}

}  // namespace moesaic
