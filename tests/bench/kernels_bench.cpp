// Speed of the CPU kernels on one thread, beside the peaks of this core measured in the same
// rounds, and beside oneDNN where it is installed. Prints Markdown tables.
//
//   kernels_bench [products|ints|decode|coded|packing|other] [rounds] [bf16|f32|int8|int4]
//   kernels_bench coded [rounds] [amx|avx512_bf16|avx512|avx2]
//
// The last argument leaves other types of weights out of the products.
//
// Every number is the median over rounds; a round runs all candidates of a table one after the
// other, so a slow phase of the machine hits all of them. "decode" cycles through more weights than
// any cache holds.
#include <immintrin.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/tensor.h"
#include "kernels/cpu/kernels.h"
#include "tests/bench/kernel_bench_util.h"
#ifdef MOESAIC_BENCH_ONEDNN
#include "kernels/onednn/onednn_matmul.h"
#endif

namespace moesaic {
namespace {

__attribute__((target("avx512f,avx512bf16"))) void DotPeak() {
  __m512 sums[kPeakChains];
#pragma GCC unroll 16
  for (auto& s : sums) s = _mm512_set1_ps(1.0f);
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi32(0x3f003f00));
  for (int64_t i = 0; i < kPeakIterations; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kPeakChains; ++c) {
      sums[c] = _mm512_dpbf16_ps(sums[c], a, a);
      __asm__ volatile("" : "+v"(sums[c]));
    }
  }
  float total = 0.0f;
#pragma GCC unroll 16
  for (const auto& s : sums) total += _mm512_cvtss_f32(s);
  sink = total;
}
constexpr double kDotPeakFlops = 4.0 * 16 * kPeakChains * kPeakIterations;

// Operations are counted as multiplications and additions, as of floats.
__attribute__((target("avx512f,avx512vnni"))) void IntDotPeak() {
  __m512i sums[kPeakChains];
#pragma GCC unroll 16
  for (auto& s : sums) s = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi32(0x01020304);
  for (int64_t i = 0; i < kPeakIterations; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kPeakChains; ++c) {
      sums[c] = _mm512_dpbusd_epi32(sums[c], a, a);
      __asm__ volatile("" : "+v"(sums[c]));
    }
  }
  int total = 0;
#pragma GCC unroll 16
  for (const auto& s : sums) total += _mm512_cvtsi512_si32(s);
  sink = static_cast<float>(total);
}
constexpr double kIntDotPeakOps = 8.0 * 16 * kPeakChains * kPeakIterations;

bool Has512() { return IsaSupported(Isa::kAvx512); }

// A product with its own weights, activations and output; `copies` matrices taken in turn.
struct Product {
  Product(const CpuKernels& table, WeightType weight_type, int64_t n, int64_t k, int64_t rows,
          int64_t copies)
      : kernels(table), type(weight_type), m(rows), matrices(copies) {
    const int64_t bytes = PackedMatrix::Bytes(type, n, k);
    weights = AlignedBuffer(static_cast<size_t>(bytes * copies));
    matrix = {weights.data(), type, n, k};
    const std::vector<float> source = Normals(n * k);
    kernels.pack_panels(source.data(), DType::kF32, k, n, k, type, 0, matrix.panels(),
                        weights.data());
    for (int64_t c = 1; c < copies; ++c) {
      std::memcpy(weights.data() + c * bytes, weights.data(), static_cast<size_t>(bytes));
    }
    const std::vector<float> x = Normals(m * k);
    const ActivationType activation_type = ActivationTypeOf(kernels.numerics, type);
    stride = ActivationRowBytes(activation_type, k);
    activations = AlignedBuffer(static_cast<size_t>(m * stride));
    kernels.prepare_activations(x.data(), k, m, k, activation_type, activations.data(), stride);
    y.resize(static_cast<size_t>(m * n));
  }
  void Run() {
    MatmulArgs args;
    args.x = activations.data();
    args.x_stride_bytes = stride;
    args.m = m;
    args.w = matrix;
    args.w.data = weights.data() + next * matrix.panels() * matrix.panel_bytes();
    args.panel_end = matrix.panels();
    args.y = y.data();
    args.y_stride = matrix.n;
    kernels.ProductsFor(type, m).matmul(args);
    next = (next + 1) % matrices;
  }
  double Flops() const { return 2.0 * static_cast<double>(m * matrix.n * matrix.k); }
  double WeightBytes() const { return static_cast<double>(matrix.panels() * matrix.panel_bytes()); }

