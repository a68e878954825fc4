// Where the bytes of GGUF's blocks are in a panel (PackedMatrix, kGguf). Included by
// gguf_blocks.cpp and by the sources of the instruction sets.
#pragma once

#include "kernels/cpu/internal/common.h"

namespace moesaic {
namespace {

// The head of a block is what its scales are multiples of; the body are whole dwords, of which
// each becomes a lane of a line.
struct GgufLayout {
  uint32_t id;  // ggml's enum ggml_type
  int64_t head_bytes;
  int64_t head_at;  // in a block of the file
  int64_t body_at;
  int64_t body_lines;
};

constexpr uint32_t kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ2K = 10, kQ3K = 11,
                   kQ4K = 12, kQ5K = 13, kQ6K = 14, kIq4Nl = 20, kIq4Xs = 23, kMxfp4Blocks = 39;

constexpr GgufLayout kGgufLayouts[] = {
    {kQ4_0, 2, 0, 2, 4},       {kQ4_1, 4, 0, 4, 4},   {kQ5_0, 2, 0, 2, 5},   {kQ5_1, 4, 0, 4, 5},
    {kQ8_0, 2, 0, 2, 8},       {kQ2K, 4, 80, 0, 20},  {kQ3K, 2, 108, 0, 27}, {kQ4K, 4, 0, 4, 35},
    {kQ5K, 4, 0, 4, 43},       {kQ6K, 2, 208, 0, 52}, {kIq4Nl, 2, 0, 2, 4},  {kIq4Xs, 4, 0, 4, 33},
    {kMxfp4Blocks, 1, 0, 1, 4}};

// Null: plain floats, whose blocks lie as they are.
constexpr const GgufLayout* GgufLayoutOf(uint32_t id) {
  for (const GgufLayout& layout : kGgufLayouts) {
    if (layout.id == id) return &layout;
  }
  return nullptr;
}

// Where the bodies of a panel of so many blocks begin.
constexpr int64_t GgufBodyOffset(const GgufLayout& layout, int64_t blocks) {
  return (blocks * layout.head_bytes * kLanes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

// The fifth bits of 32 inputs, of which bit i is input i's: bit j of byte b is input 4 j + b's, so
// that a shift gives those of four inputs, in the order of a line.
MOESAIC_INLINE uint32_t SpreadFifthBits(uint32_t bits) {
  uint32_t spread = 0;
  for (int b = 0; b < 4; ++b) {
    uint32_t part = bits >> b & 0x11111111u;
    part = (part | part >> 3) & 0x03030303u;
    part = (part | part >> 6) & 0x000f000fu;
    part = (part | part >> 12) & 0xffu;
    spread |= part << 8 * b;
  }
  return spread;
}
MOESAIC_INLINE uint32_t JoinFifthBits(uint32_t spread) {
  uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= (spread >> (8 * (i % 4) + i / 4) & 1u) << i;
  return bits;
}

// A dword of a body as a lane has it, and back.
MOESAIC_INLINE uint32_t GgufLaneOf(uint32_t id, int64_t line, uint32_t dword) {
  if (id == kQ8_0) return dword ^ 0x80808080u;
  return (id == kQ5_0 || id == kQ5_1) && line == 0 ? SpreadFifthBits(dword) : dword;
}
MOESAIC_INLINE uint32_t GgufDwordOf(uint32_t id, int64_t line, uint32_t lane) {
  if (id == kQ8_0) return lane ^ 0x80808080u;
  return (id == kQ5_0 || id == kQ5_1) && line == 0 ? JoinFifthBits(lane) : lane;
}

// Numbers of the head of a row: its halves lie apart, [head_bytes / 2][16], or bytes [16].
constexpr int64_t GgufHeadOffset(const GgufLayout& layout, int64_t block, int64_t lane,
                                 int64_t byte) {
  const int64_t width = layout.head_bytes == 1 ? 1 : 2;
  return (block * layout.head_bytes + byte / width * width) * kLanes + lane * width + byte % width;
}

constexpr int64_t kMaxGgufBlockBytes = 256;

// A block of a row as the file has it, from a panel of `blocks` of each of its rows.
MOESAIC_INLINE void TakeGgufBlock(const GgufForm& form, const std::byte* panel, int64_t blocks,
                                  int64_t block, int64_t lane, std::byte* to) {
  const GgufLayout* const layout = GgufLayoutOf(form.id);
  if (layout == nullptr) {
    __builtin_memcpy(to, panel + (block * kLanes + lane) * form.bytes, form.bytes);
    return;
  }
  for (int64_t i = 0; i < layout->head_bytes; ++i) {
    to[layout->head_at + i] = panel[GgufHeadOffset(*layout, block, lane, i)];
  }
  const std::byte* from =
      panel + GgufBodyOffset(*layout, blocks) + block * layout->body_lines * kLineBytes + lane * 4;
  for (int64_t line = 0; line < layout->body_lines; ++line, from += kLineBytes) {
    StoreAs(to + layout->body_at + 4 * line, GgufDwordOf(form.id, line, LoadAs<uint32_t>(from)));
  }
}

// The other way.
MOESAIC_INLINE void PutGgufBlock(const GgufForm& form, const std::byte* from, int64_t blocks,
                                 int64_t block, int64_t lane, std::byte* panel) {
  const GgufLayout* const layout = GgufLayoutOf(form.id);
  if (layout == nullptr) {
    __builtin_memcpy(panel + (block * kLanes + lane) * form.bytes, from, form.bytes);
    return;
  }
  for (int64_t i = 0; i < layout->head_bytes; ++i) {
    panel[GgufHeadOffset(*layout, block, lane, i)] = from[layout->head_at + i];
  }
  std::byte* to =
      panel + GgufBodyOffset(*layout, blocks) + block * layout->body_lines * kLineBytes + lane * 4;
  for (int64_t line = 0; line < layout->body_lines; ++line, to += kLineBytes) {
    StoreAs(to, GgufLaneOf(form.id, line, LoadAs<uint32_t>(from + layout->body_at + 4 * line)));
  }
}

}  // namespace
}  // namespace moesaic
