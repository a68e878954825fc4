#include "prefetch/link/expert_loader.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

ExpertLoaderOptions WithDefaults(ExpertLoaderOptions options) {
  if (!options.slot_memory.empty()) options.budget_bytes = options.slot_memory.size();
  if (options.packet_bytes == 0) options.packet_bytes = kDefaultPacketBytes;
  options.packet_bytes = static_cast<uint32_t>(
      RoundUp(std::min<uint64_t>(options.packet_bytes, uint64_t{1} << 30), ReadPlan::kPageBytes));
  if (options.depth <= 0) options.depth = kDefaultReadDepth;
  return options;
}

int64_t SlotCount(const ExpertSource& source, const ExpertGrid& grid,
                  const ExpertLoaderOptions& options) {
  auto experts = static_cast<int64_t>(options.experts.size());
  if (experts == 0) {
    experts = int64_t{SparseLayers(source, grid.num_layers()).count()} * grid.num_experts();
  }
  const uint64_t slot_bytes = source.layout().slot_bytes;
  CHECK_GT(slot_bytes, 0u);
  if (options.budget_bytes < slot_bytes) {
    Fail(ErrorKind::kResourceExhausted,
         "the memory for experts is {}, but one expert takes {} ({} bytes): raise --expert-memory "
         "to at least that",
         FormatBytes(options.budget_bytes), FormatBytes(slot_bytes), slot_bytes);
  }
  return std::min(static_cast<int64_t>(options.budget_bytes / slot_bytes),
                  std::max<int64_t>(1, experts));
}

ExpertFlowOptions FlowOptions(const ExpertLoaderOptions& options, int64_t slots,
                              uint64_t slot_bytes, const LaneSizes& sizes) {
  ExpertFlowOptions flow;
  flow.link = options.link;
  flow.slots = slots;
  flow.slot_bytes = slot_bytes;
  flow.lanes = sizes.lanes;
  flow.max_packets = sizes.max_packets;
  flow.max_retries = options.max_retries;
  flow.copy_ns = options.copy_ns;
  // A layer's read that arrives while prefetches are in flight waits for them: fewer than a layer's
  // own reads, yet enough to keep a disk busy.
  flow.prefetch_depth = std::max(1, options.depth / 4);
  flow.step_predictor = options.step_predictor;
  flow.experts = options.experts;
  flow.log = options.log;
  flow.table = options.table;
  return flow;
}

}  // namespace

ExpertLoader::ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
                           std::unique_ptr<EvictionPolicy> policy,
                           const ExpertLoaderOptions& options)
    : ExpertLoader(source, num_layers, num_experts, std::move(policy), options,
                   OpenAsyncReader(source.files(), options.backend, WithDefaults(options).depth)) {}

ExpertLoader::ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
                           std::unique_ptr<EvictionPolicy> policy,
                           const ExpertLoaderOptions& options, std::unique_ptr<AsyncReader> reader)
    : source_(source),
      grid_(num_layers, num_experts),
      options_(WithDefaults(options)),
      slot_bytes_(source.layout().slot_bytes),
      slots_(SlotCount(source, grid_, options_)),
      sizes_(PlanLanes(source, grid_, slots_, options_.depth, options_.packet_bytes)),
      clock_(options.clock != nullptr ? options.clock : &steady_clock_),
      slab_(options.slot_memory.empty() ? static_cast<size_t>(slots_) * slot_bytes_ : 0),
      slot_memory_(options.slot_memory.empty() ? slab_.span() : options.slot_memory),
      lanes_(source, sizes_, reader->aligned_only(), options_.packet_bytes),
      flow_(grid_, PlanCopies(source, grid_, reader->aligned_only(), options_.packet_bytes),
            std::move(policy), FlowOptions(options_, slots_, slot_bytes_, sizes_)),
      reader_(std::move(reader)) {
  TakePagesFromNodes(slab_.span(), RepeatStretches(options_.slot_stretches, slot_bytes_, slots_));
  const auto experts = static_cast<size_t>(num_experts);
  const auto depth = static_cast<size_t>(options_.depth);
  {
    MutexLock lock(mutex_);
    to_pack_.reserve(static_cast<size_t>(sizes_.lanes));
    failed_.reserve(experts);
  }
  indices_.reserve(3 * experts);  // a layer's; what may be expected with it
  requests_.reserve(depth);
  completions_.reserve(depth);
  StartThreads();
}

