#include "prefetch/link/host_experts.h"

#include <fmt/format.h>

#include <utility>

#include "cache/eviction_policy.h"
#include "core/base/check.h"

namespace moesaic {
namespace {

std::vector<ExpertId> WithWeights(const ExpertSource& source, const ExpertGrid& grid,
                                  std::span<const ExpertIndex> experts) {
  std::vector<ExpertId> ids;
  for (const ExpertIndex expert : experts) {
    const ExpertId id = grid.Id(expert);
    if (source.HasLayer(id.layer)) ids.push_back(id);
  }
  return ids;
}

}  // namespace

HostExperts::HostExperts(const ExpertSource& disk, const ExpertGrid& grid,
                         const ExpertPlacement& placement, std::span<Device* const> devices,
                         const ExpertLoaderOptions& reading)
    : disk_(disk),
      grid_(grid),
      devices_(devices.begin(), devices.end()),
      extents_(static_cast<size_t>(grid.total())) {
  CHECK_EQ(devices.size(), static_cast<size_t>(placement.num_devices()));
  for (int d = 0; d < placement.num_devices(); ++d) {
    Device& device = *devices[static_cast<size_t>(d)];
    names_.push_back("host memory of " + device.name());
    const std::vector<ExpertId> experts = WithWeights(disk, grid, placement.experts(d));
    const uint64_t bytes = experts.size() * disk.layout().slot_bytes;
    Home& home = homes_.emplace_back();
    if (bytes == 0) continue;
    home.pool = std::make_unique<PinnedHostPool>(bytes, device.numa_node(), device.host_pinner());
    std::optional<HostBuffer> block = home.pool->Allocate(bytes);
    CHECK(block.has_value());
    home.block = std::move(*block);
    Load(d, experts, reading);
  }
}

// A loader with a slot for each of the device's experts reads them and goes; its slots stay.
void HostExperts::Load(int device, std::span<const ExpertId> experts,
                       const ExpertLoaderOptions& reading) {
  const std::span<std::byte> memory = homes_[static_cast<size_t>(device)].block.span();
  ExpertLoaderOptions options = reading;
  options.slot_memory = memory;
  options.step_predictor = nullptr;
  ExpertLoader loader(disk_, grid_.num_layers(), grid_.num_experts(), MakeLruPolicy(grid_.total()),
                      options);
  loader.BeginLayer(experts);  // of all layers
  std::vector<PinnedExpert> pinned;
  while (loader.NextReady(pinned)) {
  }
  for (const PinnedExpert& expert : pinned) {
    extents_[static_cast<size_t>(grid_.Index(expert.id))] = {
        device, static_cast<uint64_t>(expert.blob - memory.data()), layout().slot_bytes};
  }
}

const std::byte* HostExperts::blob(ExpertIndex expert) const {
  const Extent& extent = extents_[static_cast<size_t>(expert)];
  CHECK_GT(extent.bytes, 0u);
  return memory(extent.file).data() + extent.offset;
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
      devices_[static_cast<size_t>(piece.file)]->name(), piece.bytes, id.index, id.layer, why);
}

uint64_t HostExperts::StagingBytes(const ExpertSource& disk, const ExpertGrid& grid,
                                   const ExpertLoaderOptions& reading) {
  ExpertLoaderOptions all = reading;
  all.budget_bytes = static_cast<uint64_t>(grid.total()) * disk.layout().slot_bytes;
  return ExpertLoader::StagingBytes(disk, grid.num_layers(), grid.num_experts(), all);
}

}  // namespace moesaic
