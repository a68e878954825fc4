#include "prefetch/link/expert_loader.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

int64_t SlotCount(const ExpertSource& source, const ExpertGrid& grid,
                  const ExpertLoaderOptions& options, uint64_t budget_bytes) {
  auto experts = static_cast<int64_t>(options.experts.size());
  if (experts == 0) {
    experts = int64_t{SparseLayers(source, grid.num_layers()).count()} * grid.num_experts();
  }
  const uint64_t slot_bytes = source.layout().slot_bytes;
  CHECK_GT(slot_bytes, 0u);
  if (!options.slot_memory.empty()) budget_bytes = options.slot_memory.size();
  if (budget_bytes < slot_bytes) {
    Fail(ErrorKind::kResourceExhausted,
         "the memory for experts is {}, but one expert takes {} ({} bytes): raise --expert-memory "
         "to at least that",
         FormatBytes(budget_bytes), FormatBytes(slot_bytes), slot_bytes);
  }
  return std::min(static_cast<int64_t>(budget_bytes / slot_bytes), std::max<int64_t>(1, experts));
}

int64_t SlotsAtFirst(const ExpertSource& source, const ExpertGrid& grid,
                     const ExpertLoaderOptions& options) {
  return SlotCount(source, grid, options, options.budget_bytes);
}

int64_t MostSlots(const ExpertSource& source, const ExpertGrid& grid,
                  const ExpertLoaderOptions& options) {
  return SlotCount(source, grid, options,
                   std::max(options.budget_bytes, options.most_budget_bytes));
}

}  // namespace

ExpertLoader::ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
                           std::unique_ptr<EvictionPolicy> policy,
                           const ExpertLoaderOptions& options, std::unique_ptr<AsyncReader> reader)
    : LinkMover(source, ExpertGrid(num_layers, num_experts),
                MostSlots(source, ExpertGrid(num_layers, num_experts), options), options,
                std::move(reader),
                [&](LinkParameters link) {
                  const ExpertGrid grid(num_layers, num_experts);
                  link.most_slots = link.slots;
                  link.slots = SlotsAtFirst(source, grid, options);
                  return std::make_unique<ExpertFlow>(grid, std::move(link), std::move(policy),
                                                      options);
                }),
      slot_bytes_(source.layout().slot_bytes),
      resizable_(options.most_budget_bytes > 0) {
  CHECK(!resizable_ || (options.slot_memory.empty() && options.readers == nullptr));
}

uint64_t ExpertLoader::StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                                    const ExpertLoaderOptions& options) {
  const ExpertGrid grid(num_layers, num_experts);
  return LinkMover::StagingBytes(source, grid, MostSlots(source, grid, options), options);
}

void ExpertLoader::BeginLayer(std::span<const ExpertId> needed, std::vector<MissedExpert>& missed) {
  const Change change(*this);
  OpenLayer(needed);
  flow().Missed(missed);
}

void ExpertLoader::StartLoads(std::span<MissedExpert> plan) {
  const Change change(*this);
  for (MissedExpert& miss : plan) {
    if (miss.link != flow().link() || !miss.on_host) continue;
    miss.on_host = flow().ComputeOnHost(miss.expert, Now());
  }
  flow().StartLoads(Now());
}

void ExpertLoader::Expect(std::span<const ExpertId> experts) {
  const Change change(*this);
  flow().Expect(Indices(experts), Now());
}

bool ExpertLoader::IsResident(ExpertId expert) const {
  const MutexLock lock(mutex_);
  return flow().cache().state(grid().Index(expert)) == ExpertCache::State::kResident;
}

bool ExpertLoader::Look(std::span<ExpertPresence> places, std::vector<LinkUse>& links) const {
  const MutexLock lock(mutex_);
  const ExpertCache& cache = flow().cache();
  for (const ExpertIndex expert : cache.slot_experts()) {
    if (expert == kNoExpert) continue;
    places[static_cast<size_t>(expert)] = cache.state(expert) == ExpertCache::State::kResident
                                              ? ExpertPresence::kResident
                                              : ExpertPresence::kArriving;
  }
  const TransferCounters moved = flow().queue().CountersAt(Now());
  links.push_back({.on_demand_us = moved.on_demand_busy / 1000,
                   .prefetch_us = moved.prefetch_busy / 1000,
                   .on_demand_packets = moved.packets_done - moved.prefetch_packets_done,
                   .prefetch_packets = moved.prefetch_packets_done});
  return true;
}

int64_t ExpertLoader::Preload(std::span<const ExpertId> experts,
                              const std::function<bool(int64_t)>& keep_going) {
  std::vector<ExpertIndex> wanted;
  for (const ExpertId id : experts) wanted.push_back(grid().Index(id));
  const MutexLock lock(mutex_);
  StopLoading();  // what an earlier layer left behind
  const uint64_t before = Inserted();
  flow().BeginPreload(wanted, Now());
  Wake();
  bool going = true;
  uint64_t told = before;
  for (;;) {
    if (preload_error_) flow().CancelWaiting(Now());
    if (going && keep_going && Inserted() != told) {
      told = Inserted();
      std::exception_ptr thrown;
      mutex_.Unlock();
      try {
        going = keep_going(static_cast<int64_t>(told - before));
      } catch (...) {
        thrown = std::current_exception();
        going = false;
      }
      mutex_.Lock();
      if (thrown && !preload_error_) preload_error_ = thrown;
      if (!going) flow().CancelWaiting(Now());
      continue;
    }
    if (flow().cache().loading() == 0 || fatal_) break;
    WaitForProgress();
  }
  flow().EndPreload();
  const std::exception_ptr error = std::exchange(preload_error_, nullptr);
  if (error) std::rethrow_exception(error);
  if (fatal_) std::rethrow_exception(fatal_);
  return static_cast<int64_t>(Inserted() - before);
}

void ExpertLoader::StopLoading() {
  flow().StopPrefetching(Now());
  flow().CancelWaiting(Now());
  while (flow().cache().loading() > 0) WaitForProgress();
}

void ExpertLoader::Clear() {
  const MutexLock lock(mutex_);
  StopLoading();
  flow().EvictAll(Now());
}

// --- the number of slots

int64_t ExpertLoader::LeastSlots() const {
  return std::min(flow().kept() + 1, flow().most_slots());
}

SlotsInUse ExpertLoader::LookAtSlots(std::vector<uint32_t>& uses) const {
  const MutexLock lock(mutex_);
  const std::span<const uint32_t> counted = flow().uses();
  uses.assign(counted.begin(), counted.end());
  return {.slot_bytes = slot_bytes_,
          .held = slots(),
          .usable = flow().cache().usable_slots(),
          .least = LeastSlots(),
          .most = flow().most_slots(),
          .loads = Inserted(),
          .blocked_us = blocked_us()};
}

void ExpertLoader::SetSlots(int64_t slots) {
  const Change change(*this);
  CHECK(resizable_);
  CHECK(LeastSlots() <= slots && slots <= flow().most_slots());
  flow().SetSlots(slots, Now());
  NoteSlots();
}

bool ExpertLoader::prefetching() const {
  const MutexLock lock(mutex_);
  return flow().prefetching();
}

ExpertCacheCounters ExpertLoader::cache_counters() const {
  const MutexLock lock(mutex_);
  return flow().cache().counters();
}

}  // namespace moesaic
