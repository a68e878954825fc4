#include "serving/batch/streaming_experts.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "core/io/throttled_reader.h"
#include "prefetch/link/expert_loader.h"

namespace moesaic {
namespace {

constexpr size_t kTouchedBytes = size_t{4} << 20;  // whole huge pages; a millisecond or so

StreamingOptions WithDefaults(StreamingOptions options) {
  if (options.packet_bytes == 0) options.packet_bytes = kDefaultPacketBytes;
  options.packet_bytes = static_cast<uint32_t>(
      RoundUp(std::min<uint64_t>(options.packet_bytes, uint64_t{1} << 30), ReadPlan::kPageBytes));
  if (options.depth <= 0) options.depth = kDefaultReadDepth;
  return options;
}

std::unique_ptr<AsyncReader> OpenReader(const ExpertSource& source,
                                        const StreamingOptions& options) {
  auto reader = OpenAsyncReader(source.files(), options.backend, WithDefaults(options).depth);
  if (options.link_bytes_per_s == 0) return reader;
  return MakeThrottledReader(std::move(reader), static_cast<double>(options.link_bytes_per_s));
}

uint64_t TagOf(int lane, int packet) {
  return static_cast<uint64_t>(lane) << 32 | static_cast<uint32_t>(packet);
}

}  // namespace

StreamingExperts::StreamingExperts(const ExpertSource& source, int num_layers, int num_experts,
                                   const StreamingOptions& options)
    : StreamingExperts(source, num_layers, num_experts, options, OpenReader(source, options)) {}

StreamingExperts::StreamingExperts(const ExpertSource& source, int num_layers, int num_experts,
                                   const StreamingOptions& options,
                                   std::unique_ptr<AsyncReader> reader)
    : grid_(num_layers, num_experts),
      options_(WithDefaults(options)),
      slot_bytes_(source.layout().slot_bytes),
      sizes_(PlanLanes(source, grid_, options_.slots, options_.depth, options_.packet_bytes)),
      bytes_(source, sizes_, reader->aligned_only(), options_.packet_bytes),
      flow_(grid_, SparseLayers(source, num_layers), options_.slots, options_.buffers,
            GroupOfExperts(slot_bytes_), options_.experts),
      slots_(flow_.slots()),
      reader_(std::move(reader)) {
  if (options_.slot_memory.empty()) {
    slab_ = AlignedBuffer(static_cast<size_t>(slots_) * slot_bytes_);
    TakePagesFromNodes(slab_.span(), RepeatStretches(options_.slot_stretches, slot_bytes_, slots_));
  }
  memory_ = options_.slot_memory.empty() ? slab_.span() : options_.slot_memory;
  CHECK_GE(memory_.size(), static_cast<size_t>(slots_) * slot_bytes_);
  {
    const MutexLock lock(mutex_);
    lanes_.resize(static_cast<size_t>(sizes_.lanes));
    for (int lane = sizes_.lanes - 1; lane >= 0; --lane) free_lanes_.push_back(lane);
    link_since_ns_ = Now();
  }
  indices_.reserve(static_cast<size_t>(num_experts));
  requests_.reserve(static_cast<size_t>(options_.depth));
  completions_.reserve(static_cast<size_t>(options_.depth));
  thread_ = std::thread([this] { Mover(); });
}

StreamingExperts::~StreamingExperts() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  reader_->Wake();
  thread_.join();
}

uint64_t StreamingExperts::StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                                        const StreamingOptions& options) {
  const StreamingOptions all = WithDefaults(options);
  return PlanLanes(source, ExpertGrid(num_layers, num_experts), all.slots, all.depth,
                   all.packet_bytes)
      .staging_bytes();
}

void StreamingExperts::Log(TimelineInterval interval) {
  interval.lane = options_.lane;
  if (options_.timeline != nullptr) options_.timeline->Add(interval);
}

void StreamingExperts::Mark(Activity activity, int32_t layer, int32_t experts) {
  const int64_t now = Now();
  Log({activity, mark_ns_, now, layer, experts, 0});
  mark_ns_ = now;
}

// Something changed that may let the mover read: the idle time of a link that could have read ends
// here, not when the mover has woken up.
void StreamingExperts::NoteWork() {
  if (!idle_) return;
  if (flow_.CanLoad()) {
    EndIdle();
  } else {
    idle_buffers_ = std::max(idle_buffers_, static_cast<int32_t>(flow_.free_buffers()));
  }
}

void StreamingExperts::EndIdle() {
  Log({Activity::kLinkIdle, link_since_ns_, Now(), -1, idle_buffers_, 0});
  idle_ = false;
}

