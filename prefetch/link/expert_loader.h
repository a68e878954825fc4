// ExpertLoader: one link at work: an ExpertFlow that decides, the threads that move and pack the
// bytes, and the memory of the slots. The engine asks it for the experts of a layer and gets them
// pinned, resident ones first, missing ones as they arrive.
//
// Thread contract: one consumer thread (the engine's) calls everything but the counters, which are
// safe from any thread; the loader owns one I/O thread and the packing threads. The consumer's
// thread is the one that predicts (StepPredictor): several loaders share a step predictor and no
// lock. Nobody waits for a slot while holding a pin: NextReady with nothing in flight while pins
// are held is a bug (CHECK).
//
// Memory: one slab of slots (the budget, or given by the caller) and, unless the source's bytes are
// blobs already, a few staging buffers in which an expert's extents are collected before they are
// packed. All of it is allocated at construction; nothing is allocated afterwards but the text of
// errors.
//
// Waves: when the layer needs more experts than there are slots, NextReady hands out what fits; as
// the consumer releases experts, their slots are reused for the missing rest. One slot is enough.
#pragma once

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
#include "core/base/mutex.h"
#include "core/device/numa_memory.h"
#include "core/io/async_reader.h"
#include "core/io/expert_source.h"
#include "prefetch/link/expert_flow.h"
#include "prefetch/link/expert_provider.h"
#include "prefetch/link/transfer_lanes.h"
#include "tracer/residency_list.h"

namespace moesaic {

struct ExpertLoaderOptions {
  uint64_t budget_bytes = 0;  // memory for slots; at least one slot
  ReadBackend backend = ReadBackend::kAuto;
  uint32_t packet_bytes = 0;  // 0: the measured default
  int depth = 0;              // reads in flight; 0: the measured default
  int max_retries = 2;        // of a failed read, before it fails the layer
  int pack_threads = 0;       // besides the I/O thread, which packs when there are none
  int numa_node = -1;         // that its threads run on; -1: anywhere
  // Of one slot, for slots of its own: what belongs on which node; empty: pages come from where the
  // process takes them. Looked at while it is constructed.
  std::span<const NodeStretch> slot_stretches = {};
  // Null: nothing is fetched ahead. Must outlive the loader. Its layers are those of the source.
  const StepPredictor* step_predictor = nullptr;

  // For one of several links.
  int32_t link = 0;                           // its number, for MissedExpert
  std::span<const ExpertIndex> experts = {};  // what comes over it; empty: all
  // The slots, 4 KiB aligned, in place of memory of the loader's own; must outlive it. The reader
  // then writes to where the caller's slots are. Not empty: budget_bytes is its size.
  std::span<std::byte> slot_memory = {};
  // An expert that cannot be read is no error of the layer: TakeFailed hands it out.
  bool hands_out_failed = false;
  // Called when an expert has arrived or failed, on any thread, under the loader's lock: for a
  // consumer that waits for several loaders.
  std::function<void()> on_progress = nullptr;

