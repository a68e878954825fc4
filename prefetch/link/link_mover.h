// LinkMover: one link at work. It owns the threads that move and pack the bytes, the lanes, the
// memory of the slots, and the Flow that decides; what a layer needs it hands out, resident experts
// first, the others as they arrive.
//
// Thread contract: one consumer thread (the engine's) calls everything but resident, Residents and
// the counters, which are safe from any thread; the mover owns one I/O thread and the packing
// threads. Nobody waits for a slot while holding a pin: NextReady with nothing on its way while
// pins are held is a bug (CHECK).
//
// Memory: one slab of slots, or what the caller gives (a device's), and, unless the source's bytes
// are blobs already, a few staging buffers in which an expert's extents are collected before they
// are packed. All of it is allocated at construction; nothing is allocated afterwards but the text
// of errors. Where the number of slots changes (Flow::most_slots) the slab is an address range for
// as many as there may be: pages of slots that close go back to the kernel, whole huge pages at a
// time, so that at most one of them holds less than it could.
//
// Waves: when the layer needs more experts than there are slots, NextReady hands out what fits; as
// the consumer releases experts, their slots are reused for the missing rest. One slot is enough.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/clock.h"
#include "core/base/expert_id.h"
#include "core/base/function_ref.h"
#include "core/base/mutex.h"
#include "core/device/numa_memory.h"
#include "core/io/async_reader.h"
#include "core/io/expert_source.h"
#include "prefetch/link/expert_provider.h"
#include "prefetch/link/flow.h"
#include "prefetch/link/link_observer.h"
#include "prefetch/link/transfer_lanes.h"

namespace moesaic {

struct LinkOptions {
  ReadBackend backend = ReadBackend::kAuto;
  uint32_t packet_bytes = 0;      // 0: the measured default
  int depth = 0;                  // reads in flight of each replica; 0: the measured default
  int max_retries = 2;            // of a failed packet, before it fails the layer
  uint64_t link_bytes_per_s = 0;  // read no faster from each replica; 0: no limit
  int pack_threads = 0;           // besides the I/O thread, which packs when there are none
  int numa_node = -1;             // that its threads run on; -1: anywhere
  std::span<const ExpertIndex> experts = {};  // what comes over the link; empty: all
  // Of one slot, for slots of its own: what belongs on which node; empty: pages come from where the
  // process takes them. Looked at while it is constructed.
  std::span<const NodeStretch> slot_stretches = {};
  // The slots, 4 KiB aligned, in place of memory of its own; must outlive it. The reader then
  // writes to where the caller's slots are.
  std::span<std::byte> slot_memory = {};
  // Take the pages of its slots from the kernel while the link has time, in place of in the way of
  // each slot's first read.
  bool touch_slots = false;
  // An expert that cannot be read is no error of the layer: TakeFailed hands it out.
  bool hands_out_failed = false;
  // Called when an expert has arrived or failed, on any thread, under the mover's lock: for a
  // consumer that waits for several links.
  std::function<void()> on_progress = nullptr;
  // Called by the consumer's thread when it begins (true) and ceases to wait for experts of its
  // layer, under the mover's lock.
  std::function<void(bool waits)> on_wait = nullptr;
  const Clock* clock = nullptr;  // null: the steady one; for tests
};

// Measured defaults (tests/bench/expert_loader_bench).
constexpr uint32_t kDefaultPacketBytes = 512 * 1024;
constexpr int kDefaultReadDepth = 16;

class LinkMover : public ExpertProvider {
 public:
  using MakeFlow = FunctionRef<std::unique_ptr<Flow>(LinkParameters)>;

  // `source` must outlive it. `slots` is passed on to the flow that is made. A null reader is
  // opened as the options say; with a given one (devices; tests inject faults) options.backend and
  // link_bytes_per_s are not looked at. `observer` may be null.
  LinkMover(const ExpertSource& source, const ExpertGrid& grid, int64_t slots,
            const LinkOptions& options, std::unique_ptr<AsyncReader> reader, MakeFlow make_flow,
            std::unique_ptr<LinkObserver> observer = nullptr);
  // Waits for the reads in flight.
  ~LinkMover() override;
  LinkMover(const LinkMover&) = delete;
  LinkMover& operator=(const LinkMover&) = delete;

  void StepBegan() override EXCLUDES(mutex_);
  void StopPrefetching() override EXCLUDES(mutex_);
  void BeginLayer(std::span<const ExpertId> needed, int64_t pairs) override EXCLUDES(mutex_);
  // Throws Error(kIo / kCorrupt) when an expert cannot be read; the layer is over then (EndLayer
  // must still be called) and the link stays usable. Also returns when one has failed that
  // TakeFailed hands out.
  bool NextReady(std::vector<PinnedExpert>& out) override EXCLUDES(mutex_);
  bool TryNextReady(std::vector<PinnedExpert>& out) override EXCLUDES(mutex_);
  // Appends the experts of the layer that failed since the last call.
  void TakeFailed(std::vector<ExpertId>& out) EXCLUDES(mutex_);
  void Release(const PinnedExpert& expert) override EXCLUDES(mutex_);
  ExpertStats EndLayer() override EXCLUDES(mutex_);
  // Without a warm start: what is kept is read by the first step that uses it.
  int64_t Preload(std::span<const ExpertId> /*experts*/,
                  const std::function<bool(int64_t loaded)>& /*keep_going*/) override {
    return 0;
  }
  std::vector<ResidentExpert> Residents() const override EXCLUDES(mutex_);
  void Links(std::vector<ReaderLink>& out) const override { reader_->Links(out); }
  int64_t slots() const override { return slots_.load(std::memory_order_relaxed); }
  int64_t resident() const override EXCLUDES(mutex_);

