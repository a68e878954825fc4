// Speed of linear attention's kernels, one thread in CPU time: a decode step beside the rate of
// reading and writing the same memory, a prompt's chunk beside the peak of multiply-adds. Prints
// Markdown tables.
//
//   delta_net_bench [rounds] [avx2|avx512]
//
// Heads are those of Qwen3.5-35B-A3B: states [128, 128] in f32. Every number is the median over
// rounds; a round runs all candidates one after the other. Decode cycles through more state than
// the last-level cache holds. The hash is of the outputs of one call.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/hash.h"
#include "kernels/cpu/delta_net.h"
#include "kernels/cpu/kernels.h"
#include "tests/bench/kernel_bench_util.h"

namespace moesaic {
namespace {

constexpr int64_t kDim = 128;
constexpr int64_t kHeadFloats = DeltaStateFloats(kDim, kDim);
constexpr int64_t kColdHeads = (int64_t{1024} << 20) / (kHeadFloats * 4);
constexpr int64_t kCallHeads = 512;  // 32 MiB of state
constexpr int64_t kChunkTokens = 512;

// Each value is read, multiplied and written back in place.
__attribute__((target("avx512f"))) void ReadAndWrite(float* data, int64_t floats) {
  const __m512 factor = _mm512_set1_ps(0.999f);
  for (int64_t i = 0; i < floats; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) {
      float* const at = data + i + s * 16;
      _mm512_store_ps(at, _mm512_mul_ps(factor, _mm512_load_ps(at)));
    }
  }
}

class Recurrence {
 public:
  Recurrence(const CpuKernels& kernels, float* states)
      : kernels_(kernels),
        states_(states),
        rows_(Normals(3 * kDim * kChunkTokens)),
        out_(static_cast<size_t>(kDim * kChunkTokens)),
        decays_(kChunkTokens, 0.97f),
        betas_(kChunkTokens, 0.5f) {
    for (float& x : rows_) x /= std::sqrt(static_cast<float>(kDim));
  }

  // One token of each of the next heads.
  void Decode() {
    for (int64_t head = 0; head < kCallHeads; ++head) Run(states_ + NextHead() * kHeadFloats, 1);
  }
  void Touch() {
    for (int64_t head = 0; head < kCallHeads; ++head) {
      ReadAndWrite(states_ + NextHead() * kHeadFloats, kHeadFloats);
    }
  }
  void Prefill() { Run(states_, kChunkTokens); }
  uint64_t OutHash() const {
    return Hash64({reinterpret_cast<const std::byte*>(out_.data()), out_.size() * sizeof(float)});
  }

 private:
  int64_t NextHead() {
    next_ = (next_ + 1) % kColdHeads;
    return next_;
  }
  void Run(float* state, int64_t tokens) {
    DeltaRuleArgs args;
    args.tokens = tokens;
    args.key_dim = args.value_dim = kDim;
    args.q = rows_.data();
    args.k = rows_.data() + kDim;
    args.v = rows_.data() + 2 * kDim;
    args.stride = 3 * kDim;
    args.decay = decays_.data();
    args.beta = betas_.data();
    args.state = state;
    args.from = tokens == 1 ? state : nullptr;  // a prompt begins
    args.out = out_.data();
    args.out_stride = kDim;
    kernels_.delta_rule(args);
  }

  const CpuKernels& kernels_;
  float* states_;
  std::vector<float> rows_;
  std::vector<float> out_;
  std::vector<float> decays_;
  std::vector<float> betas_;
  int64_t next_ = 0;
};

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const std::string isa = argc > 2 ? argv[2] : "avx512";
  if (!IsaSupported(Isa::kAvx512)) {
    std::printf("this CPU has no AVX-512, which the peaks are measured with\n");
    return 0;
  }
  const CpuKernels& kernels = KernelsFor(isa == "avx2" ? Isa::kAvx2 : Isa::kAvx512);
  AlignedBuffer memory(static_cast<size_t>(kColdHeads * kHeadFloats) * sizeof(float));
  memory.Zero();
  Recurrence recurrence(kernels, memory.as<float>());

  std::vector<Candidate> decode = {{"read and write", [&] { recurrence.Touch(); }},
                                   {"decode step", [&] { recurrence.Decode(); }}};
  Measure(decode, rounds);
  const double bytes = 2.0 * kCallHeads * kHeadFloats * sizeof(float);
  std::printf(
      "%s, heads of %lld x %lld, %d rounds\n\n| | GB/s read and written | spread | of the rate "
      "|\n|---|---|---|---|\n",
      IsaName(kernels.isa), static_cast<long long>(kDim), static_cast<long long>(kDim), rounds);
  for (const Candidate& c : decode) {
    std::printf("| %s | %.1f | %.0f%% | %.0f%% |\n", c.name.c_str(), bytes / c.Median() * 1e-9,
                100 * c.Spread(), 100 * decode[0].Median() / c.Median());
  }

  const bool narrow = kernels.isa == Isa::kAvx2;
  std::vector<Candidate> prefill = {
      {"peak of multiply-adds", [&] { narrow ? FmaPeak256() : FmaPeak(); }},
      {"chunk of 512 tokens", [&] { recurrence.Prefill(); }}};
  Measure(prefill, rounds);
  const double peak = (narrow ? kFmaPeak256Flops : kFmaPeakFlops) / prefill[0].Median();
  // Two multiply-adds for what is known, read and corrected, one product for the decay.
  const double flop = 7.0 * kChunkTokens * kDim * kDim;
  std::printf(
      "\n| | GFLOP/s | spread | of the peak | us a token and head |\n|---|---|---|---|---|\n");
  std::printf("| %s | %.1f | %.0f%% | 100%% | |\n", prefill[0].name.c_str(), peak * 1e-9,
              100 * prefill[0].Spread());
  std::printf("| %s | %.1f | %.0f%% | %.0f%% | %.2f |\n", prefill[1].name.c_str(),
              flop / prefill[1].Median() * 1e-9, 100 * prefill[1].Spread(),
              100 * flop / prefill[1].Median() / peak, prefill[1].Median() / kChunkTokens * 1e6);
  std::printf("\noutput hash %016llx\n", static_cast<unsigned long long>(recurrence.OutHash()));
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) { return moesaic::Main(argc, argv); }
