// What the kernel benches share: timing in rounds, and the peaks of a core.
#pragma once

#include <immintrin.h>
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace moesaic {

// CPU time of this thread, with which a busy neighbour does not count, or the time of day.
inline double NowSeconds(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

inline volatile float sink;

struct Candidate {
  std::string name;
  std::function<void()> run;
  std::vector<double> seconds = {};  // per call, one entry a round

  double Median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
  // Half the distance between the quartiles, relative to the median.
  double Spread() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return (sorted[sorted.size() * 3 / 4] - sorted[sorted.size() / 4]) / 2 / Median();
  }
};

// Null where there is none.
inline const Candidate* CandidateNamed(const std::vector<Candidate>& candidates, const char* name) {
  for (const Candidate& c : candidates) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

inline void Measure(std::vector<Candidate>& candidates, int rounds, double target_s = 0.02,
                    clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  std::vector<int64_t> calls;
  for (Candidate& c : candidates) {
    c.run();
    const double start = NowSeconds(clock);
    c.run();
    calls.push_back(
        std::max<int64_t>(1, static_cast<int64_t>(target_s / (NowSeconds(clock) - start))));
  }
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      const double start = NowSeconds(clock);
      for (int64_t call = 0; call < calls[i]; ++call) candidates[i].run();
      candidates[i].seconds.push_back((NowSeconds(clock) - start) / static_cast<double>(calls[i]));
    }
  }
}

// Peaks: independent chains on registers; the asm statements keep the compiler from folding the
// loops.
constexpr int64_t kPeakIterations = 200000;
constexpr int kPeakChains = 16;

__attribute__((target("avx512f"))) inline void FmaPeak() {
  __m512 sums[kPeakChains];
#pragma GCC unroll 16
  for (auto& s : sums) s = _mm512_set1_ps(1.0f);
  const __m512 a = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < kPeakIterations; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kPeakChains; ++c) {
      sums[c] = _mm512_fmadd_ps(sums[c], a, a);
      __asm__ volatile("" : "+v"(sums[c]));
    }
  }
  float total = 0.0f;
#pragma GCC unroll 16
  for (const auto& s : sums) total += _mm512_cvtss_f32(s);
  sink = total;
}
constexpr double kFmaPeakFlops = 2.0 * 16 * kPeakChains * kPeakIterations;

__attribute__((target("avx2,fma"))) inline void FmaPeak256() {
  __m256 sums[kPeakChains - 4];
#pragma GCC unroll 16
  for (auto& s : sums) s = _mm256_set1_ps(1.0f);
  const __m256 a = _mm256_set1_ps(0.999f);
  for (int64_t i = 0; i < kPeakIterations; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kPeakChains - 4; ++c) {
      sums[c] = _mm256_fmadd_ps(sums[c], a, a);
      __asm__ volatile("" : "+x"(sums[c]));
    }
  }
  float total = 0.0f;
#pragma GCC unroll 16
  for (const auto& s : sums) total += _mm256_cvtss_f32(s);
  sink = total;
}
constexpr double kFmaPeak256Flops = 2.0 * 8 * (kPeakChains - 4) * kPeakIterations;

// One thread reading `bytes` from `streams` places at once, as the kernels do.
__attribute__((target("avx512f"))) inline void ReadPeak(const std::byte* data, int64_t bytes) {
  constexpr int kStreams = 8;
  const int64_t share = bytes / kStreams / 4096 * 4096;
  __m512i sums[kStreams];
#pragma GCC unroll 16
  for (auto& s : sums) s = _mm512_setzero_si512();
  for (int64_t i = 0; i < share; i += 64) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) {
      _mm_prefetch(reinterpret_cast<const char*>(data + s * share + i + 1024), _MM_HINT_T0);
      sums[s] = _mm512_xor_si512(sums[s], _mm512_load_si512(data + s * share + i));
    }
  }
  __m512i total = sums[0];
#pragma GCC unroll 16
  for (const auto& s : sums) total = _mm512_xor_si512(total, s);
  int lanes[16];
  _mm512_storeu_si512(lanes, total);
  sink = static_cast<float>(lanes[0] ^ lanes[7] ^ lanes[15]);
}
__attribute__((target("avx512f"))) inline void ReadPeakSequential(const std::byte* data,
                                                                  int64_t bytes) {
  __m512i sums[4];
#pragma GCC unroll 16
  for (auto& s : sums) s = _mm512_setzero_si512();
  for (int64_t i = 0; i + 256 <= bytes; i += 256) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      sums[s] = _mm512_xor_si512(sums[s], _mm512_load_si512(data + i + s * 64));
    }
  }
  __m512i total = sums[0];
#pragma GCC unroll 16
  for (const auto& s : sums) total = _mm512_xor_si512(total, s);
  int lanes[16];
  _mm512_storeu_si512(lanes, total);
  sink = static_cast<float>(lanes[0] ^ lanes[7] ^ lanes[15]);
}

// One thread reading `count` pieces of `bytes` each in their order.
__attribute__((target("avx512f"))) inline void ReadPieces(const std::byte* const* pieces,
                                                          int64_t count, int64_t bytes) {
  __m512i sums[4];
#pragma GCC unroll 16
  for (auto& s : sums) s = _mm512_setzero_si512();
  for (int64_t piece = 0; piece < count; ++piece) {
    for (int64_t i = 0; i + 256 <= bytes; i += 256) {
#pragma GCC unroll 4
      for (int s = 0; s < 4; ++s) {
        sums[s] = _mm512_xor_si512(sums[s], _mm512_load_si512(pieces[piece] + i + s * 64));
      }
    }
  }
  __m512i total = sums[0];
#pragma GCC unroll 16
  for (const auto& s : sums) total = _mm512_xor_si512(total, s);
  int lanes[16];
  _mm512_storeu_si512(lanes, total);
  sink = static_cast<float>(lanes[0] ^ lanes[7] ^ lanes[15]);
}

inline std::vector<float> Normals(int64_t n) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = normal(random);
  return values;
}

}  // namespace moesaic