// An expert has come or will not: the consumer's stall ends here if that is what it waits for, not
// when it has woken up.
void StreamingExperts::TellProgress() {
  if (!stall_ || (!flow_.ready() && flow_.waiting() > 0 && !layer_error_ && !fatal_)) return;
  stall_end_ns_ = Now();
  stall_->end_ns = stall_end_ns_;
  Log(*stall_);
  stall_.reset();
  progress_.NotifyAll();
}

std::span<std::byte> StreamingExperts::SlotMemory(ExpertIndex expert) {
  return memory_.subspan(static_cast<size_t>(flow_.slot(expert)) * slot_bytes_, slot_bytes_);
}

void StreamingExperts::ComputeBegan() {
  computing_ = true;
  mark_ns_ = Now();
}

void StreamingExperts::ComputeEnded(Activity activity, int32_t layer) {
  Mark(activity, layer);
  computing_ = false;
}

void StreamingExperts::StepBegan() {
  computing_ = false;
  {
    const MutexLock lock(mutex_);
    flow_.BeginPass(visits_);
    flow_.AllowReadAhead(!given_up_);
    NoteWork();
  }
  reader_->Wake();
}

void StreamingExperts::GiveUp() {
  given_up_ = true;
  StopPrefetching();
}

void StreamingExperts::StopPrefetching() {
  const MutexLock lock(mutex_);
  flow_.AllowReadAhead(false);
}

void StreamingExperts::BeginLayer(std::span<const ExpertId> needed, int64_t /*pairs*/) {
  indices_.clear();
  for (const ExpertId id : needed) indices_.push_back(grid_.Index(id));
  layer_ = needed.empty() ? -1 : needed.front().layer;
  handed_out_ = 0;
  if (computing_) {
    Mark(Activity::kDense, layer_);
  } else {
    mark_ns_ = Now();
  }
  {
    const MutexLock lock(mutex_);
    flow_.BeginLayer(indices_);
    NoteWork();
  }
  reader_->Wake();
}

Activity StreamingExperts::StallCause() {
  bool reading = false;
  for (const Lane& lane : lanes_) {
    if (lane.expert != kNoExpert && flow_.needed(lane.expert)) reading = true;
  }
  for (const int lane : to_pack_) {
    if (flow_.needed(LaneAt(lane).expert)) return Activity::kStallPack;
  }
  return reading ? Activity::kStallRead : Activity::kStallQueue;
}

bool StreamingExperts::NextReady(std::vector<PinnedExpert>& out) {
  if (handed_out_ > 0) Mark(Activity::kExperts, layer_, std::exchange(handed_out_, 0));
  const MutexLock lock(mutex_);
  bool waited = false;
  while (!flow_.ready()) {
    if (layer_error_) std::rethrow_exception(layer_error_);
    if (flow_.waiting() == 0) return false;
    if (fatal_) std::rethrow_exception(fatal_);
    // Else the caller holds every slot and would wait for ever.
    CHECK(flow_.loading() > 0 || flow_.CanLoad());
    const int64_t begin_ns = Now();
    stall_ = {StallCause(), begin_ns, begin_ns, layer_, -1, 0};
    while (stall_) progress_.Wait(mutex_);
    const int64_t end_ns = Now();
    blocked_ns_ += end_ns - begin_ns;
    Log({Activity::kWakeUp, stall_end_ns_, end_ns, layer_, -1, 0});
    waited = true;
  }
  if (layer_error_) std::rethrow_exception(layer_error_);
  HandOut(out);
  if (waited) mark_ns_ = Now();
  return true;
}

// The consumer computes, be it on a device, until it asks for more and gets it or waits.
bool StreamingExperts::TryNextReady(std::vector<PinnedExpert>& out) {
  const MutexLock lock(mutex_);
  if (layer_error_) std::rethrow_exception(layer_error_);
  if (!flow_.ready()) {
    if (fatal_ && flow_.waiting() > 0) std::rethrow_exception(fatal_);
    return flow_.waiting() > 0;
  }
  if (handed_out_ > 0) Mark(Activity::kExperts, layer_, handed_out_);
  HandOut(out);
  return true;
}

void StreamingExperts::HandOut(std::vector<PinnedExpert>& out) {
  indices_.clear();
  flow_.TakeReady(indices_);
  for (const ExpertIndex expert : indices_) {
    out.push_back({grid_.Id(expert), SlotMemory(expert).data()});
  }
  handed_out_ = static_cast<int32_t>(indices_.size());
}

