// ExpertLoader: joins an ExpertCache with the link that fills it. The engine asks it for the
// experts of a layer and gets them pinned, resident ones first, missing ones as they arrive.
//
// Thread contract: one consumer thread (the engine's) calls BeginLayer, NextReady, Release,
// EndLayer and the counters; the loader owns one I/O thread. All methods are safe against the I/O
// thread. Nobody waits for a slot while holding a pin: NextReady with nothing in flight while pins
// are held is a bug (CHECK).
//
// Memory: one slab of slots (the budget) and, unless the source's bytes are blobs already, a few
// staging buffers in which an expert's extents are collected before they are packed. All of it is
// allocated at construction; nothing is allocated afterwards but the text of errors.
//
// Waves: when the layer needs more experts than there are slots, NextReady hands out what fits; as
// the consumer releases experts, their slots are reused for the missing rest. One slot is enough.
//
// Prefetching: with a Prefetcher, a link that no layer waits for fetches ahead what the prefetcher
// finds worth it. Layers come first: their reads are issued before any prefetch's, a prefetch
// starts only when none of theirs is in flight, and one that has a slot that a layer needs is
// cancelled. With fewer slots than two tokens use in one layer there is no prefetching.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cache/expert_cache.h"
#include "core/base/expert_id.h"
#include "core/io/async_reader.h"
#include "core/io/expert_source.h"
#include "prefetch/link_prefetch.h"
#include "prefetch/transfer_queue.h"

namespace moesaic {

// A resident expert that cannot be evicted until it is released. Move-only.
struct PinnedExpert {
  ExpertId id;
  const std::byte* blob = nullptr;  // layout().blob_bytes
};

// What one layer (or, summed, one step) cost in experts. Counts are of distinct experts per layer.
struct ExpertStats {
  uint64_t hits = 0;       // resident when the layer began
  uint64_t late_hits = 0;  // in flight when the layer began
  uint64_t misses = 0;     // neither
  uint64_t evictions = 0;
  // From the slow tier, in expert bytes (what the source's extents add up to), preloading left out.
  // Counted when an expert has arrived or was cancelled, so that a load that outlives its layer
  // counts for the next one.
  uint64_t bytes_read = 0;
  uint64_t blocked_us = 0;  // the consumer waited in NextReady
  // Prefetches that were started. Most are used, or leave unused, in a later layer; those that were
  // cancelled are neither.
  uint64_t prefetched = 0;
  uint64_t prefetched_used = 0;
  uint64_t prefetched_unused = 0;

  ExpertStats& operator+=(const ExpertStats& other);
};

struct ExpertLoaderOptions {
  uint64_t budget_bytes = 0;  // memory for slots; at least one slot
  ReadBackend backend = ReadBackend::kAuto;
  uint32_t packet_bytes = 0;  // 0: the measured default
  int depth = 0;              // reads in flight; 0: the measured default
  int max_retries = 2;        // of a failed read, before it fails the layer
  int pack_threads = 0;       // besides the I/O thread, which packs when there are none
  // Null: nothing is fetched ahead. Must outlive the loader. Its layers are those of the source
  // that have experts.
  Prefetcher* prefetcher = nullptr;
  bool evicts_by_worth = false;  // the policy is MakeNextUsePolicy of the prefetcher's worth
};

// Fewer slots than that are left to the running layer: a token's experts must find room beside what
// is fetched ahead.
constexpr bool MayPrefetch(int64_t slots, int64_t top_k) { return slots >= 2 * top_k; }

// Measured defaults (tests/bench/expert_loader_bench).
constexpr uint32_t kDefaultPacketBytes = 512 * 1024;
constexpr int kDefaultReadDepth = 16;

class ExpertLoader {
 public:
  // `source` must outlive the loader. num_layers counts all layers of the model. Throws
  // Error(kResourceExhausted) when budget_bytes holds no slot, naming the least budget.
  ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
               std::unique_ptr<EvictionPolicy> policy, const ExpertLoaderOptions& options);
  // As above with a given reader (tests inject faults); options.backend is not looked at.
  ExpertLoader(const ExpertSource& source, int num_layers, int num_experts,
               std::unique_ptr<EvictionPolicy> policy, const ExpertLoaderOptions& options,
               std::unique_ptr<AsyncReader> reader);
  // Waits for the reads in flight.
  ~ExpertLoader();
  ExpertLoader(const ExpertLoader&) = delete;
  ExpertLoader& operator=(const ExpertLoader&) = delete;

  // What the prefetcher learns from; without one, these do nothing. Requests are numbered below the
  // predictor's max_requests. A step is one forward pass; BeginStep names its requests, and
  // OnRouting their choices in the layer that begins next, experts [rows, top_k].
  void BeginRequest(int request);
  void EndRequest(int request);
  void BeginStep(std::span<const StepRequest> requests);
  void OnRouting(int layer, std::span<const int32_t> experts);

  // The distinct experts that the layer needs (any order, one layer). Loads of missing ones start
  // at once.
  void BeginLayer(std::span<const ExpertId> needed);
  // Appends experts of the layer that are resident and not handed out yet, pinned, to `out`; blocks
  // until there is at least one. Returns false when all were handed out. Throws Error(kIo /
  // kCorrupt) when one cannot be read; the layer is over then (EndLayer must still be called) and
  // the loader stays usable.
  bool NextReady(std::vector<PinnedExpert>& out);
  void Release(const PinnedExpert& expert);
  // Returns the layer's counts. Pins that are still held (an exception on the way) end here;
  // experts that were not handed out are no longer waited for.
  ExpertStats EndLayer();

  // Loads absent experts in the given order while free slots remain (a warm start). `keep_going`
  // (may be empty) is asked with the number loaded so far, on this thread, each time that grows;
  // false ends the preload early. Returns how many were loaded. Throws Error(kIo / kCorrupt) when
  // one cannot be read. No layer may be open.
  int64_t Preload(std::span<const ExpertId> experts,
                  const std::function<bool(int64_t loaded)>& keep_going = nullptr);
  // Forgets residents (for cold benches and tests). No layer may be open.
  void Clear();

  int64_t slots() const;
  int64_t resident() const;
  bool prefetching() const;
  uint64_t slot_memory_bytes() const;  // slots plus staging: what the loader takes of the machine
  ReadBackend backend() const;
  ExpertCacheCounters cache_counters() const;
  TransferCounters transfer_counters() const;  // times in nanoseconds

  // What a loader with these arguments takes besides its slots, for the memory ledger.
  static uint64_t StagingBytes(const ExpertSource& source, int num_layers, int num_experts,
                               const ExpertLoaderOptions& options);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
