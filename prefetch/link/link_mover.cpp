#include "prefetch/link/link_mover.h"

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/units.h"
#include "core/io/striped_reader.h"
#include "core/io/throttled_reader.h"

namespace moesaic {
namespace {

// Reads in flight are those of all places that share the reading.
LinkOptions WithDefaults(const ExpertSource& source, LinkOptions options) {
  if (options.packet_bytes == 0) options.packet_bytes = kDefaultPacketBytes;
  options.packet_bytes = static_cast<uint32_t>(
      RoundUp(std::min<uint64_t>(options.packet_bytes, uint64_t{1} << 30), ReadPlan::kPageBytes));
  if (options.depth <= 0) options.depth = kDefaultReadDepth;
  options.depth *= static_cast<int>(source.links());
  return options;
}

std::unique_ptr<AsyncReader> OpenReader(const ExpertSource& source, const LinkOptions& options) {
  if (const size_t links = source.links(); links > 1) {
    return OpenStripedReader(source.replicas(), source.remotes(), options.backend,
                             options.depth / static_cast<int>(links), options.link_bytes_per_s);
  }
  auto reader = OpenAsyncReader(source.files(), options.backend, options.depth);
  if (options.link_bytes_per_s == 0) return reader;
  return MakeThrottledReader(std::move(reader), static_cast<double>(options.link_bytes_per_s));
}

LinkParameters ParametersOf(const ExpertSource& source, const ExpertGrid& grid, int64_t slots,
                            const LinkOptions& options, const LaneSizes& sizes, bool aligned) {
  return {.copies = PlanCopies(source, grid, aligned, options.packet_bytes),
          .experts = options.experts,
          .slots = slots,
          .slot_bytes = source.layout().slot_bytes,
          .depth = options.depth,
          .lanes = sizes.lanes,
          .max_packets = sizes.max_packets,
          .max_retries = options.max_retries};
}

}  // namespace

LinkMover::LinkMover(const ExpertSource& source, const ExpertGrid& grid, int64_t slots,
                     const LinkOptions& options, std::unique_ptr<AsyncReader> reader,
                     MakeFlow make_flow, std::unique_ptr<LinkObserver> observer)
    : grid_(grid),
      options_(WithDefaults(source, options)),
      slot_bytes_(source.layout().slot_bytes),
      sizes_(PlanLanes(source, grid_, slots, options_.depth, options_.packet_bytes)),
      clock_(options.clock != nullptr ? options.clock : &steady_clock_),
      observer_(std::move(observer)),
      reader_(reader != nullptr ? std::move(reader) : OpenReader(source, options_)),
      lanes_(source, grid_, sizes_, reader_->aligned_only(), options_.packet_bytes),
      flow_(
          make_flow(ParametersOf(source, grid_, slots, options_, sizes_, reader_->aligned_only()))),
      slots_(flow_->slots()),
      slab_(options.slot_memory.empty() ? static_cast<size_t>(flow_->most_slots()) * slot_bytes_
                                        : 0),
      slot_memory_(options.slot_memory.empty() ? slab_.span() : options.slot_memory) {
  const int64_t most_slots = flow_->most_slots();
  CHECK_GE(slot_memory_.size(), static_cast<size_t>(most_slots) * slot_bytes_);
  CHECK(most_slots == slots_ || (slab_.bytes() > 0 && !options_.touch_slots));
  TakePagesFromNodes(slab_.span(),
                     RepeatStretches(options_.slot_stretches, slot_bytes_, most_slots));
  const auto experts = static_cast<size_t>(grid_.num_experts());
  const auto depth = static_cast<size_t>(options_.depth);
  {
    const MutexLock lock(mutex_);
    to_pack_.reserve(static_cast<size_t>(sizes_.lanes));
    failed_.reserve(experts);
  }
  indices_.reserve(3 * experts);  // a layer's; what may be expected with it
  requests_.reserve(depth);
  completions_.reserve(depth);
  StartThreads();
}

LinkMover::~LinkMover() {
  StopThreads();
  reader_.reset();  // before the memory that it reads into
}

uint64_t LinkMover::StagingBytes(const ExpertSource& source, const ExpertGrid& grid, int64_t slots,
                                 const LinkOptions& options) {
  const LinkOptions all = WithDefaults(source, options);
  return PlanLanes(source, grid, slots, all.depth, all.packet_bytes).staging_bytes();
}

LinkMover::Change::Change(LinkMover& mover) : mover_(mover) { mover_.mutex_.Lock(); }

LinkMover::Change::~Change() {
  const bool work = mover_.flow_->HasNewWork();
  if (mover_.observer_) {
    mover_.observer_->OnChange(work, mover_.flow_->free_slots(), mover_.Now());
  }
  mover_.mutex_.Unlock();
  if (work) mover_.Wake();
}

std::span<const ExpertIndex> LinkMover::Indices(std::span<const ExpertId> ids) {
  indices_.clear();
  for (const ExpertId id : ids) indices_.push_back(grid_.Index(id));
  return indices_;
}

void LinkMover::StepBegan() {
  const Change change(*this);
  flow_->StepBegan(Now());
}

void LinkMover::StopPrefetching() {
  const Change change(*this);
  flow_->StopPrefetching(Now());
}

void LinkMover::BeginLayer(std::span<const ExpertId> needed, int64_t /*pairs*/) {
  const Change change(*this);
  OpenLayer(needed);
  flow_->StartLoads(Now());
}

void LinkMover::OpenLayer(std::span<const ExpertId> needed) {
  if (observer_) observer_->OnBeginLayer(needed.empty() ? -1 : needed.front().layer, Now());
  flow_->BeginLayer(Indices(needed), Now());
}

// Something for the consumer, or nothing more to wait for.
bool LinkMover::HasNews() {
  return flow_->ready() || flow_->waiting() == 0 || layer_error_ || fatal_ || !failed_.empty();
}

bool LinkMover::NextReady(std::vector<PinnedExpert>& out) {
  const MutexLock lock(mutex_);
  while (!HasNews()) WaitForNews();
  if (layer_error_) std::rethrow_exception(layer_error_);
  if (!flow_->ready() && failed_.empty()) {
    if (flow_->waiting() > 0) std::rethrow_exception(fatal_);
    if (observer_) observer_->OnHandOut(0, Now());
    return false;
  }
  HandOut(out);
  return true;
}

bool LinkMover::TryNextReady(std::vector<PinnedExpert>& out) {
  const MutexLock lock(mutex_);
  if (layer_error_) std::rethrow_exception(layer_error_);
  if (flow_->ready()) {
    HandOut(out);
    return true;
  }
  if (fatal_ && flow_->waiting() > 0) std::rethrow_exception(fatal_);
  return flow_->waiting() > 0 || !failed_.empty();
}

void LinkMover::HandOut(std::vector<PinnedExpert>& out) {
  indices_.clear();
  flow_->TakeReady(indices_, Now());
  for (const ExpertIndex expert : indices_) {
    out.push_back({grid_.Id(expert), SlotMemory(expert).data()});
  }
  if (observer_) observer_->OnHandOut(std::ssize(indices_), Now());
}

void LinkMover::WaitForNews() {
  // Nothing on its way means that every slot is pinned by the caller, who would wait for ever.
  CHECK(flow_->MakesProgress());
  const int64_t begin_ns = Now();
  const auto cause = observer_ ? CauseOfWait() : LinkObserver::WaitCause::kQueue;
  waits_for_news_ = true;
  if (options_.on_wait) options_.on_wait(true);
  while (waits_for_news_) progress_.Wait(mutex_);
  if (options_.on_wait) options_.on_wait(false);
  const int64_t end_ns = Now();
  blocked_ns_ += end_ns - begin_ns;
  if (observer_) observer_->OnWaited(cause, begin_ns, news_ns_, end_ns);
}

LinkObserver::WaitCause LinkMover::CauseOfWait() {
  auto cause = LinkObserver::WaitCause::kQueue;
  for (int lane = 0; lane < sizes_.lanes; ++lane) {
    const ExpertIndex expert = grid_.Index(lanes_.id(lane));  // the last one that it served
    if (!flow_->WaitsFor(expert)) continue;
    const TransferState state = flow_->queue().state(expert);
    if (state == TransferState::kDone) return LinkObserver::WaitCause::kPack;
    if (state == TransferState::kMoving) cause = LinkObserver::WaitCause::kRead;
  }
  return cause;
}

void LinkMover::WaitForProgress() {
  if (fatal_) std::rethrow_exception(fatal_);
  progress_.Wait(mutex_);
}

void LinkMover::TakeFailed(std::vector<ExpertId>& out) {
  const MutexLock lock(mutex_);
  out.insert(out.end(), failed_.begin(), failed_.end());
  failed_.clear();
}

void LinkMover::Release(const PinnedExpert& pinned) {
  const Change change(*this);
  flow_->Release(grid_.Index(pinned.id), Now());
}

ExpertStats LinkMover::EndLayer() {
  const Change change(*this);
  ExpertStats stats = flow_->EndLayer(Now());
  stats.blocked_us = static_cast<uint64_t>(blocked_ns_ / 1000);
  blocked_us_ += stats.blocked_us;
  blocked_ns_ %= 1000;
  layer_error_ = nullptr;
  failed_.clear();
  if (observer_) observer_->OnEndLayer(Now());
  totals_ += stats;
  return stats;
}

std::vector<ResidentExpert> LinkMover::Residents() const {
  std::vector<ResidentExpert> residents;
  {
    const MutexLock lock(mutex_);
    residents = flow_->Residents(Now());
  }
  std::sort(residents.begin(), residents.end(),
            [](const ResidentExpert& a, const ResidentExpert& b) {
              return a.worth != b.worth ? a.worth > b.worth : a.id < b.id;
            });
  return residents;
}

std::span<std::byte> LinkMover::SlotMemory(ExpertIndex expert) {
  return slot_memory_.subspan(static_cast<size_t>(flow_->slot(expert)) * slot_bytes_, slot_bytes_);
}

void LinkMover::NoteSlots() { slots_ = std::max(slots_.load(), flow_->slots()); }

int64_t LinkMover::resident() const {
  const MutexLock lock(mutex_);
  return flow_->present();
}

TransferCounters LinkMover::transfer_counters() const {
  const MutexLock lock(mutex_);
  return flow_->queue().counters();
}

}  // namespace moesaic
