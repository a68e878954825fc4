#include "prefetch/expert_loader.h"

#include <pthread.h>

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/mutex.h"
#include "core/base/units.h"
#include "prefetch/transfer_lanes.h"

namespace moesaic {
namespace {

ExpertLoaderOptions WithDefaults(ExpertLoaderOptions options) {
  if (options.packet_bytes == 0) options.packet_bytes = kDefaultPacketBytes;
  options.packet_bytes = static_cast<uint32_t>(
      RoundUp(std::min<uint64_t>(options.packet_bytes, uint64_t{1} << 30), ReadPlan::kPageBytes));
  if (options.depth <= 0) options.depth = kDefaultReadDepth;
  return options;
}

int64_t SlotCount(const ExpertSource& source, const ExpertGrid& grid, uint64_t budget_bytes) {
  int64_t layers = 0;
  for (int layer = 0; layer < grid.num_layers(); ++layer) layers += source.HasLayer(layer) ? 1 : 0;
  const uint64_t slot_bytes = source.layout().slot_bytes;
  CHECK_GT(slot_bytes, 0u);
  if (budget_bytes < slot_bytes) {
    Fail(ErrorKind::kResourceExhausted,
         "the memory for experts is {}, but one expert takes {} ({} bytes): raise --expert-memory "
         "to at least that",
         FormatBytes(budget_bytes), FormatBytes(slot_bytes), slot_bytes);
  }
  return static_cast<int64_t>(std::min<uint64_t>(
      budget_bytes / slot_bytes,
      std::max<uint64_t>(
          1, static_cast<uint64_t>(layers) * static_cast<uint64_t>(grid.num_experts()))));
}

// A layer's read that arrives while prefetches are in flight waits for them: fewer than a layer's
// own reads, yet enough to keep a disk busy.
int PrefetchDepth(int depth) { return std::max(1, depth / 4); }

// A read's tag: the lane, the packet, and whether nobody waited for it when it was issued.
constexpr uint64_t kPrefetchTag = uint64_t{1} << 63;

uint64_t MakeTag(int lane, int32_t packet, bool prefetch) {
  return static_cast<uint64_t>(lane) << 32 | static_cast<uint32_t>(packet) |
         (prefetch ? kPrefetchTag : 0);
}

}  // namespace

ExpertStats& ExpertStats::operator+=(const ExpertStats& other) {
  hits += other.hits;
  late_hits += other.late_hits;
  misses += other.misses;
  evictions += other.evictions;
  bytes_read += other.bytes_read;
  blocked_us += other.blocked_us;
  prefetched += other.prefetched;
  prefetched_used += other.prefetched_used;
  prefetched_unused += other.prefetched_unused;
  return *this;
}

class ExpertLoader::Impl {
 public:
  Impl(const ExpertSource& source, const ExpertGrid& grid, std::unique_ptr<EvictionPolicy> policy,
       const ExpertLoaderOptions& options, std::unique_ptr<AsyncReader> reader);
  ~Impl();

  void BeginRequest(int request);
  void EndRequest(int request) EXCLUDES(mutex_);
  void BeginStep(std::span<const StepRequest> requests) EXCLUDES(mutex_);
  void OnRouting(int layer, std::span<const int32_t> experts);
  void BeginLayer(std::span<const ExpertId> needed) EXCLUDES(mutex_);
  bool NextReady(std::vector<PinnedExpert>& out) EXCLUDES(mutex_);
  void Release(const PinnedExpert& expert) EXCLUDES(mutex_);
  ExpertStats EndLayer() EXCLUDES(mutex_);
  int64_t Preload(std::span<const ExpertId> experts, const std::function<bool(int64_t)>& keep_going)
      EXCLUDES(mutex_);
  void Clear() EXCLUDES(mutex_);

