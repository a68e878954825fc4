#include "serving/engine/engine_metrics.h"

#include <string>

namespace moesaic {
namespace {

constexpr const char* kPrefixTokens =
    "Tokens of prompts whose keys and values were there, by where they were found";

}  // namespace

EngineMetrics::FetchMetrics EngineMetrics::FetchMetricsOf(MetricsRegistry& r, const char* order) {
  return {r.GetCounter("moe_fetched_steps_tokens_total",
                       "Tokens of steps, by how their experts were fetched", {{"experts", order}}),
          r.GetCounter("moe_fetched_steps_seconds_total",
                       "Time of steps, by how their experts were fetched", {{"experts", order}})};
}

EngineMetrics::EngineMetrics(MetricsRegistry& r, bool with_devices)
    : registry_(r),
      preloaded_(r.GetCounter("moe_expert_preload_bytes_total",
                              "Expert bytes read before the first request, to fill the cache")),
      given_way_(
          r.GetCounter("moe_batch_steps_given_way_total",
                       "Steps of batches that ended at a layer's border for other requests")),
      preemptions_(
          r.GetCounter("moe_preemptions_total",
                       "Running sequences that left for want of KV blocks, or for one of a lower "
                       "rank that had no place, and were computed again")),
      from_pool_(
          r.GetCounter("moe_prefix_cache_tokens_total", kPrefixTokens, {{"tier", "memory"}})),
      from_memory_(
          r.GetCounter("moe_prefix_cache_tokens_total", kPrefixTokens, {{"tier", "store-memory"}})),
      from_store_(r.GetCounter("moe_prefix_cache_tokens_total", kPrefixTokens, {{"tier", "disk"}})),
      slots_(r.GetGauge("moe_expert_slots", "Experts that the cache can hold")),
      resident_(r.GetGauge("moe_experts_resident", "Experts in the cache")),
      prefill_left_(r.GetGauge("moe_prefill_tokens_left",
                               "Tokens of the prompts of requests that have begun, not computed "
                               "yet")),
      piece_tokens_(r.GetGauge("moe_prefill_by_layers_tokens",
                               "Tokens of the prompts that run layer after layer now")),
      piece_progress_(
          r.GetGauge("moe_prefill_by_layers_progress_ratio", "Share of their work that is done")),
      module_batches_(r.GetCounter("moe_module_batches_total",
                                   "Module batches of lines of batches that have run")),
      module_batch_pauses_(
          r.GetCounter("moe_module_batch_pauses_total",
                       "Times that a module batch of lines waited for other requests, between two "
                       "blocks of a layer; it goes on behind them")),
      module_batch_tokens_(r.GetGauge("moe_module_batch_tokens",
                                      "Tokens of the module batch of lines that runs now")),
      module_batch_progress_(
          r.GetGauge("moe_module_batch_progress_ratio", "Share of its work that is done")),
      module_batch_rows_(
          r.GetGauge("moe_module_batch_rows",
                     "Running sequences from which on steps were measured to be faster as module "
                     "batches; 0: nowhere so far")),
      module_batch_steps_(r.GetCounter("moe_module_batch_steps_total",
                                       "Steps of requests that ran as module batches")),
      foreseen_order_(FetchMetricsOf(r, "foreseen")),
      whole_layers_(FetchMetricsOf(r, "whole_layers")) {
  using Stats = const StepStats&;
  const auto add = [&](const char* name, const char* help, const MetricLabels& labels,
                       double (*amount)(Stats)) {
    of_steps_.push_back({r.GetCounter(name, help, labels), amount});
  };
  constexpr const char* kWanted = "Experts wanted by a layer, by where they were";
  constexpr const char* kPrefetched =
      "Experts read ahead, by whether a layer used them before they left; those that were given up "
      "are neither";
  add("moe_steps_total", "Forward passes", {},
      [](Stats s) { return static_cast<double>(s.steps); });
  add("moe_step_tokens_total", "Tokens computed", {{"phase", "prefill"}},
      [](Stats s) { return static_cast<double>(s.prefill_tokens); });
  add("moe_step_tokens_total", "Tokens computed", {{"phase", "decode"}},
      [](Stats s) { return static_cast<double>(s.decode_tokens); });
  add("moe_expert_requests_total", kWanted, {{"result", "hit"}},
      [](Stats s) { return static_cast<double>(s.experts.hits); });
  add("moe_expert_requests_total", kWanted, {{"result", "in_flight"}},
      [](Stats s) { return static_cast<double>(s.experts.late_hits); });
  add("moe_expert_requests_total", kWanted, {{"result", "miss"}},
      [](Stats s) { return static_cast<double>(s.experts.misses); });
  add("moe_expert_evictions_total", "Experts that left the cache", {},
      [](Stats s) { return static_cast<double>(s.experts.evictions); });
  add("moe_experts_on_host_total",
      "Experts that were on no device and were computed in host memory", {},
      [](Stats s) { return static_cast<double>(s.experts.on_host); });
  add("moe_expert_read_failures_total",
      "Reads and copies of parts of experts that failed; each is tried again some times", {},
      [](Stats s) { return static_cast<double>(s.experts.failed_reads); });
  add("moe_experts_given_up_total", "Experts that could not be read or copied, retries included",
      {}, [](Stats s) { return static_cast<double>(s.experts.given_up); });
  add("moe_expert_read_bytes_total", "Expert bytes read from the slow tier, preloading left out",
      {{"from", with_devices ? "host" : "disk"}, {"to", with_devices ? "device" : "host"}},
      [](Stats s) { return static_cast<double>(s.experts.bytes_read); });
  add("moe_expert_prefetches_total", "Reads of experts that were started ahead of their layer", {},
      [](Stats s) { return static_cast<double>(s.experts.prefetched); });
  add("moe_expert_prefetched_total", kPrefetched, {{"result", "used"}},
      [](Stats s) { return static_cast<double>(s.experts.prefetched_used); });
  add("moe_expert_prefetched_total", kPrefetched, {{"result", "unused"}},
      [](Stats s) { return static_cast<double>(s.experts.prefetched_unused); });
  add("moe_expert_blocked_seconds_total", "Time in which the forward pass waited for experts", {},
      [](Stats s) { return static_cast<double>(s.experts.blocked_us) * 1e-6; });
  add("moe_predict_seconds_total", "Time in which the engine's thread predicted experts", {},
      [](Stats s) { return static_cast<double>(s.predict_us) * 1e-6; });
  for (int distance = 1; distance <= RecallStats::kDistances; ++distance) {
    const auto counter = [&](const char* foreseen) {
      return &r.GetCounter("moe_expert_predictions_total",
                           "Experts used by decode steps, by whether they were among the most "
                           "probable so many layers before; each layer is measured at one distance "
                           "per step",
                           {{"distance", std::to_string(distance)}, {"foreseen", foreseen}});
    };
    foreseen_.push_back(counter("true"));
    not_foreseen_.push_back(counter("false"));
  }
}

void EngineMetrics::SetModuleBatchSizes(int64_t tokens, int64_t lines,
                                        double predicted_tokens_per_s) {
  registry_.GetGauge("moe_module_batch_most_tokens", "Tokens of a module batch of lines, at most")
      .Set(static_cast<double>(tokens));
  registry_
      .GetGauge("moe_module_batch_most_lines",
                "Lines of batches that run at once as module batches")
      .Set(static_cast<double>(lines));
  registry_
      .GetGauge("moe_module_batch_predicted_tokens_per_second",
                "Tokens of lines alone that were predicted from measured times of the model's "
                "modules, which planned these sizes; 0: there were none, they are by rule")
      .Set(predicted_tokens_per_s);
}

void EngineMetrics::AddStep(const StepStats& stats) {
  for (const StepCounter& of_steps : of_steps_) of_steps.counter.Add(of_steps.amount(stats));
  for (size_t i = 0; i < foreseen_.size(); ++i) {
    foreseen_[i]->Add(static_cast<double>(stats.recall.found[i]));
    not_foreseen_[i]->Add(static_cast<double>(stats.recall.used[i] - stats.recall.found[i]));
  }
}

void EngineMetrics::AddTurn(int64_t waited_ns, int64_t used_ns) {
  if (turn_wait_ == nullptr) {
    turn_wait_ = &registry_.GetCounter("moe_turn_wait_seconds_total",
                                       "Time in which steps waited for other models' steps");
    turn_time_ = &registry_.GetCounter(
        "moe_turn_seconds_total",
        "Time of the model's turns on the processors, less waiting for experts");
  }
  turn_wait_->Add(static_cast<double>(waited_ns) * 1e-9);
  turn_time_->Add(static_cast<double>(used_ns - turn_used_ns_) * 1e-9);
  turn_used_ns_ = used_ns;
}

void EngineMetrics::SetPreemptions(int64_t total) {
  preemptions_.SetTotal(static_cast<uint64_t>(total));
}

void EngineMetrics::SetPrefixes(const PrefixCounters& prefixes) {
  from_pool_.SetTotal(static_cast<uint64_t>(prefixes.from_pool));
  from_memory_.SetTotal(static_cast<uint64_t>(prefixes.from_memory));
  from_store_.SetTotal(static_cast<uint64_t>(prefixes.from_store));
}

void EngineMetrics::SetKvStore(const KvStoreCounters& store) {
  if (!kv_store_) {
    MetricsRegistry& r = registry_;
    const auto failures = [&](const char* operation) -> Counter& {
      return r.GetCounter("moe_kv_store_failures_total",
                          "Blocks that could not be written, and that could not be read or were "
                          "damaged",
                          {{"operation", operation}});
    };
    const auto hits = [&](const char* tier) -> Counter& {
      return r.GetCounter("moe_kv_store_hits_total",
                          "Blocks that sequences got from the store, by where they were",
                          {{"tier", tier}});
    };
    kv_store_.emplace(KvStoreMetrics{
        r.GetGauge("moe_kv_store_blocks",
                   "Blocks of keys and values, and of states as large, in the store"),
        r.GetGauge("moe_kv_store_bytes", "Bytes of these blocks"),
        r.GetGauge("moe_kv_store_memory_bytes", "Bytes of those that are in host memory"),
        hits("memory"), hits("disk"),
        r.GetCounter("moe_kv_store_read_bytes_total", "Bytes of blocks read from the store's disk"),
        r.GetCounter("moe_kv_store_written_bytes_total",
                     "Bytes of blocks written to the store's disk"),
        r.GetCounter("moe_kv_store_evictions_total",
                     "Blocks that left the store to make room for others"),
        r.GetCounter("moe_kv_store_memory_evictions_total",
                     "Blocks that left the store's memory and are on its disk alone"),
        failures("read"), failures("write")});
  }
  kv_store_->blocks.Set(static_cast<double>(store.blocks));
  kv_store_->bytes.Set(static_cast<double>(store.bytes));
  kv_store_->memory_bytes.Set(static_cast<double>(store.memory_bytes));
  kv_store_->from_memory.SetTotal(store.from_memory);
  kv_store_->from_disk.SetTotal(store.from_disk);
  kv_store_->bytes_read.SetTotal(store.bytes_read);
  kv_store_->bytes_written.SetTotal(store.bytes_written);
  kv_store_->evicted.SetTotal(store.evicted);
  kv_store_->left_memory.SetTotal(store.left_memory);
  kv_store_->failed_reads.SetTotal(store.failed_reads);
  kv_store_->failed_writes.SetTotal(store.failed_writes);
}

void EngineMetrics::SetExperts(int64_t slots, int64_t resident) {
  slots_.Set(static_cast<double>(slots));
  resident_.Set(static_cast<double>(resident));
}

void EngineMetrics::SetPiece(int64_t tokens, double progress) {
  piece_tokens_.Set(static_cast<double>(tokens));
  piece_progress_.Set(progress);
}

void EngineMetrics::SetModuleBatch(int64_t tokens, double progress) {
  module_batch_tokens_.Set(static_cast<double>(tokens));
  module_batch_progress_.Set(progress);
}

void EngineMetrics::SetFetchOrders(const EngineStep::Experts& experts) {
  module_batch_rows_.Set(static_cast<double>(experts.module_batch_rows));
  module_batch_steps_.SetTotal(static_cast<uint64_t>(experts.whole_layers.steps));
  const auto set = [](const EngineStep::FetchOrder& order, FetchMetrics& metrics) {
    metrics.tokens.SetTotal(static_cast<uint64_t>(order.tokens));
    metrics.seconds.SetTotalOf(static_cast<double>(order.total_us) * 1e-6);
  };
  set(experts.foreseen, foreseen_order_);
  set(experts.whole_layers, whole_layers_);
}

void EngineMetrics::SetDevices(std::span<const DeviceStatus> devices) {
  for (size_t d = devices_.size(); d < devices.size(); ++d) {
    const MetricLabels device = {{"device", devices[d].name}};
    const auto experts = [&](const char* result) -> Counter& {
      return registry_.GetCounter("moe_device_expert_requests_total",
                                  "Experts of a device wanted by a layer, by where they were",
                                  {device[0], {"result", result}});
    };
    devices_.push_back(
        {experts("hit"), experts("in_flight"), experts("miss"),
         registry_.GetCounter("moe_device_experts_on_host_total",
                              "Experts of a device that were computed in host memory", device),
         registry_.GetCounter("moe_device_copied_bytes_total", "Expert bytes copied to a device",
                              device),
         registry_.GetGauge("moe_device_expert_slots", "Experts that a device can hold", device),
         registry_.GetGauge("moe_device_experts_resident", "Experts on a device", device),
         registry_.GetGauge("moe_device_lost",
                            "1 when a device is lost: its experts are computed in host memory",
                            device)});
  }
  for (size_t d = 0; d < devices.size(); ++d) {
    const DeviceStatus& status = devices[d];
    DeviceMetrics& metrics = devices_[d];
    metrics.hits.SetTotal(status.hits);
    metrics.late_hits.SetTotal(status.late_hits);
    metrics.misses.SetTotal(status.misses);
    metrics.on_host.SetTotal(status.on_host);
    metrics.bytes_copied.SetTotal(status.bytes_copied);
    metrics.slots.Set(static_cast<double>(status.slots));
    metrics.resident.Set(static_cast<double>(status.resident));
    metrics.lost.Set(status.lost ? 1 : 0);
  }
}

void EngineMetrics::SetLinks(std::span<const ReaderLink> links) {
  for (size_t l = links_.size(); l < links.size(); ++l) {
    MetricsRegistry& r = registry_;
    const MetricLabels store = {{"store", links[l].name}};
    links_.push_back(
        {r.GetCounter("moe_expert_store_read_bytes_total",
                      "Expert bytes read, by the store that they came from", store),
         r.GetCounter("moe_expert_store_reads_total", "Reads of a store, failed ones included",
                      store),
         r.GetCounter("moe_expert_store_failed_reads_total",
                      "Reads that a store could not give; another one was asked then", store),
         r.GetCounter("moe_expert_store_busy_seconds_total",
                      "Time in which at least one read of the store was under way", store),
         r.GetGauge("moe_expert_store_bytes_per_second",
                    "Rate of the store as measured last; 0: not measured yet", store),
         r.GetGauge("moe_expert_store_set_aside",
                    "1 while a store is not read because its reads failed", store)});
  }
  for (size_t l = 0; l < links.size(); ++l) {
    const ReaderLink& link = links[l];
    LinkMetrics& metrics = links_[l];
    metrics.bytes.SetTotal(link.bytes);
    metrics.reads.SetTotal(link.reads);
    metrics.failed.SetTotal(link.failed);
    metrics.busy_s.SetTotalOf(static_cast<double>(link.busy_us) * 1e-6);
    metrics.rate.Set(link.bytes_per_s);
    metrics.set_aside.Set(link.set_aside ? 1 : 0);
  }
}

}  // namespace moesaic
