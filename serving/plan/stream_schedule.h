// StreamPass: how long one pass of throughput mode takes on a machine that computes in host memory
// while experts come from disk: the order in which StreamFlow reads and hands out experts, played
// on a virtual clock with measured durations.
//
// Pure functions over plain data; microseconds per layer.
//
// Per layer the computing thread does the dense part, then experts: streamed ones as they arrive,
// else residents, else it waits. The link reads one expert after another in the order of layers, as
// long as a buffer is free, around the end into the next pass. While both go on, each keeps a share
// of its rate.
#pragma once

#include <cstdint>

namespace moesaic {

struct StreamPass {
  int64_t layers = 0;          // with experts
  double dense_s = 0;          // of one such layer: attention, router, shared expert
  double lead_s = 0;           // of the pass, before these layers: layers without experts
  double other_s = 0;          // of the pass, behind them: the head
  double expert_s = 0;         // one expert
  double resident_active = 0;  // residents of a layer that are used
  double streamed_active = 0;  // others of a layer that are used
  double load_s = 0;           // one expert, from disk into its slot
  int64_t buffers = 0;
  int64_t group = 1;                   // residents that are handed out together
  int64_t streamed_group = 1;          // others
  double contended_link_share = 1;     // of its rate while computing
  double contended_compute_share = 1;  // of its rate while the link is busy
  // Residents are not there yet: each layer reads those that it uses, too.
  bool cold = false;
};

struct StreamPassTimes {
  double seconds = 0;
  double dense_s = 0;    // as long as it takes beside the link
  double experts_s = 0;  // likewise
  double other_s = 0;    // likewise
  double stall_s = 0;
  double link_s = 0;        // busy, beside computing
  double loads = 0;         // experts read
  double hidden_in_s = 0;   // attention outputs to a device, from when they are there
  double hidden_out_s = 0;  // queries, keys and values from it
  double compute_alone_s = 0;
  double link_alone_s = 0;

  // Nothing overlaps with what is shorter; everything overlaps.
  double roofline_s() const {
    return compute_alone_s > link_alone_s ? compute_alone_s : link_alone_s;
  }
};

// The steady state: a pass that follows others like it. Cold: the first one, with empty buffers.
// Always roofline <= seconds <= (compute alone + link alone), each at its contended rate.
StreamPassTimes SimulateStreamPass(const StreamPass& pass);

// Of a fractional number per layer, what layer number n has, so that the sum over layers is right.
int64_t Rounded(double per_layer, int64_t n);

// Residents that StreamFlow hands out together at most, and others.
int64_t ResidentGroup(uint64_t slot_bytes, int64_t buffers, int64_t num_experts);
int64_t StreamedGroup(uint64_t slot_bytes, int64_t buffers);

}  // namespace moesaic
