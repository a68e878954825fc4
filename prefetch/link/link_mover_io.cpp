// The link's threads: reading and packing.
#include <pthread.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/device/numa_memory.h"
#include "prefetch/link/link_mover.h"

namespace moesaic {
namespace {

constexpr size_t kTouchedBytes = size_t{4} << 20;  // whole huge pages; a millisecond or so

// A read's tag is its packet.
constexpr uint64_t kPrefetchTag = uint64_t{1} << 63;

uint64_t MakeTag(const Flow::Packet& packet) {
  return static_cast<uint64_t>(packet.lane) << 32 | static_cast<uint32_t>(packet.packet) |
         (packet.prefetch ? kPrefetchTag : 0);
}

Flow::Packet PacketOf(uint64_t tag) {
  Flow::Packet packet;
  packet.prefetch = (tag & kPrefetchTag) != 0;
  packet.lane = static_cast<int32_t>((tag & ~kPrefetchTag) >> 32);
  packet.packet = static_cast<int32_t>(tag & 0xffffffffu);
  return packet;
}

}  // namespace

void LinkMover::StartThreads() {
  try {
    threads_.emplace_back([this] { IoThread(); });
    for (int i = 0; i < options_.pack_threads; ++i) threads_.emplace_back([this] { PackThread(); });
  } catch (...) {  // the system makes no more: nobody else joins those that are there
    StopThreads();
    throw;
  }
}

void LinkMover::StopThreads() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
    pack_work_.NotifyAll();
  }
  reader_->Wake();
  for (std::thread& thread : threads_) thread.join();
}

void LinkMover::IoThread() {
  pthread_setname_np(pthread_self(), "expert-io");
  RunOnNumaNode(options_.numa_node);
  try {
    IoLoop();
  } catch (...) {
    const MutexLock lock(mutex_);
    fatal_ = std::current_exception();
    TellProgress();
  }
}

// Packing comes between submitting and waiting: the disk works on what was submitted meanwhile.
void LinkMover::IoLoop() {
  while (CollectRequests()) {
    for (const ReadRequest& request : requests_) reader_->Submit(request);
    const bool packed = options_.pack_threads == 0 && PackSome();
    const bool busy = CloseSlot() || packed || TouchSlots();

    completions_.clear();
    reader_->Wait(completions_, busy ? 0 : -1);
    if (completions_.empty()) continue;
    reads_in_flight_ -= static_cast<int>(completions_.size());
    const MutexLock lock(mutex_);
    for (const ReadCompletion& completion : completions_) {
      Flow::Packet packet = PacketOf(completion.tag);
      packet.expert = grid_.Index(lanes_.id(packet.lane));
      const PacketResult result = lanes_.Check(packet.lane, packet.packet, completion);
      if (observer_ && result == PacketResult::kOk) {
        observer_->OnPacket(static_cast<uint64_t>(completion.result));
      }
      Complete(packet, result);
    }
  }
}

// Fills requests_ with what the reader has room for. Returns false when the thread is to end.
bool LinkMover::CollectRequests() {
  requests_.clear();
  const MutexLock lock(mutex_);
  closing_ = flow_->closing();
  if (stop_) return reads_in_flight_ > 0;
  const int room = std::min(options_.depth - reads_in_flight_, reader_->free_slots());
  while (static_cast<int>(requests_.size()) < room) {
    const std::optional<Flow::Packet> packet = flow_->NextPacket(Now());
    if (!packet) break;
    if (packet->first) {
      lanes_.Begin(packet->lane, grid_.Id(packet->expert), SlotMemory(packet->expert));
    }
    if (lanes_.HasReads(packet->lane)) {
      requests_.push_back(lanes_.Request(packet->lane, packet->packet, MakeTag(*packet)));
    } else {
      Complete(*packet, PacketResult::kOk);
    }
  }
  reads_in_flight_ += static_cast<int>(requests_.size());
  if (observer_) {
    const auto state = reads_in_flight_ > 0        ? LinkObserver::LinkState::kMoving
                       : flow_->queue().size() > 0 ? LinkObserver::LinkState::kPacking
                                                   : LinkObserver::LinkState::kIdle;
    observer_->OnLink(state, flow_->free_slots(), Now());
  }
  return true;
}

void LinkMover::Complete(const Flow::Packet& packet, PacketResult result) {
  switch (flow_->CompletePacket(packet, result, Now())) {
    case TransferState::kDone:
      NoteRead(packet);
      if (lanes_.MustFinish(packet.lane)) {
        to_pack_.push_back(packet.lane);
        pack_work_.NotifyOne();
      } else {
        Commit(packet.expert);
      }
      break;
    case TransferState::kFailed:
      NoteRead(packet);
      Drop(packet.expert, lanes_.error(packet.lane));
      break;
    case TransferState::kCancelled:
      TellProgress();
      break;
    default:
      break;
  }
}

