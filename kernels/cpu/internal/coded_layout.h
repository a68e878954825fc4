// Where things lie in a panel of coded bf16 weights (PackedMatrix, kBf16Coded). Included after
// common.h.
#pragma once

#include "kernels/cpu/coded_weights.h"
#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

constexpr int64_t kCodedStepBytes = 3 * kLineBytes;
constexpr int64_t kCodedNumbersOffset = 2 * kLineBytes;  // the exponents' numbers, in a step
constexpr int64_t kCodedStepLines = 4;                   // of bf16 that a step stands for
constexpr int64_t kPlainStepBytes = kCodedStepLines * kLineBytes;
constexpr int kCodedExponents = 15;
constexpr int64_t kCodedLowOffset = 16;         // of the table of lowest bits
constexpr int64_t kCodedExceptionsOffset = 36;  // behind tables and count
constexpr int64_t kCodedExceptionBytes = 4;

// Exceptions that a panel has room for.
constexpr int64_t CodedRoom(int64_t k) {
  return (CodedHeadLines(k) * kLineBytes - kCodedExceptionsOffset) / kCodedExceptionBytes;
}
static_assert(CodedRoom(64) == 7 && CodedRoom(2048) >= 2048 * kLanes / 256);

// Word i of line l of a step is in this byte of line l / 2, and of the line of numbers.
constexpr int64_t CodedByte(int64_t line, int64_t word) {
  return word / 8 * 16 + line % 2 * 8 + word % 8;
}

MOESAIC_INLINE uint32_t ExponentOf(uint16_t word) { return word >> 7 & 255; }

// The exceptions of a panel that are still to come.
struct CodedExceptions {
  const std::byte* at;
  const std::byte* end;

  // The step of the next one; of none, one that never comes.
  MOESAIC_INLINE int64_t NextStep() const {
    return at == end ? INT64_MAX : static_cast<int64_t>(LoadAs<uint32_t>(at) >> 15);
  }
  // Puts the exponents of a step's exceptions in its words, [4][32].
  MOESAIC_INLINE void Patch(int64_t step, std::byte* words) {
    for (; NextStep() <= step; at += kCodedExceptionBytes) {
      const auto exception = LoadAs<uint32_t>(at);
      std::byte* const word = words + (exception >> 8 & 127) * 2;
      StoreAs(word,
              static_cast<uint16_t>((LoadAs<uint16_t>(word) & 0x807f) | (exception & 255) << 7));
    }
  }
};

// Whatever a damaged panel says, no more than it can have.
MOESAIC_INLINE CodedExceptions ExceptionsOf(const std::byte* panel, int64_t k) {
  const int64_t count = MinOf<int64_t>(LoadAs<uint32_t>(panel + kCodedCountOffset), CodedRoom(k));
  const std::byte* const first = panel + kCodedExceptionsOffset;
  return {first, first + count * kCodedExceptionBytes};
}

}  // namespace
}  // namespace moesaic
