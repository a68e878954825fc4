// The expert operator of one layer against the same done with oneDNN calls: RunExperts and
// CombineSlots beside gathering rows, three products, an activation and a weighted sum an expert.
// Prints a Markdown table.
//
//   expert_operator_bench [rounds] [tokens an expert,...]
//
// bf16 weights of the shapes of published models, taken in turn from more memory than caches hold,
// one thread. oneDNN takes the instructions that it finds (DNNL_MAX_CPU_ISA), ours those of
// MOESAIC_ISA; each has its weights in the layout that it likes. CPU time, the median over rounds.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/tensor.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/moe.h"
#include "kernels/onednn/onednn_matmul.h"
#include "tests/bench/kernel_bench_util.h"

namespace moesaic {
namespace {

struct Shape {
  const char* model;
  int64_t hidden;
  int64_t intermediate;
};
constexpr Shape kShapes[] = {
    {"Qwen3-30B-A3B", 2048, 768}, {"DeepSeek-V2-Lite", 2048, 1408}, {"Mixtral-8x7B", 4096, 14336}};
constexpr int64_t kBytes = int64_t{1} << 30;  // of all experts of a shape, about

std::vector<uint16_t> RandomBf16(int64_t count) {
  const std::vector<float> values = Normals(count);
  std::vector<uint16_t> bf16(values.size());
  for (size_t i = 0; i < values.size(); ++i) bf16[i] = F32ToBf16(values[i] * 0.02f);
  return bf16;
}

// silu(gate) * up of a multiple of 16 values, rounded to bf16; exp by a polynomial of bf16's
// accuracy.
__attribute__((target("avx512f,avx512bw,avx512vl"))) void SiluMul(const float* gate,
                                                                  const float* up, int64_t count,
                                                                  uint16_t* out) {
  for (int64_t i = 0; i < count; i += 16) {
    const __m512 x = _mm512_loadu_ps(gate + i);
    const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f));
    const __m512 whole = _mm512_roundscale_ps(t, 0);
    const __m512 f = _mm512_sub_ps(t, whole);
    __m512 power = _mm512_set1_ps(0.0096181f);
    for (const float c : {0.0555041f, 0.2402265f, 0.6931472f, 1.0f}) {
      power = _mm512_fmadd_ps(power, f, _mm512_set1_ps(c));
    }
    const __m512 e = _mm512_scalef_ps(power, whole);
    const __m512 y = _mm512_mul_ps(_mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e)),
                                   _mm512_loadu_ps(up + i));
    const __m512i bits = _mm512_castps_si512(y);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
  }
}

// The experts of one shape, in both layouts.
struct Experts {
  Experts(const CpuKernels& kernels, const Shape& shape)
      : count(std::max<int64_t>(2, kBytes / (6 * shape.hidden * shape.intermediate))) {
    const int64_t in_bytes =
        PackedMatrix::Bytes(WeightType::kBf16, shape.intermediate, shape.hidden);
    const int64_t out_bytes =
        PackedMatrix::Bytes(WeightType::kBf16, shape.hidden, shape.intermediate);
    const std::vector<uint16_t> values = RandomBf16(shape.intermediate * shape.hidden);
    memory = AlignedBuffer(static_cast<size_t>(count * (2 * in_bytes + out_bytes)));
    std::byte* at = memory.data();
    const auto pack = [&](int64_t n, int64_t k) {
      kernels.pack_panels(values.data(), DType::kBF16, k, n, k, WeightType::kBf16, 0,
                          n / kPanelOutputs, at);
      const PackedMatrix packed = {at, WeightType::kBf16, n, k};
      at += PackedMatrix::Bytes(WeightType::kBf16, n, k);
      return packed;
    };
    const auto dnn = [&](int64_t n, int64_t k) {
      return std::make_unique<OneDnnMatmul>(WeightType::kBf16, n, k, values.data());
    };
    for (int64_t e = 0; e < count; ++e) {
      ExpertWork& expert = work.emplace_back();
      expert.gate = pack(shape.intermediate, shape.hidden);
      expert.up = pack(shape.intermediate, shape.hidden);
      expert.down = pack(shape.hidden, shape.intermediate);
      gate.push_back(dnn(shape.intermediate, shape.hidden));
      up.push_back(dnn(shape.intermediate, shape.hidden));
      down.push_back(dnn(shape.hidden, shape.intermediate));
    }
  }
  int64_t count;
  AlignedBuffer memory;
  std::vector<ExpertWork> work;
  std::vector<std::unique_ptr<OneDnnMatmul>> gate, up, down;
};