void LinkMover::NoteRead(const Flow::Packet& packet) {
  if (!observer_) return;
  observer_->OnRead(grid_.Id(packet.expert), flow_->queue().since(packet.expert), Now());
}

void LinkMover::Commit(ExpertIndex expert) {
  flow_->Commit(expert, Now());
  TellProgress();
}

void LinkMover::Drop(ExpertIndex expert, std::exception_ptr error) {
  const ExpertId id = grid_.Id(expert);
  switch (flow_->Drop(expert, Now())) {
    case Flow::Hurt::kLayer:
      if (options_.hands_out_failed) {
        failed_.push_back(id);
      } else if (!layer_error_) {
        layer_error_ = std::move(error);
        flow_->GiveUpLayer();
      }
      break;
    case Flow::Hurt::kPreload:
      if (!preload_error_) preload_error_ = std::move(error);
      break;
    case Flow::Hurt::kNobody:
      // With a host to compute it nobody misses it.
      if (!options_.hands_out_failed) {
        LogWarn("expert {} of layer {} could not be loaded; no layer fails of it", id.index,
                id.layer);
      }
      break;
  }
  TellProgress();
}

// A consumer that waits for its layer is woken when there is something for it, the others each
// time.
void LinkMover::TellProgress() {
  if (options_.on_progress) options_.on_progress();
  if (waits_for_news_) {
    if (!HasNews()) {
      CHECK(flow_->MakesProgress());
      return;
    }
    waits_for_news_ = false;
    news_ns_ = Now();
  }
  progress_.NotifyAll();
}

// Packs one expert, or several small ones: about a packet's worth before the disk is looked after
// again.
bool LinkMover::PackSome() {
  uint64_t packed_bytes = 0;
  while (packed_bytes < options_.packet_bytes && PackOne()) packed_bytes += slot_bytes_;
  return packed_bytes > 0;
}

bool LinkMover::PackOne() {
  int lane = 0;
  {
    const MutexLock lock(mutex_);
    if (to_pack_.empty()) return false;
    lane = to_pack_.front();
    to_pack_.erase(to_pack_.begin());
  }
  const int64_t begin_ns = observer_ ? Now() : 0;
  std::exception_ptr error;
  try {
    lanes_.Finish(lane);
  } catch (...) {
    error = std::current_exception();
  }
  const MutexLock lock(mutex_);
  const ExpertId id = lanes_.id(lane);
  if (observer_) observer_->OnPacked(id, begin_ns, Now());
  if (error) {
    Drop(grid_.Index(id), error);
  } else {
    Commit(grid_.Index(id));
  }
  return true;
}

void LinkMover::PackThread() {
  pthread_setname_np(pthread_self(), "expert-pack");
  RunOnNumaNode(options_.numa_node);
  for (;;) {
    {
      const MutexLock lock(mutex_);
      while (to_pack_.empty() && !stop_) pack_work_.Wait(mutex_);
      if (stop_) return;
    }
    // A lane and perhaps a slot became free: the I/O thread may have more to read.
    if (PackOne()) reader_->Wake();
  }
}

// One of those that are too many; false: there is none, or it is in use. Its bytes are moved under
// the lock, a millisecond or so for ten megabytes: the alternative, a pin while they are moved,
// would have layers of few slots wait for it. Its pages are given back without the lock, in which
// time the consumer gets it: who reads into the slot anew is this thread.
bool LinkMover::CloseSlot() {
  if (!closing_) return false;
  std::optional<Flow::ClosedSlot> closed;
  {
    const MutexLock lock(mutex_);
    closed = flow_->CloseSlot(Now());
    if (!closed) return false;
    if (closed->moved_to >= 0) {
      std::memcpy(slot_memory_.data() + static_cast<size_t>(closed->moved_to) * slot_bytes_,
                  slot_memory_.data() + static_cast<size_t>(closed->slot) * slot_bytes_,
                  slot_bytes_);
    }
  }
  slab_.GiveBack(static_cast<size_t>(closed->slot) * slot_bytes_, slot_bytes_);
  const MutexLock lock(mutex_);
  slots_ = flow_->slots();
  return true;
}

// The kernel gives memory while something is read or nothing is, a piece at a time. Best effort.
// Returns whether more is to be had.
bool LinkMover::TouchSlots() {
  if (!options_.touch_slots || touched_bytes_ >= slab_.bytes()) return false;
  const size_t bytes = std::min(kTouchedBytes, slab_.bytes() - touched_bytes_);
  const bool touched = slab_.Populate(touched_bytes_, bytes);
  touched_bytes_ = touched ? touched_bytes_ + bytes : slab_.bytes();
  return touched;
}

}  // namespace moesaic
