// StreamingExperts: the experts of a large batch: a StreamFlow that decides, the data mover (one
// thread that reads and packs), and the memory of the slots. Experts arrive in the order in which
// layers run, while others are computed.
//
// Thread contract: one consumer thread (the engine's) calls everything; the mover is the object's
// own.
//
// Memory: the slots, one slab of host memory or what the caller gives (a device's), and, unless the
// source's bytes are blobs already, staging. All of it is allocated at construction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/device/numa_memory.h"
#include "core/io/async_reader.h"
#include "core/io/expert_source.h"
#include "prefetch/link/expert_provider.h"
#include "prefetch/link/transfer_lanes.h"
#include "serving/batch/stream_flow.h"
#include "serving/batch/timeline.h"

namespace moesaic {

struct StreamingOptions {
  int64_t slots = 1;    // in all
  int64_t buffers = 1;  // of them for what streams
  ReadBackend backend = ReadBackend::kAuto;
  uint32_t packet_bytes = 0;      // 0: the measured default
  int depth = 0;                  // reads in flight; 0: the measured default
  int max_retries = 2;            // of a failed read, before it fails the layer
  uint64_t link_bytes_per_s = 0;  // read no faster; 0: no limit
  Timeline* timeline = nullptr;   // may be null; must outlive the object
  int16_t lane = 0;               // of the timeline: the consumer's and the link's number
  // Those that it serves; empty: all.
  std::span<const ExpertIndex> experts = {};
  // As in ExpertLoaderOptions.
  std::span<const NodeStretch> slot_stretches = {};
  // Of so many slots, and outliving the object; empty: host memory of its own.
  std::span<std::byte> slot_memory = {};
};

// Experts that are computed together: enough work to be worth handing to the threads, few enough
// that their buffers soon take what comes next.
inline int64_t GroupOfExperts(uint64_t slot_bytes) {
  constexpr uint64_t kGroupBytes = uint64_t{4} << 20;
  return static_cast<int64_t>(std::max<uint64_t>(1, kGroupBytes / slot_bytes));
}

class StreamingExperts : public ExpertProvider {
 public:
  // `source` must outlive it. num_layers counts all layers of the model.
  StreamingExperts(const ExpertSource& source, int num_layers, int num_experts,
                   const StreamingOptions& options);
  // As above with a given reader (tests inject faults).
  StreamingExperts(const ExpertSource& source, int num_layers, int num_experts,
                   const StreamingOptions& options, std::unique_ptr<AsyncReader> reader);
  // Waits for the reads in flight.
  ~StreamingExperts() override;
  StreamingExperts(const StreamingExperts&) = delete;
  StreamingExperts& operator=(const StreamingExperts&) = delete;

  // How often passes visit a layer, from the next one on: once for each group of their rows.
  void SetVisits(int visits) { visits_ = visits; }
  // A pass begins, and may be followed by another: experts are read ahead until StopPrefetching.
  void StepBegan() override EXCLUDES(mutex_);
  void StopPrefetching() override EXCLUDES(mutex_);
  void BeginLayer(std::span<const ExpertId> needed, int64_t pairs) override EXCLUDES(mutex_);
  bool NextReady(std::vector<PinnedExpert>& out) override EXCLUDES(mutex_);
  bool TryNextReady(std::vector<PinnedExpert>& out) override EXCLUDES(mutex_);
  void Release(const PinnedExpert& expert) override EXCLUDES(mutex_);
  ExpertStats EndLayer() override EXCLUDES(mutex_);
  // Residents are read by the first pass that uses them; nothing is to be gained before.
  int64_t Preload(std::span<const ExpertId>, const std::function<bool(int64_t)>&) override {
    return 0;
  }
  std::vector<ResidentExpert> Residents() const override EXCLUDES(mutex_);
  int64_t slots() const override { return slots_; }
  int64_t resident() const override EXCLUDES(mutex_);

  // What it reads from is gone: nothing is read ahead any more.
  void GiveUp();
  // For the timeline: from ComputeBegan on the consumer's thread computes, also outside of layers;
  // up to ComputeEnded it has done this.
  void ComputeBegan();
  void ComputeEnded(Activity activity, int32_t layer);
  // Since the start. For the consumer.
  const ExpertStats& totals() const { return totals_; }

  // What an object with these arguments takes besides its slots, for the memory ledger.
  static uint64_t StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                               const StreamingOptions& options);

