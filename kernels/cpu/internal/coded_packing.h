// Packing of coded bf16 weights (PackedMatrix, kBf16Coded), and a row of them. Included after
// Vec16.
#pragma once

#include "kernels/cpu/internal/coded_layout.h"
#include "kernels/cpu/internal/float_packing.h"

namespace moesaic {
namespace {

// The commonest exponents of a panel, of equally common ones the lowest first.
struct CodedTable {
  uint8_t exponents[kCodedExponents] = {};
  int64_t covered = 0;  // weights that have one of them

  explicit CodedTable(uint32_t (&counts)[256]) {
    for (uint8_t& exponent : exponents) {
      int best = 0;
      for (int e = 1; e < 256; ++e) {
        if (counts[e] > counts[best]) best = e;
      }
      if (counts[best] == 0) break;
      covered += counts[best];
      counts[best] = 0;
      exponent = static_cast<uint8_t>(best);
    }
  }
};

// A step's four lines of bf16, of which the first `lines` are there and the others zero, as three.
// Exceptions are put at `exceptions`, which is returned as it goes on.
MOESAIC_INLINE std::byte* CodeStep(const CodedTable& table, const std::byte* words, int64_t lines,
                                   int64_t step, std::byte* to, std::byte* exceptions) {
  alignas(64) uint8_t numbers[2][kLineBytes];
  for (int64_t half = 0; half < 2; ++half) {
    auto* const of_half = reinterpret_cast<std::byte*>(numbers[half]);
    const std::byte* const from = words + 2 * half * kLineBytes;
    if (!CodeHalf(from, table.exponents, to + half * kLineBytes, of_half)) continue;
    for (int64_t line = 0; line < 2; ++line) {
      for (int64_t i = 0; i < 2 * kLanes; ++i) {
        uint8_t& number = numbers[half][CodedByte(line, i)];
        if (number != kCodedExponents) continue;
        if (2 * half + line >= lines) {  // is not there
          number = 0;
          continue;
        }
        const auto word = static_cast<uint32_t>((2 * half + line) * 2 * kLanes + i);
        const uint32_t exponent = ExponentOf(LoadAs<uint16_t>(from + line * kLineBytes + i * 2));
        StoreAs(exceptions, static_cast<uint32_t>(step) << 15 | word << 8 | exponent);
        exceptions += kCodedExceptionBytes;
      }
    }
  }
  std::byte* const both = to + kCodedNumbersOffset;
  for (int64_t i = 0; i < kLineBytes; ++i) {
    StoreAs(both + i, static_cast<uint8_t>(numbers[0][i] | numbers[1][i] << 4));
  }
  return exceptions;
}

void PackCoded(const void* src, DType src_dtype, int64_t src_stride, int64_t n, int64_t k,
               WeightType type, int64_t panel_begin, int64_t panel_end, std::byte* dst) {
  // Panels of bf16 are made and looked at in pieces, twice.
  constexpr int64_t kPieceInputs = 64;
  alignas(64) std::byte lines[kPieceInputs / 2 * kLineBytes];
  const int64_t element_bytes = ElementBytes(src_dtype);
  const int64_t panel_bytes = PanelLines(type, k) * kLineBytes;
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    const auto* const from =
        static_cast<const std::byte*>(src) + panel * kLanes * src_stride * element_bytes;
    const int64_t rows = MinOf(n - panel * kLanes, kLanes);
    // Returns how many lines there are.
    const auto read = [&](int64_t input) {
      if (k - input < kPieceInputs) __builtin_memset(lines, 0, sizeof(lines));
      const int64_t inputs = MinOf(k - input, kPieceInputs);
      PackFloatPanels(from + input * element_bytes, src_dtype, src_stride, rows, inputs,
                      WeightType::kBf16, 0, 1, lines, false);
      return CeilDiv(inputs, 2);
    };
    // Neighbours often have one exponent, and a count waits for the one before it.
    uint32_t counts[4][256] = {};
    for (int64_t input = 0; input < k; input += kPieceInputs) {
      const int64_t words = read(input) * 2 * kLanes;
      for (int64_t i = 0; i < words; i += 4) {
        const auto four = LoadAs<uint64_t>(lines + i * 2);
        ++counts[0][four >> 7 & 255];
        ++counts[1][four >> 23 & 255];
        ++counts[2][four >> 39 & 255];
        ++counts[3][four >> 55 & 255];
      }
    }
    for (int e = 0; e < 256; ++e) counts[0][e] += counts[1][e] + counts[2][e] + counts[3][e];
    const CodedTable table(counts[0]);
    const int64_t exceptions = CeilDiv(k, 2) * 2 * kLanes - table.covered;

    std::byte* const head = dst + panel * panel_bytes;
    __builtin_memset(head, 0, static_cast<size_t>(CodedHeadLines(k) * kLineBytes));
    if (exceptions > CodedRoom(k)) {
      __builtin_memset(head, 0, static_cast<size_t>(panel_bytes));
      StoreAs(head + kCodedCountOffset, kCodedMisfit);
      continue;
    }
    for (int number = 0; number < kCodedExponents; ++number) {
      const uint32_t exponent = table.exponents[number];
      StoreAs(head + number, static_cast<uint8_t>(exponent >> 1));
      StoreAs(head + kCodedLowOffset + number, static_cast<uint8_t>(exponent << 7));
    }
    StoreAs(head + kCodedCountOffset, static_cast<uint32_t>(exceptions));
    std::byte* next_exception = head + kCodedExceptionsOffset;
    std::byte* to = head + CodedHeadLines(k) * kLineBytes;
    int64_t step = 0;
    for (int64_t input = 0; input < k; input += kPieceInputs) {
      const int64_t count = read(input);
      for (int64_t line = 0; line < count; line += kCodedStepLines, ++step, to += kCodedStepBytes) {
        next_exception = CodeStep(table, lines + line * kLineBytes,
                                  MinOf(count - line, kCodedStepLines), step, to, next_exception);
      }
    }
  }
}

void UnpackCoded(const PackedMatrix& w, int64_t row, float* out) {
  const std::byte* const panel = w.data + row / kLanes * PanelLines(w.type, w.k) * kLineBytes;
  const std::byte* const data = panel + CodedHeadLines(w.k) * kLineBytes;
  const int64_t lane = row % kLanes;
  for (int64_t i = 0; i < w.k; ++i) {
    const std::byte* const step = data + i / kCodedInputs * kCodedStepBytes;
    const int64_t line = i % kCodedInputs / 2;
    const int64_t at = CodedByte(line, lane * 2 + i % 2);
    const uint32_t rest = LoadAs<uint8_t>(step + line / 2 * kLineBytes + at);
    const auto both = LoadAs<uint8_t>(step + kCodedNumbersOffset + at);
    const int number = line < 2 ? both & 15 : both >> 4;
    const uint32_t upper = LoadAs<uint8_t>(panel + number);
    const uint32_t lowest = LoadAs<uint8_t>(panel + kCodedLowOffset + number);
    out[i] = FloatOf(((rest & 0x80) << 8 | upper << 8 | lowest | (rest & 0x7f)) << 16);
  }
  CodedExceptions rest = ExceptionsOf(panel, w.k);
  for (; rest.at != rest.end; rest.at += kCodedExceptionBytes) {
    const auto exception = LoadAs<uint32_t>(rest.at);
    const int64_t word = exception >> 8 & 127;
    const int64_t i = rest.NextStep() * kCodedInputs + word / (2 * kLanes) * 2 + word % 2;
    if (word / 2 % kLanes != lane || i >= w.k) continue;
    out[i] = FloatOf((BitsOf(out[i]) & 0x807fffffu) | (exception & 255) << 23);
  }
}

}  // namespace
}  // namespace moesaic