void StreamingExperts::Release(const PinnedExpert& pinned) {
  bool work = false;
  {
    const MutexLock lock(mutex_);
    flow_.Release(grid_.Index(pinned.id));
    NoteWork();
    work = flow_.CanLoad();
  }
  if (work) reader_->Wake();
}

ExpertStats StreamingExperts::EndLayer() {
  if (handed_out_ > 0) Mark(Activity::kExperts, layer_, std::exchange(handed_out_, 0));
  ExpertStats stats;
  {
    const MutexLock lock(mutex_);
    stats = flow_.EndLayer();
    stats.blocked_us = static_cast<uint64_t>(blocked_ns_ / 1000);
    blocked_ns_ %= 1000;
    stats.failed_reads = std::exchange(failed_reads_, 0);
    layer_error_ = nullptr;
    NoteWork();
    if (link_busy_) NoteLinkBusy(Now());
  }
  reader_->Wake();
  mark_ns_ = Now();
  totals_ += stats;
  return stats;
}

std::vector<ResidentExpert> StreamingExperts::Residents() const {
  const MutexLock lock(mutex_);
  std::vector<ResidentExpert> residents;
  for (ExpertIndex expert = 0; expert < grid_.total(); ++expert) {
    if (flow_.resident(expert) && flow_.state(expert) == StreamFlow::State::kReady) {
      residents.push_back({grid_.Id(expert), 1.0f});
    }
  }
  return residents;
}

int64_t StreamingExperts::resident() const {
  const MutexLock lock(mutex_);
  return flow_.present();
}

void StreamingExperts::Mover() {
  pthread_setname_np(pthread_self(), "data-mover");
  try {
    MoverLoop();
  } catch (...) {
    const MutexLock lock(mutex_);
    fatal_ = std::current_exception();
    TellProgress();
  }
}

// The kernel gives memory while something is read or nothing is, a piece at a time, instead of in
// every read's way. Best effort. Returns whether more is to be had.
bool StreamingExperts::TouchSlots() {
  if (touched_bytes_ >= slab_.bytes()) return false;
  const size_t bytes = std::min(kTouchedBytes, slab_.bytes() - touched_bytes_);
  const bool touched = slab_.Populate(touched_bytes_, bytes);
  touched_bytes_ = touched ? touched_bytes_ + bytes : slab_.bytes();
  return touched;
}

// Packing comes between submitting and waiting: the disk works on what was submitted meanwhile.
void StreamingExperts::MoverLoop() {
  while (CollectRequests()) {
    for (const ReadRequest& request : requests_) reader_->Submit(request);
    const bool busy = PackOne() || TouchSlots();
    completions_.clear();
    reader_->Wait(completions_, busy ? 0 : -1);
    if (completions_.empty()) continue;
    const MutexLock lock(mutex_);
    reads_in_flight_ -= static_cast<int>(completions_.size());
    for (const ReadCompletion& completion : completions_) {
      CompletePacket(static_cast<int>(completion.tag >> 32),
                     static_cast<int>(completion.tag & 0xffffffffu), completion.result);
    }
  }
}

// Fills requests_ with what the reader has room for. Returns false when the thread is to end.
bool StreamingExperts::CollectRequests() {
  requests_.clear();
  const MutexLock lock(mutex_);
  if (stop_) return reads_in_flight_ > 0;
  const int room = std::min(options_.depth - reads_in_flight_, reader_->free_slots());
  while (static_cast<int>(requests_.size()) < room) {
    if (!again_.empty()) {
      const auto [lane, packet] = again_.front();
      again_.pop_front();
      Request(lane, packet);
    } else if (const int lane = UnfinishedLane(); lane >= 0) {
      Request(lane, LaneAt(lane).next_packet++);
    } else if (!BeginLoad()) {
      break;
    }
  }
  reads_in_flight_ += static_cast<int>(requests_.size());
  NoteLink();
  return true;
}

void StreamingExperts::Request(int lane, int packet) {
  ++LaneAt(lane).in_flight;
  requests_.push_back(bytes_.Request(lane, packet, TagOf(lane, packet)));
}

// The oldest load of which not all packets were requested; -1: none.
int StreamingExperts::UnfinishedLane() {
  for (const int number : active_lanes_) {
    const Lane& lane = LaneAt(number);
    if (!lane.failed && lane.next_packet < lane.packets) return number;
  }
  return -1;
}