  const CpuKernels& kernels;
  WeightType type;
  int64_t m, matrices, stride = 0, next = 0;
  PackedMatrix matrix;
  AlignedBuffer weights, activations;
  std::vector<float> y;
};

#ifdef MOESAIC_BENCH_ONEDNN
struct DnnProduct {
  DnnProduct(WeightType type, int64_t n, int64_t k, int64_t rows, int64_t copies) : m(rows) {
    const std::vector<float> w = Normals(n * k);
    const std::vector<float> from = Normals(m * k);
    x.resize(static_cast<size_t>(m * k * 4));
    std::vector<uint16_t> half(w.size());
    std::transform(w.begin(), w.end(), half.begin(), F32ToBf16);
    if (type == WeightType::kBf16) {
      std::transform(from.begin(), from.end(), reinterpret_cast<uint16_t*>(x.data()), F32ToBf16);
    } else {
      std::memcpy(x.data(), from.data(), x.size());
    }
    for (int64_t c = 0; c < copies; ++c) {
      products.push_back(std::make_unique<OneDnnMatmul>(
          type, n, k,
          type == WeightType::kBf16 ? static_cast<const void*>(half.data()) : w.data()));
      products.back()->Prepare(m);
    }
    y.resize(static_cast<size_t>(m * n));
  }
  void Run() {
    products[next]->Run(m, x.data(), y.data());
    next = (next + 1) % products.size();
  }
  int64_t m;
  size_t next = 0;
  std::vector<std::byte> x;
  std::vector<std::unique_ptr<OneDnnMatmul>> products;
  std::vector<float> y;
};
#endif

