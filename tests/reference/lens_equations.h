// Equations of MoE-Lens and MoE-Gen that the planner does not compute with, as the papers have
// them: what its own are compared with. Equation numbers are MoE-Lens'.
#pragma once

namespace moesaic {

// Eq. 3 as it is printed; see ParallelismMemoryEfficiency (serving/plan/lens_model.h).
inline double PrintedParallelismMemoryEfficiency(double prompt, double generated) {
  return 2 * (prompt + generated) / ((2 * prompt + generated) * generated);
}

// Eq. 5: bytes per second of CPU memory that attention on all of the cache takes while the weights
// go over the link once: B_KV = KV / W x B_IO. With the copy's own traffic: B_KV + B_IO.
inline double LensKvBytesPerS(double kv_bytes, double weight_bytes, double link_bytes_per_s) {
  return kv_bytes / weight_bytes * link_bytes_per_s;
}

// Eq. 6: operations per second of that attention; 2 for reading bf16 as f32, 0.5 operations per
// byte of f32.
inline double LensCpuFlopPerS(double gqa_group, double kv_bytes_per_s) {
  constexpr double kFlopPerF32Byte = 0.5;
  return 2 * gqa_group * kFlopPerF32Byte * kv_bytes_per_s;
}

// Eq. 7: capacity that sharing in time gives, as a multiple.
inline double EffectiveCapacityFactor(double prompt, double generated) {
  return (prompt + generated) / (prompt + generated / 2);
}

// Hours of a data set whose prefill and decode run one after the other (MoE-Gen, Table 4 from its
// Tables 6 and 7).
inline double SequentialHours(double requests, double prompt, double generated,
                              double prefill_tokens_per_s, double decode_tokens_per_s) {
  constexpr double kSecondsPerHour = 3600;
  return requests * (prompt / prefill_tokens_per_s + generated / decode_tokens_per_s) /
         kSecondsPerHour;
}

}  // namespace moesaic