  int64_t slots() const { return slots_; }
  bool prefetching() const { return prefetch_ != nullptr; }
  int64_t resident() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return cache_.resident();
  }
  uint64_t memory_bytes() const { return slab_.bytes() + sizes_.staging_bytes(); }
  ReadBackend backend() const { return reader_->backend(); }
  ExpertCacheCounters cache_counters() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return cache_.counters();
  }
  TransferCounters transfer_counters() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return queue_.counters();
  }

 private:
  // What the open layer has had of an expert.
  enum class Need : uint8_t { kNone, kWaiting, kPinned, kReleased };

  // --- any thread, under the lock
  bool StartLoads() REQUIRES(mutex_);
  void AddTransfer(ExpertIndex expert, TransferClass kind, float priority) REQUIRES(mutex_);
  void CancelWaiting() REQUIRES(mutex_);
  bool StartPrefetch() REQUIRES(mutex_);
  bool IsPrefetch(ExpertIndex expert) REQUIRES(mutex_);
  void CancelPrefetch(ExpertIndex expert) REQUIRES(mutex_);
  void CancelPrefetchesFor(size_t slots_needed) REQUIRES(mutex_);
  void CancelStalePrefetches() REQUIRES(mutex_);
  void Forget(ExpertIndex expert) REQUIRES(mutex_);
  uint64_t ExpertBytes(ExpertIndex expert) const;
  void Arrive(ExpertIndex expert, TransferState state) REQUIRES(mutex_);
  void Commit(ExpertIndex expert) REQUIRES(mutex_);
  void Drop(ExpertIndex expert, std::exception_ptr error) REQUIRES(mutex_);
  std::span<std::byte> SlotMemory(ExpertCache::Slot slot) {
    return slab_.span().subspan(static_cast<size_t>(slot) * slot_bytes_, slot_bytes_);
  }
  int64_t Now() const { return clock_.NowNs(); }
  void WaitForProgress() REQUIRES(mutex_);

  // --- the I/O thread and the packing threads
  void IoThread() EXCLUDES(mutex_);
  void IoLoop() EXCLUDES(mutex_);
  bool CollectRequests() EXCLUDES(mutex_);
  bool PackSome() EXCLUDES(mutex_);
  bool PackOne() EXCLUDES(mutex_);
  void PackThread() EXCLUDES(mutex_);

  const ExpertSource& source_;
  const ExpertGrid grid_;
  const ExpertLoaderOptions options_;
  const bool direct_;
  const uint64_t slot_bytes_;
  const int64_t slots_;
  const LaneSizes sizes_;
  const SteadyClock clock_;
  AlignedBuffer slab_;   // [slots, slot_bytes]
  TransferLanes lanes_;  // a lane belongs to the thread that reads into it or packs it
  // Null without a prefetcher; its own contract says what is called under the lock.
  const std::unique_ptr<LinkPrefetch> prefetch_;

  Mutex mutex_;
  CondVar progress_;   // an expert arrived or failed; the consumer waits here
  CondVar pack_work_;  // packing threads wait here
  ExpertCache cache_ GUARDED_BY(mutex_);
  TransferQueue queue_ GUARDED_BY(mutex_);
  ReadPlan scratch_plan_ GUARDED_BY(mutex_);
  std::vector<int> to_pack_ GUARDED_BY(mutex_);  // lanes whose bytes are there, oldest first
  bool stop_ GUARDED_BY(mutex_) = false;
  std::exception_ptr fatal_ GUARDED_BY(mutex_);  // the I/O thread ended with it

  // The open layer.
  bool layer_open_ GUARDED_BY(mutex_) = false;
  std::vector<ExpertIndex> needed_ GUARDED_BY(mutex_);
  std::vector<ExpertIndex> missing_ GUARDED_BY(mutex_);  // of needed_, in its order
  size_t next_missing_ GUARDED_BY(mutex_) = 0;           // the first whose load was not started
  std::vector<ExpertIndex> ready_ GUARDED_BY(mutex_);    // resident and not handed out
  std::vector<Need> need_ GUARDED_BY(mutex_);            // [total experts]
  int64_t not_handed_out_ GUARDED_BY(mutex_) = 0;
  std::exception_ptr layer_error_ GUARDED_BY(mutex_);

  bool may_prefetch_ GUARDED_BY(mutex_) = false;  // something was predicted for requests that run
  std::vector<uint8_t> began_as_prefetch_ GUARDED_BY(mutex_);  // [total experts] while it loads
  int64_t moved_before_ns_ GUARDED_BY(mutex_) = 0;
  bool preloading_ GUARDED_BY(mutex_) = false;
  std::exception_ptr preload_error_ GUARDED_BY(mutex_);

  // Since the last EndLayer.
  ExpertStats stats_ GUARDED_BY(mutex_);
  int64_t blocked_ns_ GUARDED_BY(mutex_) = 0;
  ExpertCacheCounters counters_before_ GUARDED_BY(mutex_);

  // The I/O thread's own.
  std::vector<ReadRequest> requests_;
  std::vector<ReadCompletion> completions_;
  int reads_in_flight_ = 0;
  int prefetch_reads_in_flight_ = 0;  // of those

  // Goes before the memory that it reads into.
  std::unique_ptr<AsyncReader> reader_;
  std::vector<std::thread> threads_;
};

