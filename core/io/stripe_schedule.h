// StripeSchedule: which of several links (disks, or other places with the same bytes) carries a
// read, or which part of it. All are weighed on one scale: the predicted end, by the rate that each
// link was measured to have and by what is under way on it. A plain state machine: it moves no
// bytes, knows no thread and takes the time as an argument.
//
// A read goes whole to the link on which it ends first, or is split over links so that its parts
// end together, where that ends clearly sooner: links that have little to do share a read, busy
// ones take turns with whole ones, because the number of reads costs, too.
//
// A link on which several reads in a row have failed is set aside: others carry what it would, and
// after a pause, which doubles each time, one read tries it again.
//
// Thread contract: none of its own; whoever owns the links guards it. No allocation after
// construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moesaic {

// The masks of links have a bit for each.
constexpr int kMostStripeLinks = 16;

// A read is split at eighths of it (each a multiple of 4 KiB, so that the last may be shorter):
// where each came from can be kept in a few bits.
constexpr uint32_t kStripePieces = 8;
constexpr uint32_t StripePieceBytes(uint32_t bytes) {
  constexpr uint32_t kGrain = kStripePieces * 4096;
  return (bytes / kGrain + (bytes % kGrain > 0 ? 1 : 0)) * 4096;
}

class StripeSchedule {
 public:
  // A part of a read: `bytes` at `offset` from its beginning. Offsets are multiples of
  // StripePieceBytes(read).
  struct Part {
    int link = 0;
    uint32_t offset = 0;
    uint32_t bytes = 0;
  };

  explicit StripeSchedule(int links);

  // Appends the parts of a read, by ascending offset, which are under way from now on. Links in
  // `avoid` are used only when there are no others.
  void Plan(uint32_t bytes, uint32_t avoid, int64_t now_ns, std::vector<Part>& out);
  // The link that takes over what links in `tried` could not read, under way from now on; -1: there
  // is none. Links in `avoid` come last.
  int TakeOver(uint32_t bytes, uint32_t tried, uint32_t avoid, int64_t now_ns);
  // What was under way on the link has ended. Returns whether this set the link aside, or brought
  // it back.
  enum class Change : uint8_t { kNone, kSetAside, kBack };
  Change Done(int link, uint32_t bytes, bool ok, int64_t now_ns);

  int links() const { return static_cast<int>(links_.size()); }
  bool set_aside(int link) const { return At(link).pause_ns > 0; }
  // Measured, moving average; 0: not known yet.
  double bytes_per_s(int link) const { return At(link).bytes_per_s; }
  uint64_t outstanding_bytes(int link) const { return At(link).outstanding_bytes; }
  // In which something was under way.
  int64_t busy_ns(int link, int64_t now_ns) const;

 private:
  struct Link {
    uint64_t outstanding_bytes = 0;
    int outstanding_reads = 0;
    int64_t busy_since_ns = 0;  // while something is under way: since when it is not counted yet
    int64_t busy_ns = 0;
    // Of the rate that is being measured.
    int64_t sample_busy_ns = 0;
    uint64_t sample_bytes = 0;
    int sample_reads = 0;
    double bytes_per_s = 0;
    int64_t measured_ns = 0;  // when it was known last
    int failures = 0;         // in a row
    int64_t pause_ns = 0;     // above 0: it is set aside
    int64_t try_again_ns = 0;
  };

  Link& At(int link) { return links_[static_cast<size_t>(link)]; }
  const Link& At(int link) const { return links_[static_cast<size_t>(link)]; }
  double RateOf(const Link& link) const;
  double FreeAt(int link) const;  // seconds from now
  double EndOf(int link, uint32_t bytes) const;
  bool MayCarry(const Link& link, int64_t now_ns) const;
  void FindUsable(uint32_t avoid, int64_t now_ns);
  bool Split(uint32_t bytes, double whole_end, std::vector<Part>& out);
  void Start(int link, uint32_t bytes, int64_t now_ns);
  void Measure(Link& link, uint32_t bytes, int64_t now_ns);

  std::vector<Link> links_;
  double mean_rate_ = 1;     // of the links whose rate is known, for those whose is not
  std::vector<int> usable_;  // scratch: links for the read at hand
};

}  // namespace moesaic