ExpertLoader::~ExpertLoader() { StopThreads(); }

void ExpertLoader::StepBegan() {
  {
    MutexLock lock(mutex_);
    if (!flow_.prefetching()) return;
    flow_.StepBegan(Now());
  }
  reader_->Wake();
}

void ExpertLoader::StopPrefetching() {
  MutexLock lock(mutex_);
  flow_.StopPrefetching();
  flow_.Expect({}, Now());
}

void ExpertLoader::BeginLayer(std::span<const ExpertId> needed) {
  bool started = false;
  {
    MutexLock lock(mutex_);
    OpenLayer(needed);
    started = flow_.StartLoads(Now());
  }
  if (started) reader_->Wake();
}

void ExpertLoader::BeginLayer(std::span<const ExpertId> needed, std::vector<MissedExpert>& missed) {
  MutexLock lock(mutex_);
  OpenLayer(needed);
  flow_.Missed(missed);
}

void ExpertLoader::OpenLayer(std::span<const ExpertId> needed) {
  indices_.clear();
  for (const ExpertId id : needed) indices_.push_back(grid_.Index(id));
  flow_.BeginLayer(indices_, Now());
}

void ExpertLoader::StartLoads(std::span<MissedExpert> plan) {
  bool started = false;
  {
    MutexLock lock(mutex_);
    for (MissedExpert& miss : plan) {
      if (miss.link != options_.link || !miss.on_host) continue;
      miss.on_host = flow_.ComputeOnHost(miss.expert, Now());
    }
    started = flow_.StartLoads(Now());
  }
  if (started) reader_->Wake();
}

void ExpertLoader::Expect(std::span<const ExpertId> experts) {
  bool started = false;
  {
    MutexLock lock(mutex_);
    indices_.clear();
    for (const ExpertId id : experts) indices_.push_back(grid_.Index(id));
    started = flow_.Expect(indices_, Now());
  }
  if (started) reader_->Wake();
}

bool ExpertLoader::IsResident(ExpertId expert) const {
  MutexLock lock(mutex_);
  return flow_.cache().state(grid_.Index(expert)) == ExpertCache::State::kResident;
}

bool ExpertLoader::NextReady(std::vector<PinnedExpert>& out) {
  MutexLock lock(mutex_);
  for (;;) {
    if (layer_error_) std::rethrow_exception(layer_error_);
    if (flow_.ready() || !failed_.empty()) break;
    if (flow_.waiting() == 0) return false;
    if (fatal_) std::rethrow_exception(fatal_);
    // Nothing on its way means that every slot is pinned by the caller, who would wait for ever.
    CHECK_GT(flow_.cache().loading(), 0);
    const int64_t begin_ns = Now();
    progress_.Wait(mutex_);
    blocked_ns_ += Now() - begin_ns;
  }
  Take(out);
  return true;
}

void ExpertLoader::TakeReady(std::vector<PinnedExpert>& out) {
  MutexLock lock(mutex_);
  if (layer_error_) std::rethrow_exception(layer_error_);
  if (fatal_ && flow_.waiting() > 0) std::rethrow_exception(fatal_);
  Take(out);
}

void ExpertLoader::Take(std::vector<PinnedExpert>& out) {
  indices_.clear();
  flow_.TakeReady(indices_, Now());
  for (const ExpertIndex expert : indices_) {
    out.push_back({grid_.Id(expert), SlotMemory(expert).data()});
  }
}

void ExpertLoader::TellProgress() {
  progress_.NotifyAll();
  if (options_.on_progress) options_.on_progress();
}

void ExpertLoader::TakeFailed(std::vector<ExpertId>& out) {
  MutexLock lock(mutex_);
  out.insert(out.end(), failed_.begin(), failed_.end());
  failed_.clear();
}