ExpertLoader::Impl::Impl(const ExpertSource& source, const ExpertGrid& grid,
                         std::unique_ptr<EvictionPolicy> policy, const ExpertLoaderOptions& options,
                         std::unique_ptr<AsyncReader> reader)
    : source_(source),
      grid_(grid),
      options_(WithDefaults(options)),
      direct_(source.direct()),
      slot_bytes_(source.layout().slot_bytes),
      slots_(SlotCount(source, grid, options.budget_bytes)),
      sizes_(PlanLanes(source, grid, slots_, options_.depth, options_.packet_bytes)),
      slab_(static_cast<size_t>(slots_) * slot_bytes_),
      lanes_(source, sizes_, reader->aligned_only(), options_.packet_bytes),
      prefetch_(options_.prefetcher != nullptr &&
                        MayPrefetch(slots_, options_.prefetcher->shape().top_k)
                    ? std::make_unique<LinkPrefetch>(source, grid, *options_.prefetcher,
                                                     options_.evicts_by_worth)
                    : nullptr),
      cache_(grid.total(), slots_, slot_bytes_, std::move(policy)),
      queue_(grid.total(), sizes_.lanes, sizes_.max_packets, options_.max_retries),
      reader_(std::move(reader)) {
  const auto experts = static_cast<size_t>(grid.num_experts());
  const auto depth = static_cast<size_t>(options_.depth);
  {
    MutexLock lock(mutex_);
    scratch_plan_.Reserve(sizes_.max_extents);
    to_pack_.reserve(static_cast<size_t>(sizes_.lanes));
    needed_.reserve(experts);
    missing_.reserve(experts);
    ready_.reserve(experts);
    need_.assign(static_cast<size_t>(grid.total()), Need::kNone);
    began_as_prefetch_.assign(static_cast<size_t>(grid.total()), 0);
  }
  requests_.reserve(depth);
  completions_.reserve(depth);
  threads_.emplace_back([this] { IoThread(); });
  for (int i = 0; i < options_.pack_threads; ++i) threads_.emplace_back([this] { PackThread(); });
}

ExpertLoader::Impl::~Impl() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    pack_work_.NotifyAll();
  }
  reader_->Wake();
  for (std::thread& thread : threads_) thread.join();
}

void ExpertLoader::Impl::BeginRequest(int request) {
  if (prefetch_) prefetch_->BeginRequest(request);
}

void ExpertLoader::Impl::EndRequest(int request) {
  if (!prefetch_) return;
  prefetch_->EndRequest(request);
  if (!prefetch_->idle()) return;
  MutexLock lock(mutex_);
  may_prefetch_ = false;  // what was predicted is for nobody
}

void ExpertLoader::Impl::BeginStep(std::span<const StepRequest> requests) {
  if (!prefetch_) return;
  prefetch_->BeginStep(requests);
  {
    MutexLock lock(mutex_);
    prefetch_->Publish();
    prefetch_->StepBegan(Now());
    may_prefetch_ = true;
  }
  reader_->Wake();
}

// What was predicted is published when the layer begins: in between, the I/O thread could evict
// what this layer is about to want.
void ExpertLoader::Impl::OnRouting(int layer, std::span<const int32_t> experts) {
  if (prefetch_) prefetch_->OnRouting(layer, experts);
}

