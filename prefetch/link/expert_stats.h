// ExpertStats: what a layer cost in experts. Plain data.
#pragma once

#include <cstdint>

namespace moesaic {

// Of one layer or, summed, one step. Counts are of distinct experts per layer.
struct ExpertStats {
  uint64_t hits = 0;       // resident when the layer began
  uint64_t late_hits = 0;  // in flight when the layer began
  uint64_t misses = 0;     // neither
  uint64_t on_host = 0;    // of the last two: computed on the host
  uint64_t evictions = 0;
  // From the slow tier, in expert bytes, preloading left out. Counted when an expert has arrived or
  // was cancelled, so that a load that outlives its layer counts for the next one.
  uint64_t bytes_read = 0;
  uint64_t blocked_us = 0;    // the consumer waited for experts
  uint64_t host_us = 0;       // computing experts on the host in place
  uint64_t failed_reads = 0;  // of packets; each is tried again some times
  uint64_t given_up = 0;      // experts that could not be read, retries included
  // Prefetches that were started. Most are used, or leave unused, in a later layer; those that were
  // cancelled are neither.
  uint64_t prefetched = 0;
  uint64_t prefetched_used = 0;
  uint64_t prefetched_unused = 0;
  // Loads that were started for a later layer that will want them for certain.
  uint64_t fetched_early = 0;
  uint64_t deferred = 0;  // computed a layer later, because they were missing (--defer-experts)

  ExpertStats& operator+=(const ExpertStats& other) {
    hits += other.hits;
    late_hits += other.late_hits;
    misses += other.misses;
    on_host += other.on_host;
    evictions += other.evictions;
    bytes_read += other.bytes_read;
    blocked_us += other.blocked_us;
    host_us += other.host_us;
    failed_reads += other.failed_reads;
    given_up += other.given_up;
    prefetched += other.prefetched;
    prefetched_used += other.prefetched_used;
    prefetched_unused += other.prefetched_unused;
    fetched_early += other.fetched_early;
    deferred += other.deferred;
    return *this;
  }
};

}  // namespace moesaic
