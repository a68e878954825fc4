#include "prefetch/link/read_plan.h"

#include <algorithm>
#include <tuple>

#include "core/base/check.h"
#include "core/base/units.h"

namespace moesaic {

void ReadPlan::Grow(size_t extents) {
  ranges_.reserve(extents);
  order_.reserve(extents);
  piece_offsets_.reserve(extents);
}

void ReadPlan::Build(std::span<const Extent> extents, bool aligned, uint32_t packet_bytes) {
  CHECK_GT(packet_bytes, 0u);
  CHECK_EQ(packet_bytes % kPageBytes, 0u);
  Grow(extents.size());
  packet_bytes_ = packet_bytes;
  order_.resize(extents.size());
  for (size_t i = 0; i < extents.size(); ++i) order_[i] = static_cast<uint32_t>(i);
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    return std::tie(extents[a].file, extents[a].offset) <
           std::tie(extents[b].file, extents[b].offset);
  });

  const uint64_t grain = aligned ? kPageBytes : 1;
  ranges_.clear();
  piece_offsets_.assign(extents.size(), 0);
  packets_ = 0;
  buffer_bytes_ = 0;
  const auto close = [&] {
    if (ranges_.empty()) return;
    Range& range = ranges_.back();
    const uint64_t bytes = range.read_end - range.begin;
    range.first_packet = packets_;
    packets_ += static_cast<int>((bytes + packet_bytes - 1) / packet_bytes);
    // Each range starts on a page, also where reads need no alignment.
    buffer_bytes_ = RoundUp(range.buffer_offset + bytes, kPageBytes);
  };
  for (const uint32_t i : order_) {
    const Extent& extent = extents[i];
    const uint64_t begin = extent.offset / grain * grain;
    const uint64_t end = extent.offset + extent.bytes;
    const bool joins =
        !ranges_.empty() && ranges_.back().file == extent.file && begin <= ranges_.back().read_end;
    if (!joins) {
      close();
      ranges_.push_back({extent.file, begin, end, RoundUp(end, grain), buffer_bytes_, 0});
    }
    Range& range = ranges_.back();
    range.end = std::max(range.end, end);
    range.read_end = std::max(range.read_end, RoundUp(end, grain));
    piece_offsets_[i] = range.buffer_offset + (extent.offset - range.begin);
  }
  close();
}

ReadPlan::Packet ReadPlan::PacketAt(int packet) const {
  CHECK_GE(packet, 0);
  CHECK_LT(packet, packets_);
  size_t r = ranges_.size() - 1;
  while (ranges_[r].first_packet > packet) --r;
  const Range& range = ranges_[r];
  const uint64_t skip = static_cast<uint64_t>(packet - range.first_packet) * packet_bytes_;
  const uint64_t begin = range.begin + skip;
  return {
      .file = range.file,
      .offset = begin,
      .bytes = static_cast<uint32_t>(std::min<uint64_t>(packet_bytes_, range.read_end - begin)),
      .needed_bytes = static_cast<uint32_t>(std::min<uint64_t>(packet_bytes_, range.end - begin)),
      .buffer_offset = range.buffer_offset + skip};
}

}  // namespace moesaic