void ExpertLoader::Impl::BeginLayer(std::span<const ExpertId> needed) {
  bool started = false;
  {
    MutexLock lock(mutex_);
    CHECK(!layer_open_);
    layer_open_ = true;
    if (prefetch_) {
      prefetch_->LayerBegan(Now());
      if (prefetch_->predicted()) {
        prefetch_->Publish();
        started = true;
      }
    }
    next_missing_ = 0;
    for (const ExpertId id : needed) {
      const ExpertIndex expert = grid_.Index(id);
      Need& need = need_[static_cast<size_t>(expert)];
      CHECK(need == Need::kNone);  // distinct
      need = Need::kWaiting;
      needed_.push_back(expert);
      cache_.Want(expert);
      switch (cache_.state(expert)) {
        case ExpertCache::State::kResident:
          ++stats_.hits;
          ready_.push_back(expert);
          break;
        case ExpertCache::State::kLoading: {
          ++stats_.late_hits;
          const TransferState state = queue_.state(expert);
          if (state == TransferState::kWaiting || state == TransferState::kMoving) {
            queue_.Update(expert, TransferClass::kOnDemand, 0);
            started = true;
          }
          break;
        }
        case ExpertCache::State::kAbsent:
          ++stats_.misses;
          missing_.push_back(expert);
          break;
      }
    }
    not_handed_out_ = static_cast<int64_t>(needed_.size());
    if (prefetch_) CancelStalePrefetches();
    started |= StartLoads();
  }
  if (started) reader_->Wake();
}

bool ExpertLoader::Impl::NextReady(std::vector<PinnedExpert>& out) {
  MutexLock lock(mutex_);
  CHECK(layer_open_);
  for (;;) {
    if (layer_error_) std::rethrow_exception(layer_error_);
    if (not_handed_out_ == 0) return false;
    if (!ready_.empty()) break;
    if (fatal_) std::rethrow_exception(fatal_);
    // Nothing on its way means that every slot is pinned by the caller, who would wait for ever.
    CHECK_GT(cache_.loading(), 0);
    const int64_t begin_ns = Now();
    progress_.Wait(mutex_);
    blocked_ns_ += Now() - begin_ns;
  }
  out.reserve(out.size() + ready_.size());
  const int64_t now = Now();
  for (const ExpertIndex expert : ready_) {
    const std::optional<ExpertCache::Slot> slot = cache_.Pin(expert, now);
    CHECK(slot.has_value());
    cache_.Unwant(expert);
    need_[static_cast<size_t>(expert)] = Need::kPinned;
    out.push_back({grid_.Id(expert), SlotMemory(*slot).data()});
  }
  not_handed_out_ -= static_cast<int64_t>(ready_.size());
  ready_.clear();
  return true;
}

void ExpertLoader::Impl::Release(const PinnedExpert& pinned) {
  bool started = false;
  {
    MutexLock lock(mutex_);
    const ExpertIndex expert = grid_.Index(pinned.id);
    CHECK(need_[static_cast<size_t>(expert)] == Need::kPinned);
    need_[static_cast<size_t>(expert)] = Need::kReleased;
    cache_.Unpin(expert);
    started = StartLoads();
  }
  if (started) reader_->Wake();
}

ExpertStats ExpertLoader::Impl::EndLayer() {
  MutexLock lock(mutex_);
  CHECK(layer_open_);
  for (const ExpertIndex expert : needed_) {
    Need& need = need_[static_cast<size_t>(expert)];
    if (need == Need::kPinned) cache_.Unpin(expert);
    if (need == Need::kWaiting) {
      cache_.Unwant(expert);
      if (queue_.state(expert) == TransferState::kMoving) {
        // The bytes that came are worth finishing, but nobody waits for them.
        queue_.Update(expert, TransferClass::kPrefetch, 0);
      }
    }
    need = Need::kNone;
  }
  CancelWaiting();
  needed_.clear();
  missing_.clear();
  next_missing_ = 0;
  ready_.clear();
  not_handed_out_ = 0;
  layer_error_ = nullptr;
  layer_open_ = false;

  ExpertStats stats = std::exchange(stats_, {});
  stats.blocked_us = static_cast<uint64_t>(blocked_ns_ / 1000);
  blocked_ns_ %= 1000;
  const ExpertCacheCounters before = std::exchange(counters_before_, cache_.counters());
  stats.evictions = cache_.counters().evicted - before.evicted;
  stats.prefetched_used = cache_.counters().prefetched_used - before.prefetched_used;
  stats.prefetched_unused = cache_.counters().prefetched_unused - before.prefetched_unused;
  return stats;
}

