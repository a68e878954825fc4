// EngineMetrics: what the engine publishes in the metrics registry, from StepStats alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cache/kv_store.h"
#include "core/base/metrics.h"
#include "prefetch/link/expert_provider.h"
#include "serving/engine/engine_step.h"
#include "serving/engine/scheduler.h"
#include "serving/model/step_stats.h"

namespace moesaic {

// A counter that follows a total kept by one engine. An engine that comes after another under the
// same labels counts on from where that one ended.
class FollowingCounter {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor)
  FollowingCounter(Counter& counter) : counter_(counter), before_(counter.value()) {}
  void SetTotal(uint64_t total) { SetTotalOf(static_cast<double>(total)); }
  // What was added before may have been rounded up.
  void SetTotalOf(double total) { counter_.Add(std::max(0.0, before_ + total - counter_.value())); }

 private:
  Counter& counter_;
  const double before_;
};

class EngineMetrics {
 public:
  // with_devices: experts come from host memory to devices, not from disk to host memory.
  EngineMetrics(MetricsRegistry& registry, bool with_devices);

  void AddStep(const StepStats& stats);
  // Read before the first request; it is in no step.
  void AddPreload(uint64_t bytes) { preloaded_.Add(static_cast<double>(bytes)); }
  // Of several engines' turns: what this one's cost it, and how long they were so far in all.
  void AddTurn(int64_t waited_ns, int64_t used_ns);
  // A step of a batch ended before its time, for others.
  void AddGivenWay() { given_way_.Add(); }
  void SetPreemptions(int64_t total);
  void SetPrefixes(const PrefixCounters& prefixes);
  void SetPrefillLeft(int64_t tokens) { prefill_left_.Set(static_cast<double>(tokens)); }
  void SetKvStore(const KvStoreCounters& store);
  void SetExperts(int64_t slots, int64_t resident);
  // Prompts that run layer after layer: their tokens, and what share of the work is done; 0: there
  // are none.
  void SetPiece(int64_t tokens, double progress);
  // Likewise of a module batch of the background; one has run; one began to wait for others.
  void SetModuleBatch(int64_t tokens, double progress);
  // module_batch_rows, foreseen and whole_layers of these.
  void SetFetchOrders(const EngineStep::Experts& experts);
  // Sizes of module batches of lines, and tokens a second where these were planned (0: they were
  // not).
  void SetModuleBatchSizes(int64_t tokens, int64_t lines, double predicted_tokens_per_s);
  void AddModuleBatch() { module_batches_.Add(); }
  void AddModuleBatchPause() { module_batch_pauses_.Add(); }
  void SetDevices(std::span<const DeviceStatus> devices);
  void SetLinks(std::span<const ReaderLink> links);

 private:
  struct LinkMetrics {
    FollowingCounter bytes;
    FollowingCounter reads;
    FollowingCounter failed;
    FollowingCounter busy_s;
    Gauge& rate;
    Gauge& set_aside;
  };

  struct DeviceMetrics {
    FollowingCounter hits;
    FollowingCounter late_hits;
    FollowingCounter misses;
    FollowingCounter on_host;
    FollowingCounter bytes_copied;
    Gauge& slots;
    Gauge& resident;
    Gauge& lost;
  };

  struct KvStoreMetrics {
    Gauge& blocks;
    Gauge& bytes;
    Gauge& memory_bytes;
    FollowingCounter from_memory;
    FollowingCounter from_disk;
    FollowingCounter bytes_read;
    FollowingCounter bytes_written;
    FollowingCounter evicted;
    FollowingCounter left_memory;
    FollowingCounter failed_reads;
    FollowingCounter failed_writes;
  };

  // What grows by a part of the steps' stats.
  struct StepCounter {
    Counter& counter;
    double (*amount)(const StepStats& stats);
  };

  MetricsRegistry& registry_;
  std::vector<StepCounter> of_steps_;
  std::vector<Counter*> foreseen_;      // by distance - 1: experts used that were
  std::vector<Counter*> not_foreseen_;  // and were not among the most probable
  Counter& preloaded_;
  Counter& given_way_;
  FollowingCounter preemptions_;
  FollowingCounter from_pool_;
  FollowingCounter from_memory_;  // the store's
  FollowingCounter from_store_;
  std::optional<KvStoreMetrics> kv_store_;  // made with the first counters
  Gauge& slots_;
  Gauge& resident_;
  Gauge& prefill_left_;
  Gauge& piece_tokens_;
  Gauge& piece_progress_;
  Counter& module_batches_;
  Counter& module_batch_pauses_;
  Gauge& module_batch_tokens_;
  Gauge& module_batch_progress_;
  Gauge& module_batch_rows_;
  FollowingCounter module_batch_steps_;
  struct FetchMetrics {
    FollowingCounter tokens;
    FollowingCounter seconds;
  };
  static FetchMetrics FetchMetricsOf(MetricsRegistry& r, const char* order);
  FetchMetrics foreseen_order_;
  FetchMetrics whole_layers_;
  std::vector<DeviceMetrics> devices_;
  std::vector<LinkMetrics> links_;
  Counter* turn_wait_ = nullptr;  // made with the first turn
  Counter* turn_time_ = nullptr;
  int64_t turn_used_ns_ = 0;
};

}  // namespace moesaic
