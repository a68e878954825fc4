// ReadPlan: the reads that bring one expert's extents into a buffer. Where reads must be aligned
// (O_DIRECT), extents are rounded out to pages; extents whose rounded ranges meet become one range,
// so that no page is read twice. Ranges are cut into packets.
//
// Plain data, rebuilt in place; no allocation once it has seen the largest expert (or Reserve).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/io/expert_layout.h"

namespace moesaic {

class ReadPlan {
 public:
  static constexpr uint64_t kPageBytes = 4096;

  // One read. Its bytes go to buffer_offset; the first needed_bytes of them must arrive (the rest
  // is rounding, which may lie behind the end of the file).
  struct Packet {
    int32_t file = 0;
    uint64_t offset = 0;
    uint32_t bytes = 0;
    uint32_t needed_bytes = 0;
    uint64_t buffer_offset = 0;
  };

  void Reserve(size_t extents) { Grow(extents); }

  // aligned: offsets, lengths and buffer offsets are multiples of a page. packet_bytes is a
  // multiple of a page. The extents' ends do not overflow (who made them has checked them against
  // the file).
  void Build(std::span<const Extent> extents, bool aligned, uint32_t packet_bytes);

  int packets() const { return packets_; }
  Packet PacketAt(int packet) const;
  uint64_t buffer_bytes() const { return buffer_bytes_; }
  // Where extent i begins in the buffer.
  uint64_t PieceOffset(size_t extent) const { return piece_offsets_[extent]; }

 private:
  struct Range {
    int32_t file = 0;
    uint64_t begin = 0;     // in the file
    uint64_t end = 0;       // exact: what is needed ends here
    uint64_t read_end = 0;  // rounded
    uint64_t buffer_offset = 0;
    int first_packet = 0;
  };

  void Grow(size_t extents);

  std::vector<Range> ranges_;
  std::vector<uint32_t> order_;  // extents by place in the files
  std::vector<uint64_t> piece_offsets_;
  uint32_t packet_bytes_ = 0;
  int packets_ = 0;
  uint64_t buffer_bytes_ = 0;
};

}  // namespace moesaic