int64_t ExpertLoader::Impl::Preload(std::span<const ExpertId> experts,
                                    const std::function<bool(int64_t)>& keep_going) {
  MutexLock lock(mutex_);
  CHECK(!layer_open_);
  CHECK(!preloading_);
  may_prefetch_ = false;
  while (cache_.loading() > 0) WaitForProgress();  // what an earlier layer left behind
  preloading_ = true;
  const uint64_t before = cache_.counters().inserted;
  for (const ExpertId id : experts) {
    if (cache_.free_slots() == 0) break;
    const ExpertIndex expert = grid_.Index(id);
    if (cache_.state(expert) != ExpertCache::State::kAbsent) continue;
    CHECK(cache_.Reserve(expert, LoadReason::kPreload, Now()).has_value());
    AddTransfer(expert, TransferClass::kPrefetch, 0);
  }
  reader_->Wake();
  bool going = true;
  uint64_t told = before;
  for (;;) {
    if (preload_error_) CancelWaiting();
    if (going && keep_going && cache_.counters().inserted != told) {
      told = cache_.counters().inserted;
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
      if (!going) CancelWaiting();
      continue;
    }
    if (cache_.loading() == 0 || fatal_) break;
    progress_.Wait(mutex_);
  }
  preloading_ = false;
  const std::exception_ptr error = std::exchange(preload_error_, nullptr);
  if (error) std::rethrow_exception(error);
  if (fatal_) std::rethrow_exception(fatal_);
  return static_cast<int64_t>(cache_.counters().inserted - before);
}

void ExpertLoader::Impl::Clear() {
  MutexLock lock(mutex_);
  CHECK(!layer_open_);
  may_prefetch_ = false;
  CancelWaiting();
  while (cache_.loading() > 0) WaitForProgress();
  cache_.Drop(Now());
}

void ExpertLoader::Impl::WaitForProgress() {
  if (fatal_) std::rethrow_exception(fatal_);
  progress_.Wait(mutex_);
}

// Gives slots to missing experts of the open layer while there are any to be had. Returns whether
// the I/O thread has something new to do.
bool ExpertLoader::Impl::StartLoads() {
  bool started = false;
  while (next_missing_ < missing_.size() && !layer_error_) {
    const ExpertIndex expert = missing_[next_missing_];
    if (!cache_.Reserve(expert, LoadReason::kOnDemand, Now()).has_value()) {
      if (prefetch_) CancelPrefetchesFor(missing_.size() - next_missing_);
      if (cache_.free_slots() == 0) break;
      continue;
    }
    AddTransfer(expert, TransferClass::kOnDemand, 0);
    ++next_missing_;
    started = true;
  }
  return started;
}

void ExpertLoader::Impl::AddTransfer(ExpertIndex expert, TransferClass kind, float priority) {
  scratch_plan_.Build(source_.Extents(grid_.Id(expert)), reader_->aligned_only(),
                      options_.packet_bytes);
  queue_.Add(expert, scratch_plan_.packets(), kind, priority, Now());
}

// Drops the loads of which nothing was read.
void ExpertLoader::Impl::CancelWaiting() {
  for (const ExpertIndex expert : cache_.slot_experts()) {
    if (expert == kNoExpert || queue_.state(expert) != TransferState::kWaiting) continue;
    queue_.Cancel(expert);
    Forget(expert);
  }
}

