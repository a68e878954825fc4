#include "serving/online/engine_metrics.h"

namespace moesaic {

EngineMetrics::EngineMetrics(MetricsRegistry& r)
    : steps_(r.GetCounter("moe_steps_total", "Forward passes")),
      prefill_tokens_(
          r.GetCounter("moe_step_tokens_total", "Tokens computed", {{"phase", "prefill"}})),
      decode_tokens_(
          r.GetCounter("moe_step_tokens_total", "Tokens computed", {{"phase", "decode"}})),
      hits_(r.GetCounter("moe_expert_requests_total",
                         "Experts wanted by a layer, by where they were", {{"result", "hit"}})),
      late_hits_(r.GetCounter("moe_expert_requests_total",
                              "Experts wanted by a layer, by where they were",
                              {{"result", "in_flight"}})),
      misses_(r.GetCounter("moe_expert_requests_total",
                           "Experts wanted by a layer, by where they were", {{"result", "miss"}})),
      evictions_(r.GetCounter("moe_expert_evictions_total", "Experts that left the cache")),
      bytes_read_(r.GetCounter("moe_expert_read_bytes_total",
                               "Expert bytes read from the slow tier",
                               {{"from", "disk"}, {"to", "host"}})),
      blocked_seconds_(r.GetCounter("moe_expert_blocked_seconds_total",
                                    "Time in which the forward pass waited for experts")),
      prefetches_(r.GetCounter("moe_expert_prefetches_total",
                               "Reads of experts that were started ahead of their layer")),
      prefetched_used_(r.GetCounter("moe_expert_prefetched_total",
                                    "Experts read ahead, by whether a layer used them before they "
                                    "left; those that were given up are neither",
                                    {{"result", "used"}})),
      prefetched_unused_(r.GetCounter("moe_expert_prefetched_total",
                                      "Experts read ahead, by whether a layer used them before "
                                      "they left; those that were given up are neither",
                                      {{"result", "unused"}})),
      preemptions_(
          r.GetCounter("moe_preemptions_total", "Sequences preempted for lack of KV blocks")),
      slots_(r.GetGauge("moe_expert_slots", "Experts that the cache can hold")),
      resident_(r.GetGauge("moe_experts_resident", "Experts in the cache")) {}

void EngineMetrics::AddStep(const StepStats& stats) {
  steps_.Add(static_cast<double>(stats.steps));
  prefill_tokens_.Add(static_cast<double>(stats.prefill_tokens));
  decode_tokens_.Add(static_cast<double>(stats.decode_tokens));
  hits_.Add(static_cast<double>(stats.experts.hits));
  late_hits_.Add(static_cast<double>(stats.experts.late_hits));
  misses_.Add(static_cast<double>(stats.experts.misses));
  evictions_.Add(static_cast<double>(stats.experts.evictions));
  bytes_read_.Add(static_cast<double>(stats.experts.bytes_read));
  prefetches_.Add(static_cast<double>(stats.experts.prefetched));
  prefetched_used_.Add(static_cast<double>(stats.experts.prefetched_used));
  prefetched_unused_.Add(static_cast<double>(stats.experts.prefetched_unused));
  blocked_seconds_.Add(static_cast<double>(stats.experts.blocked_us) * 1e-6);
}

void EngineMetrics::SetPreemptions(int64_t total) {
  preemptions_.Add(static_cast<double>(total) - preemptions_.value());
}

void EngineMetrics::SetExperts(int64_t slots, int64_t resident) {
  slots_.Set(static_cast<double>(slots));
  resident_.Set(static_cast<double>(resident));
}

}  // namespace moesaic