void ExpertLoader::Release(const PinnedExpert& pinned) {
  bool started = false;
  {
    MutexLock lock(mutex_);
    started = flow_.Release(grid_.Index(pinned.id), Now());
  }
  if (started) reader_->Wake();
}

ExpertStats ExpertLoader::EndLayer() {
  MutexLock lock(mutex_);
  ExpertStats stats = flow_.EndLayer(Now());
  stats.blocked_us = static_cast<uint64_t>(blocked_ns_ / 1000);
  blocked_ns_ %= 1000;
  layer_error_ = nullptr;
  failed_.clear();
  return stats;
}

int64_t ExpertLoader::Preload(std::span<const ExpertId> experts,
                              const std::function<bool(int64_t)>& keep_going) {
  std::vector<ExpertIndex> wanted;
  for (const ExpertId id : experts) wanted.push_back(grid_.Index(id));
  MutexLock lock(mutex_);
  flow_.StopPrefetching();
  flow_.Expect({}, Now());
  while (flow_.cache().loading() > 0) WaitForProgress();  // what an earlier layer left behind
  const uint64_t before = Inserted();
  flow_.BeginPreload(wanted, Now());
  reader_->Wake();
  bool going = true;
  uint64_t told = before;
  for (;;) {
    if (preload_error_) flow_.CancelWaiting(Now());
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
      if (!going) flow_.CancelWaiting(Now());
      continue;
    }
    if (flow_.cache().loading() == 0 || fatal_) break;
    progress_.Wait(mutex_);
  }
  flow_.EndPreload();
  const std::exception_ptr error = std::exchange(preload_error_, nullptr);
  if (error) std::rethrow_exception(error);
  if (fatal_) std::rethrow_exception(fatal_);
  return static_cast<int64_t>(Inserted() - before);
}

void ExpertLoader::Clear() {
  MutexLock lock(mutex_);
  flow_.StopPrefetching();
  flow_.Expect({}, Now());
  flow_.CancelWaiting(Now());
  while (flow_.cache().loading() > 0) WaitForProgress();
  flow_.EvictAll(Now());
}

std::vector<ResidentExpert> ExpertLoader::Residents() const {
  std::vector<ResidentExpert> residents;
  {
    MutexLock lock(mutex_);
    const ExpertCache& cache = flow_.cache();
    const int64_t now_ns = Now();
    for (const ExpertIndex expert : cache.slot_experts()) {
      if (expert == kNoExpert || cache.state(expert) != ExpertCache::State::kResident) continue;
      residents.push_back(
          {grid_.Id(expert), static_cast<float>(cache.policy().KeepPriority(expert, now_ns))});
    }
  }
  std::sort(residents.begin(), residents.end(),
            [](const ResidentExpert& a, const ResidentExpert& b) {
              return a.worth != b.worth ? a.worth > b.worth : a.id < b.id;
            });
  return residents;
}

void ExpertLoader::WaitForProgress() {
  if (fatal_) std::rethrow_exception(fatal_);
  progress_.Wait(mutex_);
}

std::span<std::byte> ExpertLoader::SlotMemory(ExpertIndex expert) {
  return slot_memory_.subspan(static_cast<size_t>(flow_.cache().slot(expert)) * slot_bytes_,
                              slot_bytes_);
}

int64_t ExpertLoader::resident() const {
  MutexLock lock(mutex_);
  return flow_.cache().resident();
}

bool ExpertLoader::prefetching() const {
  MutexLock lock(mutex_);
  return flow_.prefetching();
}

ExpertCacheCounters ExpertLoader::cache_counters() const {
  MutexLock lock(mutex_);
  return flow_.cache().counters();
}

TransferCounters ExpertLoader::transfer_counters() const {
  MutexLock lock(mutex_);
  return flow_.queue().counters();
}

uint64_t ExpertLoader::StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                                    const ExpertLoaderOptions& options) {
  const ExpertLoaderOptions all = WithDefaults(options);
  const ExpertGrid grid(num_layers, num_experts);
  return PlanLanes(source, grid, SlotCount(source, grid, all), all.depth, all.packet_bytes)
      .staging_bytes();
}

}  // namespace moesaic