// Gives a slot to the expert that is best fetched ahead now. Called when no other packet may be
// issued.
bool ExpertLoader::Impl::StartPrefetch() {
  if (!may_prefetch_ || preloading_ || next_missing_ < missing_.size()) return false;
  // Lanes and slots for what the next layer lacks.
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(sizes_.lanes - 1, slots_ / 4));
  if (queue_.size() >= most) return false;
  const std::optional<Prefetcher::Candidate> next = prefetch_->Next(cache_, Now());
  if (!next || !cache_.Reserve(next->expert, LoadReason::kPrefetch, Now())) return false;
  AddTransfer(next->expert, TransferClass::kPrefetch, static_cast<float>(next->worth));
  began_as_prefetch_[static_cast<size_t>(next->expert)] = 1;
  ++stats_.prefetched;
  return true;
}

// Being read, and no layer waits for it.
bool ExpertLoader::Impl::IsPrefetch(ExpertIndex expert) {
  if (expert == kNoExpert || cache_.wanted(expert)) return false;
  const TransferState state = queue_.state(expert);
  return (state == TransferState::kWaiting || state == TransferState::kMoving) &&
         queue_.kind(expert) == TransferClass::kPrefetch;
}

void ExpertLoader::Impl::CancelPrefetch(ExpertIndex expert) {
  if (queue_.cancelling(expert)) return;
  if (queue_.Cancel(expert) == TransferState::kCancelled) Forget(expert);
}

// The layer lacks that many slots: as many prefetches yield theirs, at once or when their packets
// in flight have come back.
void ExpertLoader::Impl::CancelPrefetchesFor(size_t slots_needed) {
  for (const ExpertIndex expert : cache_.slot_experts()) {
    if (slots_needed == 0) return;
    if (!IsPrefetch(expert)) continue;
    CancelPrefetch(expert);
    --slots_needed;
  }
}

void ExpertLoader::Impl::CancelStalePrefetches() {
  if (queue_.size() == 0) return;
  for (const ExpertIndex expert : cache_.slot_experts()) {
    if (IsPrefetch(expert) && prefetch_->Stale(expert)) CancelPrefetch(expert);
  }
}

uint64_t ExpertLoader::Impl::ExpertBytes(ExpertIndex expert) const {
  uint64_t bytes = 0;
  for (const Extent& extent : source_.Extents(grid_.Id(expert))) bytes += extent.bytes;
  return bytes;
}

// A transfer that is over and brought nothing.
void ExpertLoader::Impl::Forget(ExpertIndex expert) {
  if (!preloading_ && queue_.state(expert) == TransferState::kCancelled) {
    stats_.bytes_read += ExpertBytes(expert) * static_cast<uint64_t>(queue_.packets_done(expert)) /
                         static_cast<uint64_t>(queue_.packets(expert));
  }
  queue_.Remove(expert);
  cache_.Abandon(expert);
  began_as_prefetch_[static_cast<size_t>(expert)] = 0;
}

// A transfer's state after one of its packets came back.
void ExpertLoader::Impl::Arrive(ExpertIndex expert, TransferState state) {
  switch (state) {
    case TransferState::kMoving:
      break;
    case TransferState::kDone:
      if (prefetch_) {
        // Transfers that move at the same time share the link.
        const int64_t moved_ns = queue_.counters().moved;
        prefetch_->CopyTook((moved_ns - moved_before_ns_) / queue_.size());
        moved_before_ns_ = moved_ns;
      }
      if (direct_) {
        Commit(expert);
      } else {
        to_pack_.push_back(queue_.lane(expert));
        pack_work_.NotifyOne();
      }
      break;
    case TransferState::kFailed:
      Drop(expert, lanes_.error(queue_.lane(expert)));
      break;
    case TransferState::kCancelled:
      Drop(expert, nullptr);
      break;
    default:
      CHECK(false);
  }
}

void ExpertLoader::Impl::Commit(ExpertIndex expert) {
  queue_.Remove(expert);
  cache_.Commit(expert, Now());
  if (!preloading_) stats_.bytes_read += ExpertBytes(expert);
  began_as_prefetch_[static_cast<size_t>(expert)] = 0;
  if (prefetch_) prefetch_->SetUnreadable(expert, false);
  if (need_[static_cast<size_t>(expert)] == Need::kWaiting) ready_.push_back(expert);
  StartLoads();
  progress_.NotifyAll();
}

