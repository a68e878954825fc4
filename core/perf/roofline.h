// The roofline of a memory level: how long a task takes whose operands lie in it. Pure functions;
// equation numbers are those of the papers.
#pragma once

namespace moesaic {

struct MemoryLevel {
  double flop_per_s = 0;   // P, of the processor at this level
  double bytes_per_s = 0;  // B, of its memory
};

// MoE-Lightning Eq. 14.
double TaskSeconds(const MemoryLevel& level, double bytes, double flop);

// Tokens of one expert from which on its products hide its copy: flop/s x bytes per weight /
// (2 link) (MoE-Gen Fig. 3). A whole layer needs experts / top_k times as many in the batch
// (MoE-Lens Eq. 2).
double TokensThatHideExpert(double flop_per_s, double link_bytes_per_s, double bytes_per_weight);

}  // namespace moesaic
