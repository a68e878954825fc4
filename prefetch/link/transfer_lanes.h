// TransferLanes: the bytes' side of the transfers that are moving. A lane has the read plan of its
// expert and, where bytes must be packed, a staging buffer in which its extents are collected.
//
// Thread contract: a lane is used by one thread at a time; the LinkMover hands it from the I/O
// thread to a packing thread and back under its lock. Nothing is allocated after construction but
// the text of errors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "cache/expert_grid.h"
#include "core/base/aligned_buffer.h"
#include "core/io/async_reader.h"
#include "core/io/expert_source.h"
#include "core/io/stripe_schedule.h"
#include "prefetch/link/read_plan.h"
#include "prefetch/link/transfer_queue.h"

namespace moesaic {

// What the lanes of one link take, from the source's extents and the reading parameters.
struct LaneSizes {
  int lanes = 1;
  uint64_t lane_bytes = 0;  // staging of one lane; 0 when bytes go straight into the slots
  int max_packets = 1;      // of one expert
  size_t max_extents = 0;   // of one expert

  uint64_t staging_bytes() const { return static_cast<uint64_t>(lanes) * lane_bytes; }
};

// Looks at every expert of the source. Valid for aligned and unaligned reading. Throws
// Error(kUnsupported) when one expert takes more than 2^31 - 1 packets or extents that overflow.
LaneSizes PlanLanes(const ExpertSource& source, const ExpertGrid& grid, int64_t slots, int depth,
                    uint32_t packet_bytes);

// [all experts] as a reader with these parameters copies them.
std::vector<ExpertCopy> PlanCopies(const ExpertSource& source, const ExpertGrid& grid, bool aligned,
                                   uint32_t packet_bytes);

class TransferLanes {
 public:
  TransferLanes(const ExpertSource& source, const ExpertGrid& grid, const LaneSizes& sizes,
                bool aligned, uint32_t packet_bytes);

  // The lane now serves this expert, whose blob will be in `slot`.
  void Begin(int lane, ExpertId id, std::span<std::byte> slot);
  ExpertId id(int lane) const { return At(lane).id; }
  int packets(int lane) const { return At(lane).plan.packets(); }
  // False: the source makes the blob from nothing.
  bool HasReads(int lane) const { return At(lane).plan.packets() > 0; }
  ReadRequest Request(int lane, int packet, uint64_t tag);
  // What the completion of a packet's read means; an error is kept (the last one counts).
  PacketResult Check(int lane, int packet, const ReadCompletion& completion);
  // Whether the bytes that arrived are not the blob yet, or are to be checked: Finish. Bytes of a
  // replica that was right there once need no check.
  bool MustFinish(int lane) const {
    return !direct_ || (source_.MustCheck(At(lane).id) && !IsConfirmed(At(lane)));
  }
  // Makes the blob out of the bytes that arrived, or checks it. Throws what ExpertSource::Pack and
  // Check throw, an Error as ExpertError.
  void Finish(int lane);
  std::exception_ptr error(int lane) const { return At(lane).error; }

 private:
  struct Lane {
    ExpertId id;
    std::span<std::byte> slot;
    AlignedBuffer staging;
    ReadPlan plan;
    std::vector<std::span<const std::byte>> pieces;
    std::exception_ptr error;
    std::vector<uint64_t> from;  // [packets] ReadCompletion::from; of a direct source with replicas
  };
  // Of the eighths of a packet (StripePieceBytes): bits of the replicas that were found right
  // there.
  using RightReplicas = std::array<uint16_t, kStripePieces>;

  Lane& At(int lane) { return lanes_[static_cast<size_t>(lane)]; }
  const Lane& At(int lane) const { return lanes_[static_cast<size_t>(lane)]; }
  std::span<std::byte> Target(Lane& lane);
  bool IsConfirmed(const Lane& lane) const;
  void Confirm(const Lane& lane);

  const ExpertSource& source_;
  const bool direct_;
  const bool aligned_;
  const uint32_t packet_bytes_;
  const ExpertGrid grid_;
  std::vector<Lane> lanes_;
  // [experts, packets] of a direct source with replicas. A row belongs to whom the expert's lane
  // belongs to.
  std::vector<RightReplicas> right_;
  size_t packets_of_expert_ = 0;
};

}  // namespace moesaic