void ExpertLoader::Impl::Drop(ExpertIndex expert, std::exception_ptr error) {
  const bool prefetched = began_as_prefetch_[static_cast<size_t>(expert)] != 0;
  Forget(expert);
  if (error && prefetch_) prefetch_->SetUnreadable(expert, true);
  if (error) {
    if (need_[static_cast<size_t>(expert)] == Need::kWaiting) {
      if (prefetched) {
        missing_.push_back(expert);  // a layer's own tries are still to come
      } else if (!layer_error_) {
        layer_error_ = error;
      }
    } else if (preloading_) {
      if (!preload_error_) preload_error_ = error;
    } else {
      const ExpertId id = grid_.Id(expert);
      LogWarn("expert {} of layer {} could not be loaded; nobody waits for it any more", id.index,
              id.layer);
    }
  }
  StartLoads();
  progress_.NotifyAll();
}

void ExpertLoader::Impl::IoThread() {
  pthread_setname_np(pthread_self(), "expert-io");
  try {
    IoLoop();
  } catch (...) {
    MutexLock lock(mutex_);
    fatal_ = std::current_exception();
    progress_.NotifyAll();
  }
}

// Packing comes between submitting and waiting: the disk works on what was submitted meanwhile.
void ExpertLoader::Impl::IoLoop() {
  while (CollectRequests()) {
    for (const ReadRequest& request : requests_) reader_->Submit(request);
    reads_in_flight_ += static_cast<int>(requests_.size());
    const bool packed = options_.pack_threads == 0 && PackSome();

    completions_.clear();
    reader_->Wait(completions_, packed ? 0 : -1);
    if (completions_.empty()) continue;
    reads_in_flight_ -= static_cast<int>(completions_.size());
    MutexLock lock(mutex_);
    for (const ReadCompletion& completion : completions_) {
      if ((completion.tag & kPrefetchTag) != 0) --prefetch_reads_in_flight_;
      const auto lane = static_cast<int>((completion.tag & ~kPrefetchTag) >> 32);
      const auto packet = static_cast<int32_t>(completion.tag & 0xffffffffu);
      const PacketResult result = lanes_.Check(lane, packet, completion.result);
      const ExpertIndex expert = grid_.Index(lanes_.id(lane));
      Arrive(expert, queue_.CompletePacket(expert, packet, result, Now()));
    }
  }
}

// Fills requests_ with what the reader has room for. Returns false when the thread is to end.
bool ExpertLoader::Impl::CollectRequests() {
  requests_.clear();
  MutexLock lock(mutex_);
  if (stop_) return reads_in_flight_ > 0;
  const int prefetch_depth = PrefetchDepth(options_.depth);
  const int room = std::min(options_.depth - reads_in_flight_, reader_->free_slots());
  while (static_cast<int>(requests_.size()) < room) {
    const int on_demand =
        reads_in_flight_ + static_cast<int>(requests_.size()) - prefetch_reads_in_flight_;
    const bool for_layers = prefetch_ != nullptr && !preloading_ &&
                            (on_demand > 0 || prefetch_reads_in_flight_ >= prefetch_depth);
    std::optional<TransferQueue::Packet> packet = queue_.NextPacket(Now(), for_layers);
    if (!packet && prefetch_ != nullptr && !for_layers && StartPrefetch()) {
      packet = queue_.NextPacket(Now());
    }
    if (!packet) break;
    if (packet->first) {
      lanes_.Begin(packet->lane, grid_.Id(packet->expert), SlotMemory(cache_.slot(packet->expert)));
    }
    if (!lanes_.HasReads(packet->lane)) {
      Arrive(packet->expert,
             queue_.CompletePacket(packet->expert, packet->packet, PacketResult::kOk, Now()));
      continue;
    }
    const bool prefetch = queue_.kind(packet->expert) == TransferClass::kPrefetch;
    if (prefetch) ++prefetch_reads_in_flight_;
    requests_.push_back(lanes_.Request(packet->lane, packet->packet,
                                       MakeTag(packet->lane, packet->packet, prefetch)));
  }
  return true;
}

