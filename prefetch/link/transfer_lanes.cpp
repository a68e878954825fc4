#include "prefetch/link/transfer_lanes.h"

#include <algorithm>
#include <limits>
#include <system_error>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

// One lane is packed while another is read. Beyond those, as many as the packets in flight span:
// one large expert alone keeps the link busy, many small ones are needed to. Several small ones
// arrive together and wait for their packing together, so that they need lanes for the next ones to
// be read meanwhile (measured with 73 KB: 16 more lanes, 2 MB, are worth a tenth of the bandwidth).
int LaneCount(uint64_t expert_bytes, int64_t slots, int depth, uint32_t packet_bytes) {
  const uint64_t packets = std::max<uint64_t>((expert_bytes + packet_bytes - 1) / packet_bytes, 1);
  const auto in_flight = static_cast<uint64_t>(depth);
  const uint64_t spanned = (in_flight + packets - 1) / packets;
  const uint64_t extra = packets >= 4 * in_flight ? 0 : spanned == 1 ? 1 : 2 * spanned;
  return static_cast<int>(
      std::clamp<int64_t>(static_cast<int64_t>(2 + extra), 1, std::max<int64_t>(slots, 1)));
}

}  // namespace

LaneSizes PlanLanes(const ExpertSource& source, const ExpertGrid& grid, int64_t slots, int depth,
                    uint32_t packet_bytes) {
  LaneSizes sizes;
  ReadPlan plan;
  uint64_t buffer_bytes = 0;
  for (int layer = 0; layer < grid.num_layers(); ++layer) {
    if (!source.HasLayer(layer)) continue;
    for (int index = 0; index < grid.num_experts(); ++index) {
      const ExpertId id = grid.Id(layer * grid.num_experts() + index);
      const std::span<const Extent> extents = source.Extents(id);
      sizes.max_extents = std::max(sizes.max_extents, extents.size());
      uint64_t packets = 0;
      for (const Extent& extent : extents) {
        CheckedAdd(CheckedAdd(extent.offset, extent.bytes, "extent of an expert"),
                   2 * ReadPlan::kPageBytes, "extent of an expert");
        packets += extent.bytes / packet_bytes + 2;
      }
      if (packets >= static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) {
        Fail(ErrorKind::kUnsupported,
             "expert {} of layer {} would be read in {} packets of {}: use larger packets", index,
             layer, packets, FormatBytes(packet_bytes));
      }
      for (const bool aligned : {false, true}) {
        plan.Build(extents, aligned, packet_bytes);
        sizes.max_packets = std::max(sizes.max_packets, plan.packets());
        buffer_bytes = std::max(buffer_bytes, plan.buffer_bytes());
      }
      if (source.direct()) {
        CHECK_EQ(extents.size(), size_t{1});
        CHECK_EQ(extents[0].bytes, source.layout().slot_bytes);
        CHECK_EQ(extents[0].offset % ReadPlan::kPageBytes, 0u);
      }
    }
  }
  sizes.lanes = LaneCount(buffer_bytes, slots, depth, packet_bytes);
  sizes.lane_bytes = source.direct() ? 0 : buffer_bytes;
  return sizes;
}

std::vector<ExpertCopy> PlanCopies(const ExpertSource& source, const ExpertGrid& grid, bool aligned,
                                   uint32_t packet_bytes) {
  std::vector<ExpertCopy> copies(static_cast<size_t>(grid.total()));
  ReadPlan plan;
  for (ExpertIndex expert = 0; expert < grid.total(); ++expert) {
    const ExpertId id = grid.Id(expert);
    if (!source.HasLayer(id.layer)) continue;
    const std::span<const Extent> extents = source.Extents(id);
    plan.Build(extents, aligned, packet_bytes);
    ExpertCopy& copy = copies[static_cast<size_t>(expert)];
    copy.packets = plan.packets();
    for (const Extent& extent : extents) copy.bytes += extent.bytes;
  }
  return copies;
}

TransferLanes::TransferLanes(const ExpertSource& source, const ExpertGrid& grid,
                             const LaneSizes& sizes, bool aligned, uint32_t packet_bytes)
    : source_(source),
      direct_(source.direct()),
      aligned_(aligned),
      packet_bytes_(packet_bytes),
      grid_(grid),
      lanes_(static_cast<size_t>(sizes.lanes)) {
  if (direct_ && source.links() > 1) {
    packets_of_expert_ = static_cast<size_t>(sizes.max_packets);
    right_.resize(static_cast<size_t>(grid.total()) * packets_of_expert_);
  }
  for (Lane& lane : lanes_) {
    lane.from.resize(packets_of_expert_);
    if (sizes.lane_bytes > 0) lane.staging = AlignedBuffer(sizes.lane_bytes);
    lane.plan.Reserve(sizes.max_extents);
    lane.pieces.reserve(sizes.max_extents);
  }
}