// Memory operand of LDTILECFG: eight tiles of 16 rows of 64 bytes.
struct FullTiles {
  uint8_t palette = 1;
  uint8_t reserved[15] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

template <bool kBytes>
__attribute__((target("amx-tile,amx-bf16,amx-int8"))) void TilePeak() {
  const FullTiles config;
  __asm__ volatile("" ::: "memory");
  _tile_loadconfig(&config);
  for (int64_t i = 0; i < kPeakIterations; ++i) {
    if constexpr (kBytes) {
      _tile_dpbsud(0, 4, 6);
      _tile_dpbsud(1, 4, 7);
      _tile_dpbsud(2, 5, 6);
      _tile_dpbsud(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
}
// Four products of 16 x 32 (bytes: 64) by 16.
constexpr double kTilePeakFlops = 4.0 * 2 * 16 * 16 * 32 * kPeakIterations;

struct Peak {
  const char* name;
  void (*run)();
  double flops;
};

Peak PeakOf(const CpuKernels& kernels, WeightType type) {
  if (kernels.isa == Isa::kAmx) {
    return IsQuantized(type) ? Peak{"dpbsud", TilePeak<true>, 2 * kTilePeakFlops}
                             : Peak{"tdpbf16", TilePeak<false>, kTilePeakFlops};
  }
  if (IsQuantized(type)) return {"dpbusd", IntDotPeak, kIntDotPeakOps};
  if (kernels.isa == Isa::kAvx512Bf16 && type != WeightType::kF32) {
    return {"dpbf16", DotPeak, kDotPeakFlops};
  }
  if (kernels.isa == Isa::kAvx2) return {"fma256", FmaPeak256, kFmaPeak256Flops};
  return {"fma512", FmaPeak, kFmaPeakFlops};
}

struct Kind {
  Isa isa;
  WeightType type;
};

// Those that run here, have a peak to compare with and are asked for.
std::vector<Kind> KindsOf(std::initializer_list<Kind> kinds, const std::string& type) {
  std::vector<Kind> here;
  for (const Kind& kind : kinds) {
    if (!IsaSupported(kind.isa)) continue;
    if (IsQuantized(kind.type) && KernelsFor(kind.isa).quant_isa != QuantIsa::kAvx512Vnni) continue;
    if (type.empty() || type == WeightTypeName(kind.type)) here.push_back(kind);
  }
  return here;
}

void Products(int rounds, const std::string& type) {
  std::printf(
      "\n## Products, warm, one thread: GFLOP/s (share of the peak measured beside it)\n\n");
  std::printf("| n x k | M | class, weights | peak | ours | oneDNN | ours / oneDNN | spread |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  const std::vector<Kind> kinds = KindsOf({{Isa::kAmx, WeightType::kBf16},
                                           {Isa::kAmx, WeightType::kInt8},
                                           {Isa::kAmx, WeightType::kInt4},
                                           {Isa::kAvx512Bf16, WeightType::kBf16},
                                           {Isa::kAvx512, WeightType::kF32},
                                           {Isa::kAvx512, WeightType::kBf16},
                                           {Isa::kAvx2, WeightType::kBf16},
                                           {Isa::kAvx512, WeightType::kInt8},
                                           {Isa::kAvx512, WeightType::kInt4},
                                           {Isa::kAvx512, WeightType::kMxfp4F32},
                                           {Isa::kAvx512, WeightType::kW4A16},
                                           {Isa::kAvx2, WeightType::kW4A16},
                                           {Isa::kAvx512Bf16, WeightType::kFp8},
                                           {Isa::kAvx512, WeightType::kFp8},
                                           {Isa::kAvx2, WeightType::kFp8}},
                                          type);
  const int64_t shapes[][2] = {{1024, 1024}, {2048, 2048}, {768, 2048}, {4096, 4096}};
  for (const auto& shape : shapes) {
    for (const Kind& kind : kinds) {
      if (kind.isa == Isa::kAvx2 && shape[0] != 2048) continue;
      for (const int64_t m : {1, 4, 16, 64, 512}) {
        const CpuKernels& kernels = KernelsFor(kind.isa);
        const Peak peak = PeakOf(kernels, kind.type);
        Product ours(kernels, kind.type, shape[0], shape[1], m, 1);
        std::vector<Candidate> candidates = {{"peak", peak.run}, {"ours", [&] { ours.Run(); }}};
#ifdef MOESAIC_BENCH_ONEDNN
        // oneDNN has no product of f32 activations with bf16 weights.
        std::unique_ptr<DnnProduct> dnn;
        if (ActivationTypeOf(kernels.numerics, kind.type) == ActivationType::kBf16 ||
            kind.type == WeightType::kF32) {
          dnn = std::make_unique<DnnProduct>(kind.type, shape[0], shape[1], m, 1);
          candidates.push_back({"oneDNN", [&] { dnn->Run(); }});
        }
#endif
        Measure(candidates, rounds);
        const double peak_rate = peak.flops / candidates[0].Median();
        const auto cell = [&](const Candidate& c) {
          const double rate = ours.Flops() / c.Median();
          char text[64];
          std::snprintf(text, sizeof text, "%.0f (%.0f%%)", rate / 1e9, 100 * rate / peak_rate);
          return std::string(text);
        };
        const Candidate* const other = CandidateNamed(candidates, "oneDNN");
        char ratio[16] = "-";
        if (other != nullptr) {
          std::snprintf(ratio, sizeof ratio, "%.2f", other->Median() / candidates[1].Median());
        }
        std::printf("| %ld x %ld | %ld | %s, %s | %s %.0f | %s | %s | %s | %.1f%% |\n", shape[0],
                    shape[1], m, IsaName(kind.isa), WeightTypeName(kind.type), peak.name,
                    peak_rate / 1e9, cell(candidates[1]).c_str(),
                    other != nullptr ? cell(*other).c_str() : "-", ratio,
                    100 * candidates[1].Spread());
        std::fflush(stdout);
      }
    }
  }
}

// Every instruction set that multiplies integer weights, side by side.
void Ints(int rounds, const std::string& only) {
  constexpr QuantIsa kIsas[] = {QuantIsa::kAvx2, QuantIsa::kAvxVnni, QuantIsa::kAvx512,
                                QuantIsa::kAvx512Vnni, QuantIsa::kAmx};
  std::printf("\n## Integer products, warm, one thread: GOP/s\n\n| n x k | weights | M |");
  for (const QuantIsa isa : kIsas) std::printf(" %s |", QuantIsaName(isa));
  std::printf("\n|---|---|---|---|---|---|---|---|\n");
  const int64_t shapes[][2] = {{768, 2048}, {512, 1024}, {1024, 512}};
  for (const auto& shape : shapes) {
    for (const WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
      if (!only.empty() && only != WeightTypeName(type)) continue;
      for (const int64_t m : {1, 2, 4, 8, 16, 64, 512}) {
        std::vector<CpuKernels> tables;
        tables.reserve(std::size(kIsas));
        std::vector<std::unique_ptr<Product>> products;
        std::vector<Candidate> candidates;
        for (const QuantIsa isa : kIsas) {
          if (!QuantIsaSupported(isa)) continue;
          tables.push_back(WithQuantIsa(KernelsFor(Isa::kAvx512), isa));
          products.push_back(
              std::make_unique<Product>(tables.back(), type, shape[0], shape[1], m, 1));
          candidates.push_back({QuantIsaName(isa), [p = products.back().get()] { p->Run(); }});
        }
        Measure(candidates, rounds);
        std::printf("| %ld x %ld | %s | %ld |", shape[0], shape[1], WeightTypeName(type), m);
        size_t next = 0;
        for (const QuantIsa isa : kIsas) {
          if (!QuantIsaSupported(isa)) {
            std::printf(" - |");
          } else {
            std::printf(" %.0f |", products[next]->Flops() / candidates[next].Median() / 1e9);
            ++next;
          }
        }
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  }
}

void Decode(int rounds, const std::string& type) {
  std::printf("\n## Products with weights from memory, one thread: GB/s of weights\n\n");
  std::printf("| n x k | M | class, weights | read peak | ours | oneDNN | spread |\n");
  std::printf("|---|---|---|---|---|---|---|\n");
  constexpr int64_t kColdBytes = int64_t{3} << 29;
  const int64_t shapes[][2] = {{768, 2048}, {2048, 768}, {2048, 2048}, {4096, 4096}};
  const std::vector<Kind> kinds = KindsOf({{Isa::kAmx, WeightType::kBf16},
                                           {Isa::kAmx, WeightType::kInt8},
                                           {Isa::kAmx, WeightType::kInt4},
                                           {Isa::kAvx512Bf16, WeightType::kBf16},
                                           {Isa::kAvx512, WeightType::kBf16},
                                           {Isa::kAvx2, WeightType::kBf16},
                                           {Isa::kAvx512, WeightType::kInt8},
                                           {Isa::kAvx512, WeightType::kInt4},
                                           {Isa::kAvx512, WeightType::kMxfp4F32},
                                           {Isa::kAvx512, WeightType::kW4A16},
                                           {Isa::kAvx2, WeightType::kW4A16},
                                           {Isa::kAvx512Bf16, WeightType::kFp8},
                                           {Isa::kAvx512, WeightType::kFp8},
                                           {Isa::kAvx2, WeightType::kFp8}},
                                          type);
  for (const auto& shape : shapes) {
    for (const Kind& kind : kinds) {
      for (const int64_t m : {1, 2, 4, 8, 16, 64}) {
        const CpuKernels& kernels = KernelsFor(kind.isa);
        const int64_t bytes = PackedMatrix::Bytes(kind.type, shape[0], shape[1]);
        Product ours(kernels, kind.type, shape[0], shape[1], m, kColdBytes / bytes);
        // The peak reads a slice of the same memory a call.
        int64_t slice = 0;
        const int64_t slice_bytes = int64_t{64} << 20;
        const auto slices = static_cast<int64_t>(ours.weights.bytes()) / slice_bytes;
        const auto next_slice = [&] {
          slice = (slice + 1) % slices;
          return ours.weights.data() + slice * slice_bytes;
        };
        std::vector<Candidate> candidates = {
            {"read8", [&] { ReadPeak(next_slice(), slice_bytes); }},
            {"read1", [&] { ReadPeakSequential(next_slice(), slice_bytes); }},
            {"ours", [&] { ours.Run(); }}};
#ifdef MOESAIC_BENCH_ONEDNN
        std::unique_ptr<DnnProduct> dnn;
        if (kind.isa == Isa::kAvx512Bf16 && m == 1) {
          dnn = std::make_unique<DnnProduct>(WeightType::kBf16, shape[0], shape[1], m,
                                             kColdBytes / bytes);
          candidates.push_back({"oneDNN", [&] { dnn->Run(); }});
        }
#endif
        Measure(candidates, rounds, 0.05);
        const double read = static_cast<double>(slice_bytes) /
                            std::min(candidates[0].Median(), candidates[1].Median());
        const double rate = ours.WeightBytes() / candidates[2].Median();
        std::printf("| %ld x %ld | %ld | %s, %s | %.1f | %.1f (%.0f%%) |", shape[0], shape[1], m,
                    IsaName(kind.isa), WeightTypeName(kind.type), read / 1e9, rate / 1e9,
                    100 * rate / read);
        if (const Candidate* const other = CandidateNamed(candidates, "oneDNN")) {
          std::printf(" %.1f |", ours.WeightBytes() / other->Median() / 1e9);
        } else {
          std::printf(" - |");
        }
        std::printf(" %.1f%% |\n", 100 * candidates[2].Spread());
        std::fflush(stdout);
      }
    }
  }
}

// Plain and coded bf16 in turn, of the same values.
void Coded(int rounds, const std::string& only) {
  std::printf("\n## bf16 and coded bf16, weights from memory, one thread: GB/s of bf16\n\n");
  std::printf("| n x k | M | class | read peak | bf16 | coded | coded / bf16 | spreads |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  constexpr int64_t kColdBytes = int64_t{1} << 29;
  const int64_t shapes[][2] = {{768, 2048}, {2048, 768}, {2048, 2048}};
  for (const auto& shape : shapes) {
    for (const Isa isa : {Isa::kAmx, Isa::kAvx512Bf16, Isa::kAvx512, Isa::kAvx2}) {
      if (!IsaSupported(isa) || (!only.empty() && only != IsaName(isa))) continue;
      for (const int64_t m : {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512}) {
        const CpuKernels& kernels = KernelsFor(isa);
        const int64_t bytes = PackedMatrix::Bytes(WeightType::kBf16, shape[0], shape[1]);
        Product plain(kernels, WeightType::kBf16, shape[0], shape[1], m, kColdBytes / bytes);
        Product coded(kernels, WeightType::kBf16Coded, shape[0], shape[1], m, kColdBytes / bytes);
        std::vector<Candidate> candidates = {
            {"read8", [&] { ReadPeak(plain.weights.data(), kColdBytes / 8); }},
            {"bf16", [&] { plain.Run(); }},
            {"coded", [&] { coded.Run(); }}};
        Measure(candidates, rounds, 0.05);
        const auto rate = [&](size_t i) {
          const double of_call = i == 0 ? static_cast<double>(kColdBytes) / 8 : plain.WeightBytes();
          return of_call / candidates[i].Median() / 1e9;
        };
        std::printf("| %ld x %ld | %ld | %s | %.1f | %.1f | %.1f | %.3f | %.1f%%, %.1f%% |\n",
                    shape[0], shape[1], m, IsaName(isa), rate(0), rate(1), rate(2),
                    rate(2) / rate(1), 100 * candidates[1].Spread(), 100 * candidates[2].Spread());
        std::fflush(stdout);
      }
    }
  }
}

void Packing(int rounds) {
  std::printf("\n## Packing, one thread: GB/s of source read, sources from memory\n\n");
  std::printf("| n x k | source -> weights | ISA | GB/s |\n|---|---|---|---|\n");
  AlignedBuffer src(size_t{1} << 30);
  const std::vector<float> values = Normals(1 << 16);
  for (size_t i = 0; i < src.bytes() / 2; ++i) {
    src.as<uint16_t>()[i] = F32ToBf16(values[i % values.size()]);
  }
  AlignedBuffer dst(size_t{64} << 20);
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{768, 2048}, {2048, 768}}) {
      for (const Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kScalar}) {
        if (!IsaSupported(isa)) continue;
        const int64_t bytes = n * k * DTypeBits(dtype) / 8;
        int64_t at = 0;
        const auto rows = n;
        const auto inputs = k;
        for (const WeightType type :
             {WeightType::kBf16, WeightType::kBf16Coded, WeightType::kInt8, WeightType::kInt4}) {
          std::vector<Candidate> candidates = {
              {"pack", [&, rows, inputs] {
                 at = at + 2 * bytes <= int64_t{1} << 30 ? at + bytes : 0;
                 KernelsFor(isa).pack_panels(src.data() + at, dtype, inputs, rows, inputs, type, 0,
                                             rows / 16, dst.data());
               }}};
          Measure(candidates, rounds);
          std::printf("| %ld x %ld | %s -> %s | %s | %.1f |\n", n, k, DTypeName(dtype),
                      WeightTypeName(type), IsaName(isa),
                      static_cast<double>(bytes) / candidates[0].Median() / 1e9);
        }
      }
    }
  }
}

void Other(int rounds) {
  std::printf("\n## Row kernels, one thread, 2048 floats in cache: ns a call\n\n");
  std::printf(
      "| ISA | rms_norm | softmax | log_sum_exp | axpy | prepare | prepare int8 |\n"
      "|---|---|---|---|---|---|---|\n");
  const std::vector<float> x = Normals(2048);
  const std::vector<float> w = Normals(2048);
  std::vector<float> y(2048);
  AlignedBuffer rows(16384);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16}) {
    if (!IsaSupported(isa)) continue;
    const CpuKernels& k = KernelsFor(isa);
    const auto prepare = [&](ActivationType type) {
      k.prepare_activations(x.data(), 2048, 1, 2048, type, rows.data(), 8192);
    };
    std::vector<Candidate> candidates = {
        {"rms_norm", [&] { k.rms_norm(x.data(), w.data(), 1e-6f, 2048, y.data()); }},
        {"softmax", [&] { k.softmax(x.data(), 2048, y.data()); }},
        {"log_sum_exp", [&] { sink = k.log_sum_exp(x.data(), 2048); }},
        {"axpy", [&] { k.axpy(0.1f, x.data(), 2048, y.data()); }},
        {"prepare", [&] { prepare(ActivationTypeOf(k.numerics, WeightType::kBf16)); }},
        {"prepare int8", [&] { prepare(ActivationType::kInt8); }}};
    Measure(candidates, rounds);
    std::printf("| %s |", IsaName(isa));
    for (const Candidate& c : candidates) std::printf(" %.0f |", c.Median() * 1e9);
    std::printf("\n");
  }
}