 private:
  // A load that is under way.
  struct Lane {
    ExpertIndex expert = kNoExpert;
    int packets = 0;
    int next_packet = 0;
    int in_flight = 0;
    int retries_left = 0;
    bool failed = false;
    int64_t begin_ns = 0;
  };

  // --- the mover's thread
  void Mover() EXCLUDES(mutex_);
  void MoverLoop() EXCLUDES(mutex_);
  bool CollectRequests() EXCLUDES(mutex_);
  bool BeginLoad() REQUIRES(mutex_);
  int UnfinishedLane() REQUIRES(mutex_);
  void Request(int lane, int packet) REQUIRES(mutex_);
  Lane& LaneAt(int lane) REQUIRES(mutex_) { return lanes_[static_cast<size_t>(lane)]; }
  void CompletePacket(int lane, int packet, int64_t result) REQUIRES(mutex_);
  void EndLoad(int lane) REQUIRES(mutex_);
  void Fail(int lane, const std::exception_ptr& error) REQUIRES(mutex_);
  bool PackOne() EXCLUDES(mutex_);
  bool TouchSlots();
  void NoteLink() REQUIRES(mutex_);
  void NoteLinkBusy(int64_t now_ns) REQUIRES(mutex_);

  std::span<std::byte> SlotMemory(ExpertIndex expert) REQUIRES(mutex_);
  void HandOut(std::vector<PinnedExpert>& out) REQUIRES(mutex_);
  Activity StallCause() REQUIRES(mutex_);
  // Ends the consumer's activity that runs since mark_ns_.
  void Mark(Activity activity, int32_t layer, int32_t experts = -1);
  void Log(TimelineInterval interval);
  void EndIdle() REQUIRES(mutex_);
  void NoteWork() REQUIRES(mutex_);
  void TellProgress() REQUIRES(mutex_);
  int64_t Now() const { return clock_.NowNs(); }

  const ExpertGrid grid_;
  const StreamingOptions options_;
  const uint64_t slot_bytes_;
  const SteadyClock clock_;
  const LaneSizes sizes_;
  AlignedBuffer slab_;           // empty when the memory is the caller's
  std::span<std::byte> memory_;  // [slots, slot_bytes]
  TransferLanes bytes_;          // the bytes' side of lanes_

  mutable Mutex mutex_;
  CondVar progress_;
  StreamFlow flow_ GUARDED_BY(mutex_);
  const int64_t slots_;
  std::vector<Lane> lanes_ GUARDED_BY(mutex_);
  std::deque<int> active_lanes_ GUARDED_BY(mutex_);  // oldest first
  std::vector<int> free_lanes_ GUARDED_BY(mutex_);
  std::deque<std::pair<int, int>> again_ GUARDED_BY(mutex_);  // (lane, packet) to read once more
  std::deque<int> to_pack_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::exception_ptr fatal_ GUARDED_BY(mutex_);  // the mover ended with it
  std::exception_ptr layer_error_ GUARDED_BY(mutex_);
  int64_t blocked_ns_ GUARDED_BY(mutex_) = 0;
  std::optional<TimelineInterval> stall_ GUARDED_BY(mutex_);  // of the consumer, without its end
  int64_t stall_end_ns_ GUARDED_BY(mutex_) = 0;               // of the last one
  uint64_t failed_reads_ GUARDED_BY(mutex_) = 0;
  // The link: busy or idle since when; when there was something to read again, while it is idle.
  bool link_busy_ GUARDED_BY(mutex_) = false;
  bool idle_ GUARDED_BY(mutex_) = false;
  int32_t idle_buffers_ GUARDED_BY(mutex_) = 0;  // free, while it is idle: the most
  int64_t link_since_ns_ GUARDED_BY(mutex_) = 0;
  uint64_t link_bytes_ GUARDED_BY(mutex_) = 0;

  // The consumer's.
  int visits_ = 1;
  bool given_up_ = false;
  std::vector<ExpertIndex> indices_;
  int64_t mark_ns_ = 0;
  bool computing_ = false;
  ExpertStats totals_;
  int32_t layer_ = -1;
  int32_t handed_out_ = 0;

  // The mover's.
  std::vector<ReadRequest> requests_;
  std::vector<ReadCompletion> completions_;
  int reads_in_flight_ = 0;
  size_t touched_bytes_ = 0;  // of slab_, from its beginning

  std::unique_ptr<AsyncReader> reader_;  // goes before the memory that it reads into
  std::thread thread_;
};

}  // namespace moesaic