std::span<std::byte> TransferLanes::Target(Lane& lane) {
  return direct_ ? lane.slot : lane.staging.span();
}

void TransferLanes::Begin(int lane_index, ExpertId id, std::span<std::byte> slot) {
  Lane& lane = At(lane_index);
  lane.id = id;
  lane.slot = slot;
  lane.error = nullptr;
  lane.plan.Build(source_.Extents(id), aligned_, packet_bytes_);
  CHECK_LE(lane.plan.buffer_bytes(), Target(lane).size());
}

ReadRequest TransferLanes::Request(int lane_index, int packet_index, uint64_t tag) {
  Lane& lane = At(lane_index);
  const ReadPlan::Packet packet = lane.plan.PacketAt(packet_index);
  return {.file = packet.file,
          .offset = packet.offset,
          .bytes = packet.bytes,
          .destination = Target(lane).data() + packet.buffer_offset,
          .tag = tag,
          .avoid = source_.DamagedReplicas(lane.id)};
}

PacketResult TransferLanes::Check(int lane_index, int packet_index,
                                  const ReadCompletion& completion) {
  Lane& lane = At(lane_index);
  const ReadPlan::Packet packet = lane.plan.PacketAt(packet_index);
  const int64_t result = completion.result;
  if (packets_of_expert_ > 0) lane.from[static_cast<size_t>(packet_index)] = completion.from;
  if (result >= static_cast<int64_t>(packet.needed_bytes)) return PacketResult::kOk;
  if (result < 0) {
    const std::error_code code(static_cast<int>(-result), std::generic_category());
    lane.error = std::make_exception_ptr(ExpertError(
        ErrorKind::kIo,
        source_.FailedRead(lane.id, {packet.file, packet.offset, packet.bytes}, code.message()),
        lane.id));
    return PacketResult::kError;
  }
  const std::string& file = source_.files()[static_cast<size_t>(packet.file)].string();
  lane.error = std::make_exception_ptr(ExpertError(
      ErrorKind::kCorrupt,
      fmt::format(
          "{}: the file ends at byte {}, but expert {} of layer {} reaches at least to byte "
          "{}: it was cut short after it was opened; restore it and start again",
          file, packet.offset + static_cast<uint64_t>(result), lane.id.index, lane.id.layer,
          packet.offset + packet.needed_bytes),
      lane.id));
  return PacketResult::kHopeless;
}

// Whether each eighth of each packet came from a replica that was right there before.
bool TransferLanes::IsConfirmed(const Lane& lane) const {
  if (packets_of_expert_ == 0) return false;
  const RightReplicas* right =
      &right_[static_cast<size_t>(grid_.Index(lane.id)) * packets_of_expert_];
  for (int packet = 0; packet < lane.plan.packets(); ++packet, ++right) {
    const uint64_t from = lane.from[static_cast<size_t>(packet)];
    if (from == 0) return false;  // the reader does not say
    for (size_t i = 0; i < right->size(); ++i) {
      const uint64_t link = from >> (8 * i) & 0xff;  // 0: the packet is over
      if (link > 0 && ((*right)[i] >> (link - 1) & 1) == 0) return false;
    }
  }
  return true;
}

void TransferLanes::Confirm(const Lane& lane) {
  if (packets_of_expert_ == 0) return;
  RightReplicas* right = &right_[static_cast<size_t>(grid_.Index(lane.id)) * packets_of_expert_];
  for (int packet = 0; packet < lane.plan.packets(); ++packet, ++right) {
    const uint64_t from = lane.from[static_cast<size_t>(packet)];
    for (size_t i = 0; i < right->size(); ++i) {
      const uint64_t link = from >> (8 * i) & 0xff;
      if (link > 0) (*right)[i] = static_cast<uint16_t>((*right)[i] | 1u << (link - 1));
    }
  }
}

void TransferLanes::Finish(int lane_index) {
  Lane& lane = At(lane_index);
  try {
    if (direct_) {
      if (source_.Check(lane.id, lane.slot)) Confirm(lane);
      return;
    }
    const std::span<const Extent> extents = source_.Extents(lane.id);
    lane.pieces.clear();
    for (size_t i = 0; i < extents.size(); ++i) {
      lane.pieces.emplace_back(lane.staging.data() + lane.plan.PieceOffset(i), extents[i].bytes);
    }
    source_.Pack(lane.id, lane.pieces, lane.slot);
  } catch (const Error& error) {
    throw ExpertError(error.kind(), error.what(), lane.id);
  }
}

}  // namespace moesaic
