#include "prefetch/link/host_experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/eviction_policy.h"
#include "core/base/check.h"

namespace moesaic {

HostExperts::HostExperts(const ExpertSource& disk, const ExpertGrid& grid,
                         const ExpertPlacement& placement, std::span<Device* const> devices,
                         const ExpertLoaderOptions& reading)
    : disk_(disk),
      grid_(grid),
      devices_(devices.begin(), devices.end()),
      extents_(static_cast<size_t>(grid.total())) {
  CHECK_EQ(devices.size(), static_cast<size_t>(placement.num_devices()));
  Sort(placement);
  for (size_t h = 0; h < homes_.size(); ++h) {
    Home& home = homes_[h];
    Device* const device = home.device == ExpertPlacement::kHost
                               ? nullptr
                               : devices_[static_cast<size_t>(home.device)];
    names_.push_back(device == nullptr ? "host memory" : "host memory of " + device->name());
    const uint64_t bytes = home.experts.size() * disk.layout().slot_bytes;
    if (bytes == 0) continue;
    HostPinner& pinner = device == nullptr ? host_pinner_ : device->host_pinner();
    home.pool = std::make_unique<PinnedHostPool>(bytes, home.node, pinner);
    std::optional<HostBuffer> block = home.pool->Allocate(bytes);
    CHECK(block.has_value());
    home.block = std::move(*block);
    Load(static_cast<int>(h), reading);
  }
}

// Which expert is at home where.
void HostExperts::Sort(const ExpertPlacement& placement) {
  for (int d = 0; d < placement.num_devices(); ++d) {
    homes_.push_back({d, devices_[static_cast<size_t>(d)]->numa_node()});
  }
  for (ExpertIndex expert = 0; expert < static_cast<ExpertIndex>(grid_.total()); ++expert) {
    const ExpertId id = grid_.Id(expert);
    if (!disk_.HasLayer(id.layer)) continue;
    const int device = placement.device(expert);
    const int node = placement.fixed_node(expert).value_or(
        device == ExpertPlacement::kHost ? -1 : devices_[static_cast<size_t>(device)]->numa_node());
    auto home = std::find_if(homes_.begin(), homes_.end(), [&](const Home& candidate) {
      return candidate.device == device && candidate.node == node;
    });
    if (home == homes_.end()) home = homes_.insert(home, Home{device, node});
    home->experts.push_back(id);
  }
}

// A loader with a slot for each of the device's experts reads them and goes; its slots stay.
void HostExperts::Load(int file, const ExpertLoaderOptions& reading) {
  const Home& home = homes_[static_cast<size_t>(file)];
  const std::span<std::byte> memory = home.block.span();
  ExpertLoaderOptions options = reading;
  options.slot_memory = memory;
  options.step_predictor = nullptr;
  ExpertLoader loader(disk_, grid_.num_layers(), grid_.num_experts(), MakeLruPolicy(grid_.total()),
                      options);
  loader.BeginLayer(home.experts);  // of all layers
  std::vector<PinnedExpert> pinned;
  while (loader.NextReady(pinned)) {
  }
  for (const PinnedExpert& expert : pinned) {
    extents_[static_cast<size_t>(grid_.Index(expert.id))] = {
        file, static_cast<uint64_t>(expert.blob - memory.data()), layout().slot_bytes};
  }
}

const std::byte* HostExperts::blob(ExpertIndex expert) const {
  const Extent& extent = extents_[static_cast<size_t>(expert)];
  CHECK_GT(extent.bytes, 0u);
  return homes_[static_cast<size_t>(extent.file)].block.span().data() + extent.offset;
}

std::vector<std::span<const std::byte>> HostExperts::memory() const {
  std::vector<std::span<const std::byte>> files;
  for (const Home& home : homes_) files.push_back(home.block.span());
  return files;
}

std::optional<Error> HostExperts::why_not_pinned() const {
  for (const Home& home : homes_) {
    if (home.pool && !home.pool->pinned()) return home.pool->why_not_pinned();
  }
  return std::nullopt;
}

void HostExperts::Pack(ExpertId, std::span<const std::span<const std::byte>>,
                       std::span<std::byte>) const {
  CHECK(false);  // an extent is the blob
}

std::string HostExperts::FailedRead(ExpertId id, const Extent& piece,
                                    const std::string& why) const {
  return fmt::format(
      "{}: copying {} bytes of expert {} of layer {} to the device failed: {}; check the device "
      "(the kernel's log says more) or leave it out of --devices",
      devices_[static_cast<size_t>(homes_[static_cast<size_t>(piece.file)].device)]->name(),
      piece.bytes, id.index, id.layer, why);
}

uint64_t HostExperts::StagingBytes(const ExpertSource& disk, const ExpertGrid& grid,
                                   const ExpertLoaderOptions& reading) {
  ExpertLoaderOptions all = reading;
  all.budget_bytes = static_cast<uint64_t>(grid.total()) * disk.layout().slot_bytes;
  return ExpertLoader::StagingBytes(disk, grid.num_layers(), grid.num_experts(), all);
}

}  // namespace moesaic