// Packs one expert, or several small ones: about a packet's worth before the disk is looked after
// again.
bool ExpertLoader::Impl::PackSome() {
  uint64_t packed_bytes = 0;
  while (packed_bytes < options_.packet_bytes && PackOne()) packed_bytes += slot_bytes_;
  return packed_bytes > 0;
}

bool ExpertLoader::Impl::PackOne() {
  int lane = 0;
  {
    MutexLock lock(mutex_);
    if (to_pack_.empty()) return false;
    lane = to_pack_.front();
    to_pack_.erase(to_pack_.begin());
  }
  std::exception_ptr error;
  try {
    lanes_.Finish(lane);
  } catch (...) {
    error = std::current_exception();
  }
  MutexLock lock(mutex_);
  const ExpertIndex expert = grid_.Index(lanes_.id(lane));
  if (error) {
    Drop(expert, error);
  } else {
    Commit(expert);
  }
  return true;
}

void ExpertLoader::Impl::PackThread() {
  pthread_setname_np(pthread_self(), "expert-pack");
  for (;;) {
    {
      MutexLock lock(mutex_);
      while (to_pack_.empty() && !stop_) pack_work_.Wait(mutex_);
      if (stop_) return;
    }
    // A lane and perhaps a slot became free: the I/O thread may have more to read.
    if (PackOne()) reader_->Wake();
  }
}

ExpertLoader::ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
                           std::unique_ptr<EvictionPolicy> policy,
                           const ExpertLoaderOptions& options)
    : ExpertLoader(source, num_layers, num_experts, std::move(policy), options,
                   OpenAsyncReader(source.files(), options.backend, WithDefaults(options).depth)) {}

ExpertLoader::ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
                           std::unique_ptr<EvictionPolicy> policy,
                           const ExpertLoaderOptions& options, std::unique_ptr<AsyncReader> reader)
    : impl_(std::make_unique<Impl>(source, ExpertGrid(num_layers, num_experts), std::move(policy),
                                   options, std::move(reader))) {}

ExpertLoader::~ExpertLoader() = default;

void ExpertLoader::BeginRequest(int request) { impl_->BeginRequest(request); }
void ExpertLoader::EndRequest(int request) { impl_->EndRequest(request); }
void ExpertLoader::BeginStep(std::span<const StepRequest> requests) { impl_->BeginStep(requests); }
void ExpertLoader::OnRouting(int layer, std::span<const int32_t> experts) {
  impl_->OnRouting(layer, experts);
}
void ExpertLoader::BeginLayer(std::span<const ExpertId> needed) { impl_->BeginLayer(needed); }
bool ExpertLoader::NextReady(std::vector<PinnedExpert>& out) { return impl_->NextReady(out); }
void ExpertLoader::Release(const PinnedExpert& expert) { impl_->Release(expert); }
ExpertStats ExpertLoader::EndLayer() { return impl_->EndLayer(); }
int64_t ExpertLoader::Preload(std::span<const ExpertId> experts,
                              const std::function<bool(int64_t)>& keep_going) {
  return impl_->Preload(experts, keep_going);
}
void ExpertLoader::Clear() { impl_->Clear(); }
int64_t ExpertLoader::slots() const { return impl_->slots(); }
bool ExpertLoader::prefetching() const { return impl_->prefetching(); }
int64_t ExpertLoader::resident() const { return impl_->resident(); }
uint64_t ExpertLoader::slot_memory_bytes() const { return impl_->memory_bytes(); }
ReadBackend ExpertLoader::backend() const { return impl_->backend(); }
ExpertCacheCounters ExpertLoader::cache_counters() const { return impl_->cache_counters(); }
TransferCounters ExpertLoader::transfer_counters() const { return impl_->transfer_counters(); }

uint64_t ExpertLoader::StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                                    const ExpertLoaderOptions& options) {
  const ExpertLoaderOptions all = WithDefaults(options);
  const ExpertGrid grid(num_layers, num_experts);
  return PlanLanes(source, grid, SlotCount(source, grid, all.budget_bytes), all.depth,
                   all.packet_bytes)
      .staging_bytes();
}

}  // namespace moesaic