#ifdef MOESAIC_BENCH_ONEDNN
void Invariance() {
  std::printf("\n## Row invariance of oneDNN (equal bits at 1 to 512 rows)\n\n");
  std::printf("| n x k | f32 | bf16 |\n|---|---|---|\n");
  const int64_t shapes[][2] = {{512, 256},  {1024, 1024}, {2048, 2048},
                               {768, 2048}, {1000, 999},  {4096, 4096}};
  for (const auto& s : shapes) {
    const auto answer = [&](WeightType type) {
      return OneDnnRowInvariant(type, s[0], s[1]) ? "yes" : "no";
    };
    std::printf("| %ld x %ld | %s | %s |\n", s[0], s[1], answer(WeightType::kF32),
                answer(WeightType::kBf16));
  }
}
#endif

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 11;
  if (!Has512()) {
    std::printf("this bench measures its peaks with AVX-512, which this CPU lacks\n");
    return 1;
  }
#ifdef MOESAIC_BENCH_ONEDNN
  SetOneDnnThreads(1);
#endif
  const std::string type = argc > 3 ? argv[3] : "";
  if (what == "all" || what == "products") Products(rounds, type);
  if (what == "all" || what == "ints") Ints(rounds, type);
  if (what == "all" || what == "decode") Decode(rounds, type);
  if (what == "all" || what == "coded") Coded(rounds, type);
  if (what == "all" || what == "packing") Packing(rounds);
  if (what == "all" || what == "other") Other(rounds);
#ifdef MOESAIC_BENCH_ONEDNN
  if (what == "all" || what == "products") Invariance();
#endif
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) { return moesaic::Main(argc, argv); }
