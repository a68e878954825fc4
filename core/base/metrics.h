// MetricsRegistry: counters, gauges and histograms, written by any thread, read as Prometheus text.
//
// Owned by main and passed down. A metric is created once (mutex) and then updated without locks;
// the returned references live as long as the registry.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/mutex.h"

namespace moesaic {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void Add(double amount = 1);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Gauge {
 public:
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }
  void Add(double amount);
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);
  void Observe(double value);
  const std::vector<double>& upper_bounds() const { return upper_bounds_; }
  std::vector<uint64_t> counts() const;  // per bucket, the last one is +Inf; not cumulative
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> upper_bounds_;
  std::vector<std::atomic<uint64_t>> counts_;
  std::atomic<double> sum_{0};
};

class MetricsRegistry {
 public:
  MetricsRegistry();
  // A view of `all` whose metrics have these labels too, before their own: of one of several
  // models, say. `all` outlives it, and so may the metrics.
  MetricsRegistry(MetricsRegistry& all, MetricLabels labels);
  ~MetricsRegistry();
  // The metric of this name and these labels, made on first use. CHECKs that a name keeps its kind.
  Counter& GetCounter(std::string_view name, std::string_view help,
                      const MetricLabels& labels = {});
  Gauge& GetGauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Histogram& GetHistogram(std::string_view name, std::string_view help,
                          std::vector<double> upper_bounds, const MetricLabels& labels = {});
  // Prometheus text exposition format 0.0.4. Of a view: of everything.
  std::string Serialize() const;

 private:
  enum class Kind { kCounter, kGauge, kHistogram };
  struct Family;
  Family& GetFamily(std::string_view name, std::string_view help, Kind kind) REQUIRES(mutex_);

  MetricLabels With(const MetricLabels& labels) const;

  MetricsRegistry* const all_ = nullptr;  // null: this is no view
  const MetricLabels labels_ = {};
  mutable Mutex mutex_;
  std::map<std::string, std::unique_ptr<Family>, std::less<>> families_ GUARDED_BY(mutex_);
};

}  // namespace moesaic
