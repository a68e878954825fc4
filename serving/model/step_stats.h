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
  int64_t attention_us = 0;  // norms, QKV, RoPE, KV writes, attention, output projection
  int64_t moe_us = 0;        // router, routed and shared experts, dense MLP
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
};

}  // namespace moesaic
