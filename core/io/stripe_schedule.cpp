#include "core/io/stripe_schedule.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/check.h"

namespace moesaic {
namespace {

// A smaller part costs a disk about as much as this one does (tests/bench/disk_read_bench).
constexpr uint32_t kLeastPartBytes = 64 << 10;
// A read is split when its parts end sooner by an eighth of the time from now to the end of the
// whole: with two equal links, while neither has more than three such reads before this one.
constexpr double kSplitGain = 7.0 / 8;

// A rate is taken from so many bytes, or from so much time in which the link was busy.
constexpr uint64_t kSampleBytes = 8 << 20;
constexpr int64_t kSampleNs = 20'000'000;
constexpr int kSampleReads = 4;
constexpr double kNewShare = 0.25;  // of the moving average
// A link that was measured so long before the others is taken to be as fast as they are, and
// measured again: whoever was slow once would otherwise get nothing to show that it is no longer.
constexpr int64_t kStaleNs = 5'000'000'000;

constexpr int kFailuresToSetAside = 3;
constexpr int64_t kFirstPauseNs = 1'000'000'000;
constexpr int64_t kLongestPauseNs = 60'000'000'000;

constexpr uint32_t Bit(int link) { return uint32_t{1} << link; }

}  // namespace

StripeSchedule::StripeSchedule(int links) : links_(static_cast<size_t>(links)) {
  CHECK_GE(links, 1);
  CHECK_LE(links, kMostStripeLinks);
  usable_.reserve(links_.size());
}

double StripeSchedule::RateOf(const Link& link) const {
  return link.bytes_per_s > 0 ? link.bytes_per_s : mean_rate_;
}

double StripeSchedule::FreeAt(int link) const {
  return static_cast<double>(At(link).outstanding_bytes) / RateOf(At(link));
}

double StripeSchedule::EndOf(int link, uint32_t bytes) const {
  return FreeAt(link) + bytes / RateOf(At(link));
}

// One that is set aside carries one read at a time when its pause is over.
bool StripeSchedule::MayCarry(const Link& link, int64_t now_ns) const {
  return link.pause_ns == 0 || (now_ns >= link.try_again_ns && link.outstanding_reads == 0);
}

// The links that may carry a read, the one that is free first in front.
void StripeSchedule::FindUsable(uint32_t avoid, int64_t now_ns) {
  usable_.clear();
  for (int l = 0; l < links(); ++l) {
    if ((avoid & Bit(l)) == 0 && MayCarry(At(l), now_ns)) usable_.push_back(l);
  }
  for (int l = 0; l < links() && usable_.empty(); ++l) {
    if ((avoid & Bit(l)) == 0) usable_.push_back(l);  // set aside, and the only hope
  }
  for (int l = 0; l < links() && usable_.empty(); ++l) usable_.push_back(l);
  std::sort(usable_.begin(), usable_.end(),
            [&](int a, int b) { return std::pair(FreeAt(a), a) < std::pair(FreeAt(b), b); });
}

void StripeSchedule::Plan(uint32_t bytes, uint32_t avoid, int64_t now_ns, std::vector<Part>& out) {
  FindUsable(avoid, now_ns);
  // What a link is tried with again is a whole read: its others do not wait for it.
  const auto tried_again =
      std::find_if(usable_.begin(), usable_.end(), [&](int link) { return At(link).pause_ns > 0; });
  const bool whole = tried_again != usable_.end();
  const auto ends_first = [&](int a, int b) { return EndOf(a, bytes) < EndOf(b, bytes); };
  const int best =
      whole ? *tried_again : *std::min_element(usable_.begin(), usable_.end(), ends_first);
  const size_t first = out.size();
  if (whole || !Split(bytes, EndOf(best, bytes), out)) out.push_back({best, 0, bytes});
  for (size_t i = first; i < out.size(); ++i) Start(out[i].link, out[i].bytes, now_ns);
}

// Parts that end together, over as many links as that takes: link k has a part when it is free
// before those in front of it would end by themselves.
bool StripeSchedule::Split(uint32_t bytes, double whole_end, std::vector<Part>& out) {
  if (usable_.size() < 2 || bytes < 2 * kLeastPartBytes) return false;
  double rate = 0;
  double to_do = bytes;
  double end = 0;
  size_t sharing = 0;
  for (const int link : usable_) {
    if (sharing > 0 && FreeAt(link) >= end) break;
    rate += RateOf(At(link));
    to_do += static_cast<double>(At(link).outstanding_bytes);
    end = to_do / rate;
    ++sharing;
  }
  if (sharing < 2 || end > kSplitGain * whole_end) return false;
  const size_t first = out.size();
  const double piece_bytes = StripePieceBytes(bytes);
  double share = 0;     // of the links so far, in bytes
  uint32_t offset = 0;  // that the parts so far reach
  for (size_t i = 0; i < sharing && offset < bytes; ++i) {
    const int link = usable_[i];
    share += (end - FreeAt(link)) * RateOf(At(link));
    const double reach = std::round(share / piece_bytes) * piece_bytes;
    const uint32_t part_end =
        i + 1 == sharing || reach >= bytes ? bytes : static_cast<uint32_t>(reach);
    // What is too little for one link goes to the next.
    if (part_end < offset + kLeastPartBytes) continue;
    out.push_back({link, offset, part_end - offset});
    offset = part_end;
  }
  if (out.size() - first < 2) {
    out.resize(first);
    return false;
  }
  out.back().bytes += bytes - offset;
  return true;
}

int StripeSchedule::TakeOver(uint32_t bytes, uint32_t tried, uint32_t avoid, int64_t now_ns) {
  int best = -1;
  const auto rank = [&](int link) {
    const int last = (avoid & Bit(link)) != 0 ? 2 : 0;
    return last + (At(link).pause_ns > 0 ? 1 : 0);
  };
  for (int l = 0; l < links(); ++l) {
    if ((tried & Bit(l)) != 0) continue;
    if (best < 0 || rank(l) < rank(best) ||
        (rank(l) == rank(best) && EndOf(l, bytes) < EndOf(best, bytes))) {
      best = l;
    }
  }
  if (best >= 0) Start(best, bytes, now_ns);
  return best;
}

void StripeSchedule::Start(int index, uint32_t bytes, int64_t now_ns) {
  Link& link = At(index);
  if (link.outstanding_reads++ == 0) link.busy_since_ns = now_ns;
  link.outstanding_bytes += bytes;
}

StripeSchedule::Change StripeSchedule::Done(int index, uint32_t bytes, bool ok, int64_t now_ns) {
  Link& link = At(index);
  CHECK_GE(link.outstanding_bytes, bytes);
  CHECK_GT(link.outstanding_reads, 0);
  link.outstanding_bytes -= bytes;
  --link.outstanding_reads;
  const int64_t spent_ns = now_ns - link.busy_since_ns;
  link.busy_ns += spent_ns;
  link.busy_since_ns = now_ns;
  if (ok) {
    link.sample_busy_ns += spent_ns;
    Measure(link, bytes, now_ns);
    link.failures = 0;
    if (link.pause_ns == 0) return Change::kNone;
    link.pause_ns = 0;
    return Change::kBack;
  }
  ++link.failures;
  if (link.pause_ns > 0) {
    // Reads that were under way when it was set aside say nothing new.
    if (now_ns < link.try_again_ns) return Change::kNone;
    link.pause_ns = std::min(2 * link.pause_ns, kLongestPauseNs);
    link.try_again_ns = now_ns + link.pause_ns;
    return Change::kNone;
  }
  if (link.failures < kFailuresToSetAside) return Change::kNone;
  link.pause_ns = kFirstPauseNs;
  link.try_again_ns = now_ns + link.pause_ns;
  return Change::kSetAside;
}

void StripeSchedule::Measure(Link& link, uint32_t bytes, int64_t now_ns) {
  link.sample_bytes += bytes;
  ++link.sample_reads;
  const bool enough = link.sample_bytes >= kSampleBytes || link.sample_busy_ns >= kSampleNs;
  if (!enough || link.sample_reads < kSampleReads || link.sample_busy_ns <= 0) return;
  const double rate =
      static_cast<double>(link.sample_bytes) / (static_cast<double>(link.sample_busy_ns) * 1e-9);
  link.bytes_per_s =
      link.bytes_per_s > 0 ? link.bytes_per_s + kNewShare * (rate - link.bytes_per_s) : rate;
  link.measured_ns = now_ns;
  link.sample_bytes = 0;
  link.sample_busy_ns = 0;
  link.sample_reads = 0;
  double sum = 0;
  int known = 0;
  for (Link& other : links_) {
    if (other.bytes_per_s > 0 && now_ns - other.measured_ns > kStaleNs) other.bytes_per_s = 0;
    if (other.bytes_per_s <= 0) continue;
    sum += other.bytes_per_s;
    ++known;
  }
  mean_rate_ = sum / known;
}

int64_t StripeSchedule::busy_ns(int index, int64_t now_ns) const {
  const Link& link = At(index);
  return link.busy_ns + (link.outstanding_reads > 0 ? now_ns - link.busy_since_ns : 0);
}

}  // namespace moesaic
