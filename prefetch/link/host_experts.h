// HostExperts: every expert of a model as a blob in host memory: the home from which devices fetch,
// and where the host computes an expert in place. For each device one pool, on the device's NUMA
// node and pinned for it where the machine allows that, with the experts that the placement gives
// the device; one more for each other node that it names, and for what is on the host only.
//
// As an ExpertSource its extents are places in those pools ("file" d is that of device d, the
// others follow), for a DeviceReader. Immutable once made: reading is safe from any thread. Source,
// placement and devices outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/expert_grid.h"
#include "core/base/error.h"
#include "core/device/device.h"
#include "core/device/host_pinner.h"
#include "core/device/pinned_host_pool.h"
#include "core/io/expert_source.h"
#include "prefetch/link/expert_loader.h"
#include "prefetch/link/expert_placement.h"

namespace moesaic {

class HostExperts : public ExpertSource {
 public:
  // Reads (and packs) all experts of `disk`. Of `reading` the backend, packets, depth and threads
  // count. Throws Error(kIo / kCorrupt) when an expert cannot be read, Error(kResourceExhausted)
  // when the machine has not got the memory.
  HostExperts(const ExpertSource& disk, const ExpertGrid& grid, const ExpertPlacement& placement,
              std::span<Device* const> devices, const ExpertLoaderOptions& reading);

  // layout().slot_bytes, 64-byte aligned.
  const std::byte* blob(ExpertIndex expert) const;
  // By "file".
  std::vector<std::span<const std::byte>> memory() const;
  // Of the pools that could not be pinned, the first one's reason.
  std::optional<Error> why_not_pinned() const;

  const std::vector<std::filesystem::path>& files() const override { return names_; }
  const ExpertLayout& layout() const override { return disk_.layout(); }
  bool HasLayer(int64_t layer) const override { return disk_.HasLayer(layer); }
  std::span<const Extent> Extents(ExpertId id) const override {
    return {&extents_[static_cast<size_t>(grid_.Index(id))], 1};
  }
  bool direct() const override { return true; }
  void Pack(ExpertId id, std::span<const std::span<const std::byte>> pieces,
            std::span<std::byte> slot) const override;
  std::string FailedRead(ExpertId id, const Extent& piece, const std::string& why) const override;

  // What reading takes besides the blobs, while it lasts.
  static uint64_t StagingBytes(const ExpertSource& disk, const ExpertGrid& grid,
                               const ExpertLoaderOptions& reading);

 private:
  struct Home {
    int device = ExpertPlacement::kHost;  // that it is pinned for
    int node = -1;
    std::vector<ExpertId> experts = {};
    std::unique_ptr<PinnedHostPool> pool = nullptr;
    HostBuffer block = {};
  };

  void Sort(const ExpertPlacement& placement);
  void Load(int file, const ExpertLoaderOptions& reading);

  const ExpertSource& disk_;
  const ExpertGrid grid_;
  const std::vector<Device*> devices_;
  MlockPinner host_pinner_;                   // of what no device copies
  std::vector<std::filesystem::path> names_;  // [homes] what extents are in
  std::vector<Home> homes_;                   // the devices' first
  std::vector<Extent> extents_;               // [grid.total()]
};

}  // namespace moesaic
