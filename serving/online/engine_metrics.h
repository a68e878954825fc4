// EngineMetrics: what the engine publishes in the metrics registry, from StepStats alone.
#pragma once

#include "core/base/metrics.h"
#include "serving/model/step_stats.h"

namespace moesaic {

class EngineMetrics {
 public:
  explicit EngineMetrics(MetricsRegistry& registry);

  void AddStep(const StepStats& stats);
  void SetPreemptions(int64_t total);
  void SetExperts(int64_t slots, int64_t resident);

 private:
  Counter& steps_;
  Counter& prefill_tokens_;
  Counter& decode_tokens_;
  Counter& hits_;
  Counter& late_hits_;
  Counter& misses_;
  Counter& evictions_;
  Counter& bytes_read_;
  Counter& blocked_seconds_;
  Counter& prefetches_;
  Counter& prefetched_used_;
  Counter& prefetched_unused_;
  Counter& preemptions_;
  Gauge& slots_;
  Gauge& resident_;
};

}  // namespace moesaic
