// Coded bf16 weights become lines of bf16 in memory. Included after DecodeHalf (coded_*.h).
#pragma once

#include "kernels/cpu/internal/coded_layout.h"

namespace moesaic {
namespace {

// How far ahead of its use a panel is asked for, each line once and into the level 2 cache, as
// gguf_row.h found it best.
constexpr int64_t kCodedStepsAhead = (12 << 10) / kCodedStepBytes;

// A panel whose steps are decoded one after the other.
struct CodedPanel {
  const std::byte* head;
  const std::byte* data;
  CodedExceptions rest;

  // A half of a step, exceptions aside.
  template <int kHalf>
  MOESAIC_INLINE void DecodeHalfTo(int64_t step, std::byte* to) const {
    PairLine first;
    PairLine second;
    DecodeHalf<kHalf>(data + step * kCodedStepBytes, head, first, second);
    StoreLine(to + 2 * kHalf * kLineBytes, first);
    StoreLine(to + (2 * kHalf + 1) * kLineBytes, second);
  }
  // The four lines of a step.
  MOESAIC_INLINE void Decode(int64_t step, std::byte* to) {
    DecodeHalfTo<0>(step, to);
    DecodeHalfTo<1>(step, to);
    rest.Patch(step, to);
  }
  // Asks for what is used kCodedStepsAhead steps after this one of `steps`, in this panel or in the
  // one that begins `next_bytes` further on.
  MOESAIC_INLINE void AskFor(int64_t step, int64_t steps, int64_t next_bytes) const {
    const int64_t asked = step + MinOf(kCodedStepsAhead, steps);
    const std::byte* const at =
        data +
        (asked < steps ? asked * kCodedStepBytes : next_bytes + (asked - steps) * kCodedStepBytes);
    if (asked == steps) PrefetchLevel2(head + next_bytes);
    PrefetchLevel2(at);
    PrefetchLevel2(at + kLineBytes);
    PrefetchLevel2(at + 2 * kLineBytes);
  }
};

MOESAIC_INLINE CodedPanel CodedPanelAt(const std::byte* panel, int64_t k) {
  return {panel, panel + CodedHeadLines(k) * kLineBytes, ExceptionsOf(panel, k)};
}

}  // namespace
}  // namespace moesaic
