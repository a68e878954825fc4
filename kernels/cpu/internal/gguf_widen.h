// Panels of GGUF's blocks (gguf_layout.h) as whole numbers in bytes and f32 scales. Included after
// Vec16 and ByteLine (lines_*.h).
//
// A weight is scale * (byte - zero) + addend, with one scale and addend for 16 or 32 inputs of an
// output: f32 products in ggml's order, so that the values have ggml's bits.
#pragma once

#include "kernels/cpu/internal/gguf_codes.h"
#include "kernels/cpu/internal/gguf_scales.h"

namespace moesaic {
namespace {

// Up to kGgufStep inputs of a panel.
struct WidePanel {
  // [inputs / 4][16][4]; `memory`, or the panel itself.
  const std::byte* lines;
  alignas(64) std::byte memory[kGgufStep / 4 * kLineBytes];
  alignas(64) float scales[kGgufStep / 16][kLanes];
  alignas(64) float addends[kGgufStep / 16][kLanes];
};

// A panel, and what its addends are multiplied with.
struct GgufPanel {
  const std::byte* data;
  int64_t blocks;
  float addend_factor;
};

// The bytes of inputs 4 kLine to 4 kLine + 3 of a block with this body.
template <uint32_t kId, int kLine, bool kSigned>
MOESAIC_INLINE ByteLine LevelLine(const std::byte* body) {
  constexpr GgufCodes kCodes = GgufCodesOf(kId);
  constexpr int kZero = kSigned || GgufKindOf(kId).addends ? 0 : kGgufZero;
  const ByteLine codes = CodesAt<kId, kLine>(body);
  if constexpr (kCodes.zero == kZero) return codes;
  return AddToBytes(codes, kZero - kCodes.zero);
}

// --- inputs [first, first + inputs), at most kGgufStep and whole blocks, of a panel; first is a
// multiple of kGgufStep

template <uint32_t kId>
MOESAIC_INLINE const std::byte* GgufBodyOf(const GgufPanel& panel, int64_t first) {
  constexpr GgufLayout kLayout = *GgufLayoutOf(kId);
  return panel.data + GgufBodyOffset(kLayout, panel.blocks) +
         first / kGgufBlockInputs<kId> * kLayout.body_lines * kLineBytes;
}

template <uint32_t kId>
inline void ScalesOfGguf(const GgufPanel& panel, int64_t first, int64_t inputs, WidePanel& out) {
  constexpr int64_t kHeadBytes = GgufLayoutOf(kId)->head_bytes * kLanes;
  constexpr auto kBlockGroups = static_cast<int>(kGgufBlockInputs<kId> / GgufKindOf(kId).group);
  const std::byte* head = panel.data + first / kGgufBlockInputs<kId> * kHeadBytes;
  const std::byte* const body = GgufBodyOf<kId>(panel, first);
  for (int64_t i = 0; i < inputs / kGgufBlockInputs<kId>; ++i, head += kHeadBytes) {
    const GgufScales<kId> scales(head, body, panel.addend_factor);
    ForEach<kBlockGroups>([&](auto of) MOESAIC_BODY {
      constexpr int g = decltype(of)::value;
      Store(out.scales[i * kBlockGroups + g], scales.template Scale<g>());
      if constexpr (GgufKindOf(kId).addends) {
        Store(out.addends[i * kBlockGroups + g], scales.template Addend<g>());
      }
    });
  }
}

template <uint32_t kId, bool kSigned>
inline void WidenGgufOf(const GgufPanel& panel, int64_t first, int64_t inputs, WidePanel& out) {
  constexpr auto kLines = static_cast<int>(kGgufBlockInputs<kId> / 4);
  ScalesOfGguf<kId>(panel, first, inputs, out);
  const std::byte* body = GgufBodyOf<kId>(panel, first);
  constexpr bool kAsTheyAre = kId == kQ8_0 && !kSigned;
  out.lines = kAsTheyAre ? body : out.memory;
  if constexpr (kAsTheyAre) return;
  std::byte* __restrict to = out.memory;
  for (int64_t i = 0; i < inputs; i += kGgufBlockInputs<kId>) {
    ForEach<kLines>([&](auto line) MOESAIC_BODY {
      constexpr int kLine = decltype(line)::value;
      StoreLine(to + kLine * kLineBytes, LevelLine<kId, kLine, kSigned>(body));
    });
    to += kLines * kLineBytes;
    body += GgufLayoutOf(kId)->body_lines * kLineBytes;
  }
}

// The bytes of a panel that are asked for while a step is at work: as many as the step reads, at
// least `distance` behind these, or, at the end of the panel, of the one that follows `next_bytes`
// further on.
struct GgufAhead {
  const std::byte* from;
  int64_t lines;
};
MOESAIC_INLINE GgufAhead AheadOfStep(const std::byte* panel, const GgufForm& form, int64_t k,
                                     int64_t first, int64_t inputs, int64_t next_bytes,
                                     int64_t distance = 48 * kLineBytes) {
  const GgufLayout* const layout = GgufLayoutOf(form.id);
  const int64_t blocks = k / form.values;
  const int64_t bytes = RoundUp(blocks * form.bytes * kLanes, kLineBytes);
  // Heads are read from another place than bodies.
  const int64_t heads = layout != nullptr ? GgufBodyOffset(*layout, blocks) : 0;
  int64_t at = first / form.values * form.bytes * kLanes + heads + distance;
  if (at >= bytes) at += next_bytes - bytes;
  return {panel + at, CeilDiv(inputs / form.values * form.bytes * kLanes, kLineBytes)};
}

// Calls body(Index<id>) with the type.
template <class F>
MOESAIC_INLINE void WithGgufType(uint32_t id, const F& body) {
  switch (id) {
    case kQ4_0:
      return body(Index<kQ4_0>{});
    case kQ4_1:
      return body(Index<kQ4_1>{});
    case kQ5_0:
      return body(Index<kQ5_0>{});
    case kQ5_1:
      return body(Index<kQ5_1>{});
    case kQ8_0:
      return body(Index<kQ8_0>{});
    case kQ2K:
      return body(Index<kQ2K>{});
    case kQ3K:
      return body(Index<kQ3K>{});
    case kQ4K:
      return body(Index<kQ4K>{});
    case kQ5K:
      return body(Index<kQ5K>{});
    case kQ6K:
      return body(Index<kQ6K>{});
    case kIq4Nl:
      return body(Index<kIq4Nl>{});
    case kIq4Xs:
      return body(Index<kIq4Xs>{});
    case kMxfp4Blocks:
      return body(Index<kMxfp4Blocks>{});
    default:
      __builtin_unreachable();
  }
}

// kSigned: bytes are weights as they are, zero is 0, of every kind.
template <bool kSigned = false>
inline void WidenGguf(uint32_t id, const GgufPanel& panel, int64_t first, int64_t inputs,
                      WidePanel& out) {
  WithGgufType(id, [&](auto type) {
    WidenGgufOf<decltype(type)::value, kSigned>(panel, first, inputs, out);
  });
}

}  // namespace
}  // namespace moesaic
