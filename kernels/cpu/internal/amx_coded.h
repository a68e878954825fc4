// Coded bf16 weights (PackedMatrix, kBf16Coded) for the tiles of amx_bf16.h. Included after
// DecodeHalf (coded_*.h).
//
// Lines of two panels are decoded into a ring of steps in a level 1 cache, by units that have
// nothing to do while tiles are multiplied. A tile cannot take what has not left the store buffer
// yet, so that a step is decoded well before it is loaded. Where several tiles of rows go over a
// block of steps, all of them share the work of decoding the next block.
#pragma once

#include "kernels/cpu/internal/coded_lines.h"

namespace moesaic {
namespace {

// A step of a tile is 32 inputs.
constexpr int64_t kAmxStepInputs = 32;
constexpr int64_t kAmxStepLines = 16;
constexpr int64_t kAmxStepBytes = kAmxStepLines * kLineBytes;
constexpr int64_t kAmxBlockSteps = 8;
// Steps of coded weights, of 8 inputs, in one of a tile.
constexpr int64_t kAmxCodedSteps = kAmxStepInputs / kCodedInputs;

template <bool kCoded, int64_t kColumns>
struct AmxPanels {
  AmxPanels(const std::byte* const*, int64_t, int64_t) {}
};

// The panels of a call, and room for what is decoded of two of them.
template <int64_t kColumns>
struct AmxPanels<true, kColumns> {
  AmxPanels(const std::byte* const* w, int64_t columns, int64_t k) {
    for (int64_t c = 0; c < columns; ++c) panels[c] = CodedPanelAt(w[c], k);
  }
  CodedPanel panels[kColumns];
  alignas(64) std::byte ring[2 * kAmxBlockSteps][2][kAmxStepBytes];
};

// How far two panels are decoded. Counts are of steps of coded weights.
struct AmxDecoding {
  CodedPanel* panels;
  std::byte (*ring)[2][kAmxStepBytes];
  int64_t slots;  // of the ring that are used, a power of two
  int64_t whole;  // that panels have
  int64_t end;    // that may be decoded
  int64_t done;
  int64_t points;  // at which tiles of rows decode the next block together
  int64_t due = 0;
};

// An AmxDecoding in registers, while a block is multiplied.
template <int P>
class AmxDecoder {
 public:
  explicit AmxDecoder(const AmxDecoding& from) : decoding_(from) {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      panels_[p] = from.panels[p];
      exception_[p] = panels_[p].rest.NextStep();
    }
  }
  MOESAIC_INLINE void Save(AmxDecoding& to) const {
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) to.panels[p] = panels_[p];
    to.done = decoding_.done;
    to.due = decoding_.due;
  }

  // So that tiles may load all steps before this one.
  MOESAIC_INLINE void DecodeBefore(int64_t step) {
    const int64_t end = MinOf(step * kAmxCodedSteps, decoding_.end);
    while (decoding_.done < end) Decode();
  }
  // One more, before step `end`.
  MOESAIC_INLINE void DecodeNext(int64_t end) {
    if (decoding_.done < MinOf(end * kAmxCodedSteps, decoding_.end)) Decode();
  }
  // A point's share of the block that ends before step `end`.
  MOESAIC_INLINE void DecodeShare(int64_t end) {
    decoding_.due += kAmxBlockSteps * kAmxCodedSteps;
    for (; decoding_.due >= decoding_.points; decoding_.due -= decoding_.points) DecodeNext(end);
  }
  MOESAIC_INLINE const std::byte* Step(int64_t step, int panel) const {
    return decoding_.ring[step & (decoding_.slots - 1)][panel];
  }

 private:
  MOESAIC_INLINE void Decode() {
    const int64_t at = decoding_.done++;
    const auto place = static_cast<uint64_t>(at);
    std::byte* const to =
        decoding_.ring[place / kAmxCodedSteps & static_cast<uint64_t>(decoding_.slots - 1)][0] +
        place % kAmxCodedSteps * kPlainStepBytes;
    MOESAIC_UNROLL
    for (int p = 0; p < P; ++p) {
      std::byte* const lines = to + p * kAmxStepBytes;
      if (at >= decoding_.whole) {
        __builtin_memset(lines, 0, kPlainStepBytes);
        continue;
      }
      panels_[p].template DecodeHalfTo<0>(at, lines);
      panels_[p].template DecodeHalfTo<1>(at, lines);
      if (at >= exception_[p]) {
        panels_[p].rest.Patch(at, lines);
        exception_[p] = panels_[p].rest.NextStep();
      }
    }
  }

  CodedPanel panels_[P];
  int64_t exception_[P];  // the step of the next one
  AmxDecoding decoding_;
};

}  // namespace
}  // namespace moesaic
