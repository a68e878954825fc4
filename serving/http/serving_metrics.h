// ServingMetrics: what the server publishes about requests, in the process's MetricsRegistry.
// Experts and steps are published by the engine in the same registry.
//
// Thread contract: any thread.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/metrics.h"
#include "core/base/mutex.h"
#include "serving/engine/engine.h"
#include "serving/engine/request.h"

namespace moesaic {

// The histograms and counters of one model.
class ModelMetrics {
 public:
  ModelMetrics(MetricsRegistry& registry, const std::string& model);

  void ObserveFirstToken(double seconds) { first_token_.Observe(seconds); }
  void ObserveInterToken(double seconds) { inter_token_.Observe(seconds); }
  // One choice has ended. `queue_s`: negative when unknown.
  struct Finished {
    std::string_view reason;  // "stop", "length", "abort", "error"
    int64_t prompt_tokens = 0;
    int64_t generation_tokens = 0;
    double total_s = 0;
    double first_token_s = -1;  // negative: there was none
    double queue_s = -1;
  };
  void ObserveFinished(const Finished& finished);
  void SetStatus(const EngineStatus& status);

 private:
  MetricsRegistry& registry_;
  MetricLabels labels_;
  Counter& prompt_tokens_total_;
  Counter& generation_tokens_total_;
  Histogram& first_token_;
  Histogram& inter_token_;
  Histogram& per_output_token_;
  Histogram& total_;
  Histogram& queue_;
  Histogram& inference_;
  Histogram& prefill_;
  Histogram& decode_;
  Histogram& prompt_tokens_;
  Histogram& generation_tokens_;
  Gauge& running_;
  Gauge& waiting_;
  Gauge& kv_usage_;
};

class ServingMetrics {
 public:
  explicit ServingMetrics(MetricsRegistry& registry);

  void CountResponse(std::string_view route, int status);
  Gauge& connections() { return connections_; }
  // The same object for the same model; lives as long as this.
  ModelMetrics& ForModel(const std::string& model);
  // With `vllm_names`, families that vLLM has too follow once more under its names.
  std::string Serialize(bool vllm_names) const;

 private:
  MetricsRegistry& registry_;
  Gauge& connections_;
  Mutex mutex_;
  std::map<std::string, std::unique_ptr<ModelMetrics>> models_ GUARDED_BY(mutex_);
};

// Prometheus text in, the families among it that vLLM has, renamed, out. Pure.
std::string VllmAliases(std::string_view prometheus_text);

}  // namespace moesaic
