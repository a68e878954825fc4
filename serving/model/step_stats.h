// StepStats: what one or more steps did and what it cost. Plain data, returned up, summed by the
// caller.
#pragma once

#include <cstdint>

#include "prefetch/link/expert_stats.h"
#include "prefetch/predict/recall_meter.h"

namespace moesaic {

struct StepStats {
  int64_t steps = 0;
  int64_t prefill_tokens = 0;
  int64_t decode_tokens = 0;
  ExpertStats experts;
  RecallStats recall;  // of the predictions that experts were fetched by
  // Wall time of the parts of the forward pass; time blocked on experts is in `experts.blocked_us`
  // and not in moe_us.
  int64_t attention_us = 0;  // norms, QKV, RoPE, KV writes, attention, output projection, router
  int64_t moe_us = 0;        // routed and shared experts, dense MLP
  int64_t predict_us = 0;    // which experts come next; part of moe_us
  int64_t head_us = 0;       // final norm and logits
  int64_t total_us = 0;

  StepStats& operator+=(const StepStats& other) {
    steps += other.steps;
    prefill_tokens += other.prefill_tokens;
    decode_tokens += other.decode_tokens;
    experts += other.experts;
    recall += other.recall;
    attention_us += other.attention_us;
    moe_us += other.moe_us;
    predict_us += other.predict_us;
    head_us += other.head_us;
    total_us += other.total_us;
    return *this;
  }
  // Of a sum of steps: those since `before` was taken.
  StepStats& operator-=(const StepStats& before) {
    steps -= before.steps;
    prefill_tokens -= before.prefill_tokens;
    decode_tokens -= before.decode_tokens;
    experts.hits -= before.experts.hits;
    experts.late_hits -= before.experts.late_hits;
    experts.misses -= before.experts.misses;
    experts.on_host -= before.experts.on_host;
    experts.failed_reads -= before.experts.failed_reads;
    experts.given_up -= before.experts.given_up;
    experts.host_us -= before.experts.host_us;
    experts.evictions -= before.experts.evictions;
    experts.bytes_read -= before.experts.bytes_read;
    experts.blocked_us -= before.experts.blocked_us;
    experts.prefetched -= before.experts.prefetched;
    experts.prefetched_used -= before.experts.prefetched_used;
    experts.prefetched_unused -= before.experts.prefetched_unused;
    experts.fetched_early -= before.experts.fetched_early;
    experts.deferred -= before.experts.deferred;
    recall -= before.recall;
    attention_us -= before.attention_us;
    moe_us -= before.moe_us;
    predict_us -= before.predict_us;
    head_us -= before.head_us;
    total_us -= before.total_us;
    return *this;
  }
};

}  // namespace moesaic