bool StreamingExperts::BeginLoad() {
  if (free_lanes_.empty()) return false;
  const std::optional<ExpertIndex> expert = flow_.NextLoad();
  if (!expert) return false;
  const int number = free_lanes_.back();
  free_lanes_.pop_back();
  bytes_.Begin(number, grid_.Id(*expert), SlotMemory(*expert));
  Lane& lane = LaneAt(number);
  lane = {.expert = *expert,
          .packets = bytes_.packets(number),
          .retries_left = options_.max_retries,
          .begin_ns = Now()};
  active_lanes_.push_back(number);
  if (lane.packets == 0) EndLoad(number);
  return true;
}

// A link that never rests is noted layer by layer.
void StreamingExperts::NoteLinkBusy(int64_t now_ns) {
  Log({Activity::kLinkBusy, link_since_ns_, now_ns, -1, -1, std::exchange(link_bytes_, 0)});
  link_since_ns_ = now_ns;
}

// Keeps the intervals in which the link was busy, and those in which there was nothing for it.
void StreamingExperts::NoteLink() {
  const bool busy = reads_in_flight_ > 0;
  const int64_t now = Now();
  if (link_busy_ && !busy) NoteLinkBusy(now);
  if (!busy && to_pack_.empty() && !idle_ && !flow_.CanLoad()) {
    idle_ = true;
    idle_buffers_ = static_cast<int32_t>(flow_.free_buffers());
    link_since_ns_ = now;
  }
  if (busy && !link_busy_) {
    if (idle_) EndIdle();
    link_since_ns_ = now;
  }
  link_busy_ = busy;
}

void StreamingExperts::CompletePacket(int number, int packet, int64_t result) {
  Lane& lane = LaneAt(number);
  --lane.in_flight;
  switch (bytes_.Check(number, packet, result)) {
    case PacketResult::kOk:
      link_bytes_ += static_cast<uint64_t>(result);
      break;
    case PacketResult::kError:
      ++failed_reads_;
      if (lane.retries_left-- > 0) {
        again_.emplace_back(number, packet);
        return;
      }
      lane.failed = true;
      break;
    case PacketResult::kHopeless:
      ++failed_reads_;
      lane.failed = true;
      break;
  }
  if (lane.in_flight > 0) return;
  // A packet that is to be read again is this lane's, too.
  for (const auto& [waiting, unused] : again_) {
    if (waiting == number && !lane.failed) return;
  }
  if (lane.failed || lane.next_packet == lane.packets) EndLoad(number);
}

// Everything that was to be read of a lane's expert has come, or cannot.
void StreamingExperts::EndLoad(int number) {
  Lane& lane = LaneAt(number);
  const ExpertId id = grid_.Id(lane.expert);
  std::erase(active_lanes_, number);
  std::erase_if(again_, [&](const auto& packet) { return packet.first == number; });
  Log({Activity::kRead, lane.begin_ns, Now(), id.layer, id.index, slot_bytes_});
  if (lane.failed) {
    Fail(number, bytes_.error(number));
  } else if (!bytes_.MustFinish(number)) {
    flow_.Loaded(std::exchange(lane.expert, kNoExpert), slot_bytes_);
    free_lanes_.push_back(number);
    TellProgress();
  } else {
    to_pack_.push_back(number);
  }
}

void StreamingExperts::Fail(int number, const std::exception_ptr& error) {
  Lane& lane = LaneAt(number);
  const ExpertId id = grid_.Id(lane.expert);
  if (flow_.Failed(std::exchange(lane.expert, kNoExpert))) {
    if (!layer_error_) layer_error_ = error;
  } else {
    LogWarn("expert {} of layer {} could not be read ahead; the layer will try again", id.index,
            id.layer);
  }
  free_lanes_.push_back(number);
  TellProgress();
}

bool StreamingExperts::PackOne() {
  int number = 0;
  {
    const MutexLock lock(mutex_);
    if (to_pack_.empty()) return false;
    number = to_pack_.front();
  }
  const int64_t begin_ns = Now();
  std::exception_ptr error;
  try {
    bytes_.Finish(number);
  } catch (...) {
    error = std::current_exception();
  }
  const MutexLock lock(mutex_);
  to_pack_.pop_front();
  Lane& lane = LaneAt(number);
  const ExpertId id = grid_.Id(lane.expert);
  Log({Activity::kPack, begin_ns, Now(), id.layer, id.index, slot_bytes_});
  if (error) {
    Fail(number, error);
    return true;
  }
  flow_.Loaded(std::exchange(lane.expert, kNoExpert), slot_bytes_);
  free_lanes_.push_back(number);
  TellProgress();
  return true;
}

}  // namespace moesaic
