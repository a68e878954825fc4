// The loader's threads: reading and packing.
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "core/base/logging.h"
#include "core/device/numa_memory.h"
#include "prefetch/link/expert_loader.h"

namespace moesaic {
namespace {

// A read's tag is its packet.
constexpr uint64_t kPrefetchTag = uint64_t{1} << 63;

uint64_t MakeTag(const ExpertFlow::Packet& packet) {
  return static_cast<uint64_t>(packet.lane) << 32 | static_cast<uint32_t>(packet.packet) |
         (packet.prefetch ? kPrefetchTag : 0);
}

ExpertFlow::Packet PacketOf(uint64_t tag) {
  ExpertFlow::Packet packet;
  packet.prefetch = (tag & kPrefetchTag) != 0;
  packet.lane = static_cast<int32_t>((tag & ~kPrefetchTag) >> 32);
  packet.packet = static_cast<int32_t>(tag & 0xffffffffu);
  return packet;
}

}  // namespace

void ExpertLoader::StartThreads() {
  try {
    threads_.emplace_back([this] { IoThread(); });
    for (int i = 0; i < options_.pack_threads; ++i) threads_.emplace_back([this] { PackThread(); });
  } catch (...) {  // the system makes no more: nobody else joins those that are there
    StopThreads();
    throw;
  }
}

void ExpertLoader::StopThreads() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    pack_work_.NotifyAll();
  }
  reader_->Wake();
  for (std::thread& thread : threads_) thread.join();
}

void ExpertLoader::IoThread() {
  pthread_setname_np(pthread_self(), "expert-io");
  RunOnNumaNode(options_.numa_node);
  try {
    IoLoop();
  } catch (...) {
    MutexLock lock(mutex_);
    fatal_ = std::current_exception();
    TellProgress();
  }
}

// Packing comes between submitting and waiting: the disk works on what was submitted meanwhile.
void ExpertLoader::IoLoop() {
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
      ExpertFlow::Packet packet = PacketOf(completion.tag);
      packet.expert = grid_.Index(lanes_.id(packet.lane));
      Complete(packet, lanes_.Check(packet.lane, packet.packet, completion.result));
    }
  }
}

// Fills requests_ with what the reader has room for. Returns false when the thread is to end.
bool ExpertLoader::CollectRequests() {
  requests_.clear();
  MutexLock lock(mutex_);
  if (stop_) return reads_in_flight_ > 0;
  const int room = std::min(options_.depth - reads_in_flight_, reader_->free_slots());
  while (static_cast<int>(requests_.size()) < room) {
    const std::optional<ExpertFlow::Packet> packet = flow_.NextPacket(Now());
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
  return true;
}

void ExpertLoader::Complete(const ExpertFlow::Packet& packet, PacketResult result) {
  switch (flow_.CompletePacket(packet, result, Now())) {
    case TransferState::kDone:
      if (lanes_.MustFinish(packet.lane)) {
        to_pack_.push_back(packet.lane);
        pack_work_.NotifyOne();
      } else {
        flow_.Commit(packet.expert, Now());
        TellProgress();
      }
      break;
    case TransferState::kFailed:
      Drop(packet.expert, lanes_.error(packet.lane));
      break;
    case TransferState::kCancelled:
      TellProgress();
      break;
    default:
      break;
  }
}

void ExpertLoader::Drop(ExpertIndex expert, std::exception_ptr error) {
  const ExpertId id = grid_.Id(expert);
  switch (flow_.Drop(expert, Now())) {
    case ExpertFlow::Hurt::kLayer:
      if (options_.hands_out_failed) {
        failed_.push_back(id);
      } else if (!layer_error_) {
        layer_error_ = error;
        flow_.GiveUpLayer();
      }
      break;
    case ExpertFlow::Hurt::kPreload:
      if (!preload_error_) preload_error_ = error;
      break;
    case ExpertFlow::Hurt::kNobody:
      // With a host to compute it nobody misses it.
      if (!options_.hands_out_failed) {
        LogWarn("expert {} of layer {} could not be loaded; no layer fails of it", id.index,
                id.layer);
      }
      break;
  }
  TellProgress();
}

// Packs one expert, or several small ones: about a packet's worth before the disk is looked after
// again.
bool ExpertLoader::PackSome() {
  uint64_t packed_bytes = 0;
  while (packed_bytes < options_.packet_bytes && PackOne()) packed_bytes += slot_bytes_;
  return packed_bytes > 0;
}

bool ExpertLoader::PackOne() {
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
    flow_.Commit(expert, Now());
    TellProgress();
  }
  return true;
}

void ExpertLoader::PackThread() {
  pthread_setname_np(pthread_self(), "expert-pack");
  RunOnNumaNode(options_.numa_node);
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

}  // namespace moesaic