  // Of the layers since the start. For the consumer.
  const ExpertStats& totals() const { return totals_; }
  // Slots of its own plus staging: what it takes of the machine.
  uint64_t slot_memory_bytes() const {
    const uint64_t own = slab_.bytes() > 0 ? static_cast<uint64_t>(slots()) * slot_bytes_ : 0;
    return own + sizes_.staging_bytes();
  }
  ReadBackend backend() const { return reader_->backend(); }
  TransferCounters transfer_counters() const EXCLUDES(mutex_);  // times in nanoseconds

  // What a mover with these arguments takes besides its slots, for the memory ledger.
  static uint64_t StagingBytes(const ExpertSource& source, const ExpertGrid& grid, int64_t slots,
                               const LinkOptions& options);

 protected:
  // Holds the lock while the consumer changes what the flow has to do, and wakes the I/O thread
  // behind it when there is something new.
  class SCOPED_CAPABILITY Change {
   public:
    explicit Change(LinkMover& mover) ACQUIRE(mover.mutex_);
    ~Change() RELEASE();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    LinkMover& mover_;
  };

  // Valid until the next call.
  std::span<const ExpertIndex> Indices(std::span<const ExpertId> ids);
  int64_t Now() const { return clock_->NowNs(); }
  LinkObserver* observer() const { return observer_.get(); }
  // Until an expert has arrived or failed. Throws what ended the I/O thread.
  void WaitForProgress() REQUIRES(mutex_);
  void Wake() { reader_->Wake(); }

  const ExpertGrid& grid() const { return grid_; }
  Flow& flow() const REQUIRES(mutex_) { return *flow_; }

  // Counts what the layer needs; its loads start with the flow's StartLoads.
  void OpenLayer(std::span<const ExpertId> needed) REQUIRES(mutex_);
  // The flow has more slots than before, or is to have fewer.
  void NoteSlots() REQUIRES(mutex_);
  uint64_t blocked_us() const REQUIRES(mutex_) { return blocked_us_; }

  mutable Mutex mutex_;
  std::exception_ptr fatal_ GUARDED_BY(mutex_);  // the I/O thread ended with it
  std::exception_ptr preload_error_ GUARDED_BY(mutex_);

 private:
  // --- link_mover.cpp
  std::span<std::byte> SlotMemory(ExpertIndex expert) REQUIRES(mutex_);
  void HandOut(std::vector<PinnedExpert>& out) REQUIRES(mutex_);
  bool HasNews() REQUIRES(mutex_);
  void WaitForNews() REQUIRES(mutex_);
  LinkObserver::WaitCause CauseOfWait() REQUIRES(mutex_);

  // --- link_mover_io.cpp: the I/O thread and the packing threads
  void StartThreads();
  void StopThreads();
  void IoThread() EXCLUDES(mutex_);
  void IoLoop() EXCLUDES(mutex_);
  bool CollectRequests() EXCLUDES(mutex_);
  bool PackSome() EXCLUDES(mutex_);
  bool PackOne() EXCLUDES(mutex_);
  void PackThread() EXCLUDES(mutex_);
  bool TouchSlots();
  bool CloseSlot() EXCLUDES(mutex_);
  void Complete(const Flow::Packet& packet, PacketResult result) REQUIRES(mutex_);
  void NoteRead(const Flow::Packet& packet) REQUIRES(mutex_);
  void Commit(ExpertIndex expert) REQUIRES(mutex_);
  void Drop(ExpertIndex expert, std::exception_ptr error) REQUIRES(mutex_);
  void TellProgress() REQUIRES(mutex_);

  const ExpertGrid grid_;
  const LinkOptions options_;
  const uint64_t slot_bytes_;
  const LaneSizes sizes_;
  const SteadyClock steady_clock_;
  const Clock* const clock_;
  const std::unique_ptr<LinkObserver> observer_;
  std::unique_ptr<AsyncReader> reader_;
  TransferLanes lanes_;  // a lane belongs to the thread that reads into it or packs it
  const std::unique_ptr<Flow> flow_ PT_GUARDED_BY(mutex_);
  std::atomic<int64_t> slots_;              // whose memory it has; changed under the lock
  AlignedBuffer slab_;                      // [most slots, slot_bytes], unless the caller gave them
  const std::span<std::byte> slot_memory_;  // [most slots, slot_bytes]

  CondVar progress_;   // the consumer waits here
  CondVar pack_work_;  // packing threads wait here
  // Lanes whose bytes are there and must be packed or checked, oldest first.
  std::vector<int> to_pack_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::exception_ptr layer_error_ GUARDED_BY(mutex_);
  std::vector<ExpertId> failed_ GUARDED_BY(mutex_);  // of the open layer
  bool waits_for_news_ GUARDED_BY(mutex_) = false;   // the consumer, for its layer
  int64_t news_ns_ GUARDED_BY(mutex_) = 0;           // when what it waited for was there
  int64_t blocked_ns_ GUARDED_BY(mutex_) = 0;        // since the last EndLayer
  uint64_t blocked_us_ GUARDED_BY(mutex_) = 0;       // until it, since the start

  // The consumer's.
  std::vector<ExpertIndex> indices_;  // scratch
  ExpertStats totals_;

  // The I/O thread's own.
  std::vector<ReadRequest> requests_;
  std::vector<ReadCompletion> completions_;
  int reads_in_flight_ = 0;
  size_t touched_bytes_ = 0;  // of slab_, from its beginning
  bool closing_ = false;      // as the flow had it when it was asked last

  std::vector<std::thread> threads_;
};

}  // namespace moesaic
