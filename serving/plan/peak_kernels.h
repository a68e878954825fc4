// Loops that do nothing but multiply and add in registers: the compute peak that a kernel's rate is
// compared with. Internal to serving/plan; one source per instruction set, with its own flags.
#pragma once

#include <cstdint>

namespace moesaic {

// Each runs its loop `iterations` times and returns a value that depends on the results, so that
// they are computed. Multiply-adds per iteration in the constant beside it.
float PeakBaselineF32(int64_t iterations);
float PeakAvx2F32(int64_t iterations);
float PeakAvx512F32(int64_t iterations);
float PeakAvx512Bf16(int64_t iterations);
float PeakAvx512VnniInt8(int64_t iterations);
float PeakAmxBf16(int64_t iterations);
float PeakAmxInt8(int64_t iterations);

// Twelve independent chains: a fused multiply-add takes 4 cycles and two start per cycle.
constexpr int kPeakChains = 12;
constexpr int64_t kBaselineF32MultiplyAdds = kPeakChains * 4;
constexpr int64_t kAvx2F32MultiplyAdds = kPeakChains * 8;
constexpr int64_t kAvx512F32MultiplyAdds = kPeakChains * 16;
constexpr int64_t kAvx512Bf16MultiplyAdds = kPeakChains * 32;
constexpr int64_t kAvx512VnniMultiplyAdds = kPeakChains * 64;
// Four tiles of 16 x 16 sums, with 32 products of bf16 or 64 of bytes for each.
constexpr int64_t kAmxBf16MultiplyAdds = int64_t{4} * 16 * 16 * 32;
constexpr int64_t kAmxInt8MultiplyAdds = int64_t{4} * 16 * 16 * 64;

}  // namespace moesaic