  int64_t copy_ns = 0;           // of one expert, until it is measured; 0: not known
  const Clock* clock = nullptr;  // null: the steady one; for tests, as the next one
  FlowLog* log = nullptr;
  SlotTable* table = nullptr;  // see ExpertFlowOptions
};

// Measured defaults (tests/bench/expert_loader_bench).
constexpr uint32_t kDefaultPacketBytes = 512 * 1024;
constexpr int kDefaultReadDepth = 16;

class ExpertLoader : public ExpertProvider {
 public:
  // `source` must outlive the loader. num_layers counts all layers of the model. A null policy: see
  // ExpertFlow. Throws Error(kResourceExhausted) when budget_bytes holds no slot, naming the least
  // budget.
  ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
               std::unique_ptr<EvictionPolicy> policy, const ExpertLoaderOptions& options);
  // As above with a given reader (tests inject faults); options.backend is not looked at.
  ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
               std::unique_ptr<EvictionPolicy> policy, const ExpertLoaderOptions& options,
               std::unique_ptr<AsyncReader> reader);
  // Waits for the reads in flight.
  ~ExpertLoader() override;
  ExpertLoader(const ExpertLoader&) = delete;
  ExpertLoader& operator=(const ExpertLoader&) = delete;

  // The step predictor has predicted for a step that begins: the link may fetch ahead, until
  // StopPrefetching (when no request is left). Without a step predictor, nothing happens.
  void StepBegan() override EXCLUDES(mutex_);
  void StopPrefetching() override EXCLUDES(mutex_);

  // The distinct experts that the layer needs (any order, one layer). Loads of missing ones start
  // at once.
  void BeginLayer(std::span<const ExpertId> needed) EXCLUDES(mutex_);
  void BeginLayer(std::span<const ExpertId> needed, int64_t /*pairs*/) override {
    BeginLayer(needed);
  }
  // In two parts, for who computes some on the host: appends those that are not resident; then
  // leaves out the entries of this link that are `on_host`. What has arrived in between is not left
  // out: on_host becomes false.
  void BeginLayer(std::span<const ExpertId> needed, std::vector<MissedExpert>& missed)
      EXCLUDES(mutex_);
  void StartLoads(std::span<MissedExpert> plan) EXCLUDES(mutex_);
  void Expect(std::span<const ExpertId> experts) override EXCLUDES(mutex_);
  bool IsResident(ExpertId expert) const override EXCLUDES(mutex_);
  // Appends experts of the layer that are resident and not handed out yet, pinned, to `out`; blocks
  // until there is at least one (or one has failed, see hands_out_failed). Returns false when all
  // were handed out. Throws Error(kIo / kCorrupt) when one cannot be read; the layer is over then
  // (EndLayer must still be called) and the loader stays usable.
  bool NextReady(std::vector<PinnedExpert>& out) override EXCLUDES(mutex_);
  // As NextReady, but without waiting.
  void TakeReady(std::vector<PinnedExpert>& out) EXCLUDES(mutex_);
  // Appends the experts of the layer that failed since the last call.
  void TakeFailed(std::vector<ExpertId>& out) EXCLUDES(mutex_);
  void Release(const PinnedExpert& expert) override EXCLUDES(mutex_);
  // Returns the layer's counts. Pins that are still held (an exception on the way) end here;
  // experts that were not handed out are no longer waited for.
  ExpertStats EndLayer() override EXCLUDES(mutex_);

  // Loads absent experts in the given order while free slots remain (a warm start). `keep_going`
  // (may be empty) is asked with the number loaded so far, on this thread, each time that grows;
  // false ends the preload early. Returns how many were loaded. Throws Error(kIo / kCorrupt) when
  // one cannot be read. No layer may be open.
  int64_t Preload(std::span<const ExpertId> experts,
                  const std::function<bool(int64_t loaded)>& keep_going = nullptr) override
      EXCLUDES(mutex_);
  // Forgets residents (for cold benches and tests). No layer may be open.
  void Clear() EXCLUDES(mutex_);

  // Who is in memory, by descending worth to the eviction policy.
  std::vector<ResidentExpert> Residents() const override EXCLUDES(mutex_);

  int64_t slots() const override { return slots_; }
  int64_t resident() const override EXCLUDES(mutex_);
  bool prefetching() const EXCLUDES(mutex_);
  // Slots of its own plus staging: what the loader takes of the machine.
  uint64_t slot_memory_bytes() const { return slab_.bytes() + sizes_.staging_bytes(); }
  ReadBackend backend() const { return reader_->backend(); }
  ExpertCacheCounters cache_counters() const EXCLUDES(mutex_);
  TransferCounters transfer_counters() const EXCLUDES(mutex_);  // times in nanoseconds

  // What a loader with these arguments takes besides its slots, for the memory ledger.
  static uint64_t StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                               const ExpertLoaderOptions& options);

 private:
  // --- expert_loader.cpp
  void OpenLayer(std::span<const ExpertId> needed) REQUIRES(mutex_);
  uint64_t Inserted() REQUIRES(mutex_) { return flow_.cache().counters().inserted; }
  std::span<std::byte> SlotMemory(ExpertIndex expert) REQUIRES(mutex_);
  int64_t Now() const { return clock_->NowNs(); }
  void WaitForProgress() REQUIRES(mutex_);
  void TellProgress() REQUIRES(mutex_);
  void Take(std::vector<PinnedExpert>& out) REQUIRES(mutex_);

  // --- expert_loader_io.cpp: the I/O thread and the packing threads
  void StartThreads();
  void StopThreads();
  void IoThread() EXCLUDES(mutex_);
  void IoLoop() EXCLUDES(mutex_);
  bool CollectRequests() EXCLUDES(mutex_);
  bool PackSome() EXCLUDES(mutex_);
  bool PackOne() EXCLUDES(mutex_);
  void PackThread() EXCLUDES(mutex_);
  void Complete(const ExpertFlow::Packet& packet, PacketResult result) REQUIRES(mutex_);
  void Drop(ExpertIndex expert, std::exception_ptr error) REQUIRES(mutex_);

  const ExpertSource& source_;
  const ExpertGrid grid_;
  const ExpertLoaderOptions options_;
  const uint64_t slot_bytes_;
  const int64_t slots_;
  const LaneSizes sizes_;
  const SteadyClock steady_clock_;
  const Clock* const clock_;
  AlignedBuffer slab_;                      // [slots, slot_bytes], unless the caller gave them
  const std::span<std::byte> slot_memory_;  // [slots, slot_bytes]
  TransferLanes lanes_;  // a lane belongs to the thread that reads into it or packs it

  mutable Mutex mutex_;
  CondVar progress_;   // an expert arrived or failed; the consumer waits here
  CondVar pack_work_;  // packing threads wait here
  ExpertFlow flow_ GUARDED_BY(mutex_);
  // Lanes whose bytes are there and must be packed or checked, oldest first.
  std::vector<int> to_pack_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::exception_ptr fatal_ GUARDED_BY(mutex_);  // the I/O thread ended with it
  std::exception_ptr layer_error_ GUARDED_BY(mutex_);
  std::exception_ptr preload_error_ GUARDED_BY(mutex_);
  std::vector<ExpertId> failed_ GUARDED_BY(mutex_);  // of the open layer
  int64_t blocked_ns_ GUARDED_BY(mutex_) = 0;        // since the last EndLayer

  std::vector<ExpertIndex> indices_;  // the consumer's scratch

  // The I/O thread's own.
  std::vector<ReadRequest> requests_;
  std::vector<ReadCompletion> completions_;
  int reads_in_flight_ = 0;

  // Goes before the memory that it reads into.
  std::unique_ptr<AsyncReader> reader_;
  std::vector<std::thread> threads_;
};

}  // namespace moesaic
