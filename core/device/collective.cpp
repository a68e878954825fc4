#include "core/device/collective.h"

#include <vector>

#include "core/base/check.h"
#include "core/device/device.h"

namespace moesaic {
namespace {

class PeerCollective : public Collective {
 public:
  explicit PeerCollective(std::span<Stream* const> streams)
      : streams_(streams.begin(), streams.end()) {
    for (Stream* const stream : streams_) {
      for (Stream* const peer : streams_) CHECK(stream->device().CanReach(peer->device()));
      ready_.push_back(stream->device().CreateEvent());
      taken_.push_back(stream->device().CreateEvent());
    }
  }

  const char* name() const override { return "peer copies"; }

  void Gather(std::span<const DeviceSpan> pieces, std::span<const DeviceSpan> into) override {
    const size_t devices = streams_.size();
    CHECK_EQ(pieces.size(), devices);
    CHECK_EQ(into.size(), devices);
    for (size_t d = 0; d < devices; ++d) {
      if (pieces[d].bytes() > 0) streams_[d]->Record(*ready_[d]);
    }
    for (size_t d = 0; d < devices; ++d) {
      if (into[d].bytes() > 0) Take(d, pieces, into[d]);
    }
    // A piece may be overwritten when all have it.
    for (size_t from = 0; from < devices; ++from) {
      if (pieces[from].bytes() == 0) continue;
      for (size_t d = 0; d < devices; ++d) {
        if (d != from && into[d].bytes() > 0) streams_[from]->Wait(*taken_[d]);
      }
    }
  }

 private:
  void Take(size_t d, std::span<const DeviceSpan> pieces, const DeviceSpan& into) {
    uint64_t offset = 0;
    for (size_t from = 0; from < pieces.size(); ++from) {
      const DeviceSpan& piece = pieces[from];
      if (piece.bytes() == 0) continue;
      const DeviceSpan place = into.Subspan(offset, piece.bytes());
      offset += piece.bytes();
      if (from != d) streams_[d]->Wait(*ready_[from]);
      if (place.data() != piece.data()) streams_[d]->CopyBetween(place, piece);
    }
    CHECK_EQ(offset, into.bytes());
    streams_[d]->Record(*taken_[d]);
  }

  const std::vector<Stream*> streams_;
  std::vector<std::unique_ptr<Event>> ready_;  // [devices] its piece
  std::vector<std::unique_ptr<Event>> taken_;  // [devices] it has all pieces
};

}  // namespace

std::unique_ptr<Collective> MakePeerCollective(std::span<Stream* const> streams) {
  return std::make_unique<PeerCollective>(streams);
}

}  // namespace moesaic