// One expert a call, for every second one of the tokens.
class Operator {
 public:
  Operator(const CpuKernels& kernels, const Shape& shape, Experts& experts, int64_t tokens)
      : kernels_(kernels), shape_(shape), experts_(experts), tokens_(tokens) {
    const ActivationType type = ActivationTypeOf(kernels.numerics, WeightType::kBf16);
    stride_bytes_ = ActivationRowBytes(type, shape.hidden);
    const std::vector<float> x = Normals(2 * tokens * shape.hidden);
    x_ = AlignedBuffer(static_cast<size_t>(2 * tokens * stride_bytes_));
    kernels.prepare_activations(x.data(), shape.hidden, 2 * tokens, shape.hidden, type, x_.data(),
                                stride_bytes_);
    bf16_ = RandomBf16(2 * tokens * shape.hidden);
    for (int64_t t = 0; t < tokens; ++t) {
      token_rows_.push_back(static_cast<int32_t>(2 * t));
      slot_rows_.push_back(static_cast<int32_t>(t));
    }
    workspace_.Reserve(type, tokens, shape.intermediate);
    slot_out_.resize(static_cast<size_t>(tokens * shape.hidden));
    y_.resize(slot_out_.size());
    weights_.assign(static_cast<size_t>(tokens), 0.125f);
    gathered_.resize(static_cast<size_t>(tokens * shape.hidden));
    hidden_.resize(static_cast<size_t>(tokens * shape.intermediate));
    gate_.resize(hidden_.size());
    up_.resize(hidden_.size());
  }

  void RunOurs() {
    ExpertWork work = experts_.work[Next(ours_)];
    work.token_rows = token_rows_.data();
    work.slot_rows = slot_rows_.data();
    work.count = tokens_;
    RunExperts(pool_, kernels_, x_.data(), stride_bytes_, {&work, 1}, slot_out_.data(), workspace_);
    CombineSlots(pool_, kernels_, slot_out_.data(), weights_.data(), tokens_, 1, shape_.hidden,
                 y_.data());
  }

  void RunOneDnn() {
    const size_t e = Next(onednn_);
    const auto row = static_cast<size_t>(shape_.hidden);
    for (size_t t = 0; t < token_rows_.size(); ++t) {
      std::memcpy(gathered_.data() + t * row,
                  bf16_.data() + static_cast<size_t>(token_rows_[t]) * row, row * 2);
    }
    experts_.gate[e]->Run(tokens_, gathered_.data(), gate_.data());
    experts_.up[e]->Run(tokens_, gathered_.data(), up_.data());
    SiluMul(gate_.data(), up_.data(), std::ssize(gate_), hidden_.data());
    experts_.down[e]->Run(tokens_, hidden_.data(), slot_out_.data());
    for (size_t t = 0; t < token_rows_.size(); ++t) {
      kernels_.axpy(weights_[t], slot_out_.data() + t * row, shape_.hidden, y_.data() + t * row);
    }
  }

 private:
  size_t Next(size_t& place) { return place++ % experts_.work.size(); }

  const CpuKernels& kernels_;
  const Shape& shape_;
  Experts& experts_;
  const int64_t tokens_;
  ThreadPool pool_{1};
  int64_t stride_bytes_ = 0;
  size_t ours_ = 0, onednn_ = 0;
  AlignedBuffer x_;
  MoeWorkspace workspace_;
  std::vector<uint16_t> bf16_, gathered_, hidden_;
  std::vector<float> gate_, up_, slot_out_, y_, weights_;
  std::vector<int32_t> token_rows_, slot_rows_;
};

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 7;
  std::vector<int64_t> tokens;
  std::istringstream list(argc > 2 ? argv[2] : "1,4,16,64,256");
  for (std::string item; std::getline(list, item, ',');) tokens.push_back(std::atoll(item.c_str()));
  if (!OneDnnSupports(WeightType::kBf16)) {
    std::printf("this bench compares with oneDNN's products of bf16, which it lacks on this CPU\n");
    return 1;
  }
  SetOneDnnThreads(1);
  const CpuKernels& kernels = SelectKernels();
  std::printf(
      "| experts of | tokens an expert | ours (%s), us | GB/s | GFLOP/s | oneDNN, us | ours |\n",
      IsaName(kernels.isa));
  std::printf("|---|---|---|---|---|---|---|\n");
  for (const Shape& shape : kShapes) {
    Experts experts(kernels, shape);
    const auto weights = static_cast<double>(3 * shape.hidden * shape.intermediate);
    for (const int64_t m : tokens) {
      for (auto* products : {&experts.gate, &experts.up, &experts.down}) {
        for (auto& product : *products) product->Prepare(m);
      }
      Operator run(kernels, shape, experts, m);
      std::vector<Candidate> candidates = {{"ours", [&] { run.RunOurs(); }},
                                           {"oneDNN", [&] { run.RunOneDnn(); }}};
      Measure(candidates, rounds, 0.1);
      const double ours = candidates[0].Median();
      const double onednn = candidates[1].Median();
      std::printf("| %s | %ld | %.0f | %.1f | %.0f | %.0f | x %.2f |\n", shape.model, m, ours * 1e6,
                  2 * weights / ours / 1e9, 2 * weights * static_cast<double>(m) / ours / 1e9,
                  onednn * 1e6, onednn / ours);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) { return moesaic::Main(argc, argv); }
