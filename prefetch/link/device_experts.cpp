#include "prefetch/link/device_experts.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "prefetch/link/device_reader.h"

namespace moesaic {
namespace {

// Copies in flight of one link: the queue of a stream is not overtaken, so that an urgent copy
// waits for all of them; with too few the link idles while the I/O thread wakes up.
constexpr int kLinkDepth = 8;
constexpr int kFastLinkDepth = 4;  // of packets that are larger than kDefaultPacketBytes
// A packet on its way delays the urgent copies behind it. Where a link is slow packets are small,
// but none ends sooner than kPacketNs: to launch one takes some microseconds.
constexpr int64_t kPacketNs = 50'000;
constexpr int64_t kMostSmallPackets = 8;  // of an expert

}  // namespace

uint32_t DevicePacketBytes(uint64_t expert_bytes, int64_t copy_ns, bool fast) {
  const auto packets =
      static_cast<uint64_t>(std::clamp<int64_t>(copy_ns / kPacketNs, 1, kMostSmallPackets));
  const uint64_t bytes = RoundUp((expert_bytes + packets - 1) / packets, ReadPlan::kPageBytes);
  double most = fast ? kFastPacketBytes : kDefaultPacketBytes;
  if (copy_ns > 0) {
    most = std::clamp<double>(static_cast<double>(expert_bytes) * kPacketNs / copy_ns,
                              kDefaultPacketBytes, kFastPacketBytes);
  }
  return static_cast<uint32_t>(
      std::min(bytes, RoundUp(static_cast<uint64_t>(most), ReadPlan::kPageBytes)));
}

DeviceExperts::DeviceExperts(const HostExperts& home, const ExpertGrid& grid,
                             const ExpertPlacement& placement, std::span<Device* const> devices,
                             const DeviceExpertsOptions& options)
    : home_(home),
      grid_(grid),
      placement_(placement),
      miss_(options.miss),
      links_(devices.size()),
      status_(devices.size()),
      place_(static_cast<size_t>(grid.total()), Place::kNone) {
  CHECK_EQ(devices.size(), options.slots.size());
  CHECK_EQ(devices.size(), static_cast<size_t>(placement.num_devices()));
  const auto experts = static_cast<size_t>(grid.num_experts());
  const uint64_t slot_bytes = home.layout().slot_bytes;
  const std::vector<std::span<const std::byte>> files = home.memory();
  for (size_t d = 0; d < links_.size(); ++d) {
    Link& link = links_[d];
    link.device = devices[d];
    status_[d].name = link.device->name();
    status_[d].slots = options.slots[d];
    if (options.slots[d] == 0) continue;  // all that it could have is left to the host
    const uint64_t bytes = static_cast<uint64_t>(options.slots[d]) * slot_bytes;
    link.memory = AllocateOrThrow(*link.device, bytes, fmt::format("{} experts", options.slots[d]),
                                  "; lower --device-memory");
    if (d == 0 && options.looked_up) MakeTable(*link.device, link.memory.data());
    ExpertLoaderOptions loading;
    if (d == 0) loading.readers = table_.get();
    loading.numa_node = link.device->numa_node();
    loading.step_predictor = options.step_predictor;
    loading.link = static_cast<int32_t>(d);
    if (!options.copy_ns.empty()) loading.copy_ns = options.copy_ns[d];
    loading.packet_bytes =
        DevicePacketBytes(slot_bytes, loading.copy_ns, link.device->calls_are_slow());
    loading.depth = loading.packet_bytes > kDefaultPacketBytes ? kFastLinkDepth : kLinkDepth;
    loading.experts = placement.experts(static_cast<int>(d));
    std::vector<ExpertIndex> kept;
    std::copy_if(
        options.kept.begin(), options.kept.end(), std::back_inserter(kept),
        [&](ExpertIndex expert) { return placement.device(expert) == static_cast<int>(d); });
    loading.kept = kept;
    loading.slot_memory = {link.memory.data(), link.memory.bytes()};
    loading.hands_out_failed = true;
    loading.on_progress = [this] {
      MutexLock lock(mutex_);
      progressed_ = true;
      progress_.NotifyAll();
    };
    link.loader = std::make_unique<ExpertLoader>(
        home, grid.num_layers(), grid.num_experts(),
        options.make_policy ? options.make_policy() : nullptr, loading,
        std::make_unique<DeviceReader>(files, link.memory.span(), loading.depth));
    link.needed.reserve(experts);
  }
  for (const auto& [rows, expert_ns] : options.host_ns) host_rate_.Start(rows, expert_ns);
  pinned_.reserve(experts);
  on_host_.reserve(experts);
  missed_.reserve(experts);
  failed_.reserve(experts);
}

uint64_t DeviceExperts::TableBytes(const ExpertGrid& grid) {
  return RoundUp(SlotTable::Bytes(grid), PinnedHostPool::kAlignment);
}

void DeviceExperts::MakeTable(Device& device, const std::byte* slots) {
  const uint64_t bytes = TableBytes(grid_);
  table_pool_ = std::make_unique<PinnedHostPool>(bytes, device.numa_node(), device.host_pinner());
  table_memory_ = *table_pool_->Allocate(bytes);
  if (!device.KernelsReach(table_memory_.span())) return;
  table_ =
      std::make_unique<SlotTable>(grid_, table_memory_.span(), slots, home_.layout().slot_bytes);
}

DeviceExperts::~DeviceExperts() {
  for (Link& link : links_) link.loader.reset();  // its thread tells of progress
}

void DeviceExperts::StepBegan() {
  for (Link& link : links_) {
    if (link.loader) link.loader->StepBegan();
  }
}

void DeviceExperts::StopPrefetching() {
  for (Link& link : links_) {
    if (link.loader) link.loader->StopPrefetching();
  }
}

void DeviceExperts::BeginLayer(std::span<const ExpertId> needed, int64_t pairs) {
  CHECK(!layer_open_);
  for (Link& link : links_) {
    if (link.loader && link.device->lost()) Lose(link);
  }
  layer_open_ = true;
  rows_per_expert_ = std::max<int64_t>(1, pairs / std::max<int64_t>(1, std::ssize(needed)));
  for (const ExpertId id : needed) {
    const ExpertIndex expert = grid_.Index(id);
    const int device = placement_.device(expert);
    if (device != ExpertPlacement::kHost && LinkOf(expert).loader) {
      place_[static_cast<size_t>(expert)] = Place::kLink;
      LinkOf(expert).needed.push_back(id);
    } else {
      ++stats_.misses;
      if (device != ExpertPlacement::kHost) ++status_[static_cast<size_t>(device)].misses;
      ToHost(expert);
    }
  }
  missed_.clear();
  for (Link& link : links_) {
    if (link.loader) link.loader->BeginLayer(link.needed, missed_);
  }
  PlanMissed();
  for (Link& link : links_) {
    if (link.loader) link.loader->StartLoads(missed_);
  }
  for (const MissedExpert& miss : missed_) {
    if (!miss.on_host) continue;
    std::erase(LinkOf(miss.expert).needed, grid_.Id(miss.expert));
    ToHost(miss.expert);
  }
}

void DeviceExperts::Expect(std::span<const ExpertId> experts) {
  if (miss_ == MissMode::kHost) return;  // nothing is fetched
  for (size_t d = 0; d < links_.size(); ++d) {
    if (!links_[d].loader) continue;
    expected_.clear();
    for (const ExpertId id : experts) {
      if (placement_.device(grid_.Index(id)) == static_cast<int>(d)) expected_.push_back(id);
    }
    links_[d].loader->Expect(expected_);
  }
}

bool DeviceExperts::IsResident(ExpertId expert) const {
  const int device = placement_.device(grid_.Index(expert));
  if (device == ExpertPlacement::kHost) return true;  // it is where it is computed
  const Link& link = links_[static_cast<size_t>(device)];
  return link.loader != nullptr && link.loader->IsResident(expert);
}

void DeviceExperts::PlanMissed() {
  if (missed_.empty()) return;
  int64_t host_ns = host_rate_.ExpertNs(rows_per_expert_);
  if (host_ns == 0) {
    // Not measured yet: as slow as a copy, so that some are tried.
    for (const MissedExpert& miss : missed_) host_ns = std::max(host_ns, miss.copy_ns);
  }
  PlanMisses(miss_, std::max<int64_t>(1, host_ns), static_cast<int>(links_.size()), missed_);
  const bool any = std::any_of(missed_.begin(), missed_.end(),
                               [](const MissedExpert& miss) { return miss.on_host; });
  if (!any) host_rate_.PassedOver(rows_per_expert_);
}

void DeviceExperts::ToHost(ExpertIndex expert) {
  place_[static_cast<size_t>(expert)] = Place::kHost;
  on_host_.push_back(expert);
  ++stats_.on_host;
  const int device = placement_.device(expert);
  if (device != ExpertPlacement::kHost) ++status_[static_cast<size_t>(device)].on_host;
}

bool DeviceExperts::Next(std::vector<PinnedExpert>& out, bool may_wait) {
  CHECK(layer_open_);
  const size_t before = out.size();
  for (;;) {
    {
      MutexLock lock(mutex_);
      progressed_ = false;  // what comes from here on is seen below or wakes the wait
    }
    bool waiting = false;
    for (Link& link : links_) {
      if (link.loader) waiting |= TakeReady(link, out);
    }
    if (out.size() > before) return true;
    if (!on_host_.empty()) {
      // One at a time while copies are on their way: what has arrived goes first, so that its slot
      // can serve the next.
      HandOutHost(waiting ? 1 : on_host_.size(), out);
      return true;
    }
    if (!waiting) return false;
    if (!may_wait) return true;
    WaitForProgress();
  }
}

// Returns whether the layer waits for more.
bool DeviceExperts::TakeReady(Link& link, std::vector<PinnedExpert>& out) {
  const size_t before = out.size();
  link.loader->TryNextReady(out);
  for (size_t i = before; i < out.size(); ++i) {
    const ExpertIndex expert = grid_.Index(out[i].id);
    std::erase(link.needed, out[i].id);
    pinned_.push_back(expert);
    out[i].device = static_cast<int32_t>(&link - links_.data());
    out[i].home = home_.blob(expert);
  }
  failed_.clear();
  link.loader->TakeFailed(failed_);
  for (const ExpertId id : failed_) {
    std::erase(link.needed, id);
    ToHost(grid_.Index(id));
  }
  if (!failed_.empty() && link.device->lost()) Lose(link);
  return !link.needed.empty();
}

void DeviceExperts::HandOutHost(size_t experts, std::vector<PinnedExpert>& out) {
  host_batch_ = static_cast<int64_t>(experts);
  host_batch_left_ = host_batch_;
  for (; experts > 0; --experts) {
    const ExpertIndex expert = on_host_.back();
    on_host_.pop_back();
    pinned_.push_back(expert);
    out.push_back({grid_.Id(expert), home_.blob(expert)});
  }
  host_began_ns_ = clock_.NowNs();
}

void DeviceExperts::WaitForProgress() {
  const int64_t begin_ns = clock_.NowNs();
  MutexLock lock(mutex_);
  while (!progressed_) progress_.Wait(mutex_);
  blocked_ns_ += clock_.NowNs() - begin_ns;
}

void DeviceExperts::Release(const PinnedExpert& pinned) {
  const ExpertIndex expert = grid_.Index(pinned.id);
  const Place place = std::exchange(place_[static_cast<size_t>(expert)], Place::kNone);
  CHECK(place != Place::kNone);
  if (place == Place::kLink) {
    // A device that was lost meanwhile has no pins.
    Link& link = LinkOf(expert);
    if (link.loader) link.loader->Release(pinned);
  } else if (--host_batch_left_ == 0) {
    const int64_t batch_ns = clock_.NowNs() - host_began_ns_;
    host_ns_ += batch_ns;
    host_rate_.Measured(rows_per_expert_,
                        static_cast<double>(batch_ns) / static_cast<double>(host_batch_));
  }
}

ExpertStats DeviceExperts::EndLayer() {
  CHECK(layer_open_);
  for (Link& link : links_) {
    if (link.loader) CloseLayer(link);
  }
  layer_open_ = false;
  for (const ExpertIndex expert : pinned_) place_[static_cast<size_t>(expert)] = Place::kNone;
  pinned_.clear();
  on_host_.clear();
  ExpertStats stats = std::exchange(stats_, {});
  stats.blocked_us = static_cast<uint64_t>(blocked_ns_ / 1000);
  blocked_ns_ %= 1000;
  stats.host_us = static_cast<uint64_t>(host_ns_ / 1000);
  host_ns_ %= 1000;
  return stats;
}

void DeviceExperts::CloseLayer(Link& link) {
  DeviceStatus& status = status_[static_cast<size_t>(&link - links_.data())];
  ExpertStats stats = link.loader->EndLayer();
  stats.on_host = 0;  // counted by ToHost, with those that failed
  stats_ += stats;
  status.hits += stats.hits;
  status.late_hits += stats.late_hits;
  status.misses += stats.misses;
  status.bytes_copied += stats.bytes_read;
  link.needed.clear();
}

// What the open layer still wanted from it goes to the host. Its memory stays: blobs that were
// handed out may be in use.
void DeviceExperts::Lose(Link& link) {
  DeviceStatus& status = status_[static_cast<size_t>(&link - links_.data())];
  LogWarn("{}; until then its experts are computed on the host", link.device->lost()->what());
  for (const ExpertId id : link.needed) ToHost(grid_.Index(id));
  if (layer_open_) CloseLayer(link);
  link.loader.reset();
  status.lost = true;
  status.slots = 0;
}

int64_t DeviceExperts::Preload(std::span<const ExpertId> experts,
                               const std::function<bool(int64_t)>& keep_going) {
  int64_t loaded = 0;
  std::vector<ExpertId> own;
  for (size_t d = 0; d < links_.size(); ++d) {
    Link& link = links_[d];
    if (!link.loader) continue;
    own.clear();
    for (const ExpertId id : experts) {
      if (placement_.device(grid_.Index(id)) == static_cast<int>(d)) own.push_back(id);
    }
    bool going = true;
    const int64_t before = loaded;
    try {
      link.loader->Preload(own, [&](int64_t now) {
        loaded = before + now;
        going = !keep_going || keep_going(loaded);
        return going;
      });
    } catch (const Error& error) {
      LogWarn("device {} starts with fewer experts than it can hold: {}", link.device->name(),
              error.what());
    }
    if (!going) break;
  }
  return loaded;
}

std::vector<ResidentExpert> DeviceExperts::Residents() const {
  std::vector<ResidentExpert> residents;
  for (const Link& link : links_) {
    if (!link.loader) continue;
    const std::vector<ResidentExpert> own = link.loader->Residents();
    residents.insert(residents.end(), own.begin(), own.end());
  }
  std::stable_sort(
      residents.begin(), residents.end(),
      [](const ResidentExpert& a, const ResidentExpert& b) { return a.worth > b.worth; });
  return residents;
}

bool DeviceExperts::Look(std::span<ExpertPresence> places, std::vector<LinkUse>& links) const {
  for (size_t i = 0; i < places.size(); ++i) {
    if (placement_.device(static_cast<ExpertIndex>(i)) == ExpertPlacement::kHost) {
      places[i] = ExpertPresence::kResident;
    }
  }
  for (const Link& link : links_) {
    if (link.loader) {
      link.loader->Look(places, links);
    } else {
      links.emplace_back();
    }
  }
  return true;
}

int64_t DeviceExperts::slots() const {
  int64_t slots = 0;
  for (const DeviceStatus& status : status_) slots += status.slots;
  return slots;
}

int64_t DeviceExperts::resident() const {
  int64_t resident = 0;
  for (const Link& link : links_) resident += link.loader ? link.loader->resident() : 0;
  return resident;
}

std::span<const DeviceStatus> DeviceExperts::devices() {
  for (size_t d = 0; d < links_.size(); ++d) {
    status_[d].resident = links_[d].loader ? links_[d].loader->resident() : 0;
    status_[d].lost = status_[d].lost || links_[d].device->lost().has_value();
  }
  return status_;
}

}  // namespace moesaic
