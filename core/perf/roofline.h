// The hierarchical roofline model: how fast a computation can run whose operands lie one memory
// level further away. Level i is the fast one (device), level j the slow one (host); a link joins
// them. Formulas of MoE-Lightning, section 3 and 4.2; equation numbers are the paper's.
//
// Pure functions. Intensities are operations per byte of the level that is named.
#pragma once

#include <cstdint>

namespace moesaic {

struct MemoryLevel {
  double flop_per_s = 0;   // P, of the processor at this level
  double bytes_per_s = 0;  // B, of its memory
};

// Eq. 3: the intensity from which on computing is the limit.
double RidgeIntensity(const MemoryLevel& level);
// Eq. 8: operands lie in the level's own memory.
double AttainableFlopPerS(const MemoryLevel& level, double intensity);
// Eq. 7: operands come over the link; `slow_intensity` counts what the link carries.
double AttainableOverLink(const MemoryLevel& fast, double fast_intensity, double link_bytes_per_s,
                          double slow_intensity);
// Eq. 9, P1: below this intensity (at the slow level) it is best computed where the data is.
double ComputeInPlaceBelow(const MemoryLevel& slow, double slow_intensity, double link_bytes_per_s);
// Eq. 10, P2: below this intensity (at the slow level) the link is the limit.
double LinkBoundBelow(const MemoryLevel& fast, double fast_intensity, double link_bytes_per_s);
// Eq. 11: the intensity at the slow level that balances the link with the fast level's memory.
double BalanceIntensity(const MemoryLevel& fast, double fast_intensity, double link_bytes_per_s);
// Eq. 14.
double TaskSeconds(const MemoryLevel& level, double bytes, double flop);

// Micro-batches from which on a layer's expert compute hides its weight copies, when every
// micro-batch reads the layer's experts once from device memory: (1 - r_w) B_device / B_link,
// whatever the micro-batch's size.
double BalanceMicroBatches(double resident_share, double device_bytes_per_s,
                           double link_bytes_per_s);

// Tokens of one expert from which on its products hide its copy: flop/s x bytes per weight /
// (2 link) (MoE-Gen Fig. 3). A whole layer needs experts / top_k times as many in the batch
// (MoE-Lens Eq. 2).
double TokensThatHideExpert(double flop_per_s, double link_bytes_per_s, double bytes_per_weight);

// MoE-Lens Eq. 1, with the factor 3 that its printed middle form leaves out: operations per byte of
// one layer's weights for n tokens; m = intermediate / hidden, s = heads / KV heads, 16-bit
// weights.
double LayerIntensity(double tokens, double m, double s, int64_t num_experts, int64_t top_k);

}  // namespace moesaic
