// Speed of the expert operator as a whole: RunExperts with weights from memory, as a decode step
// and a prefill have it. Prints a Markdown table.
//
//   experts_bench [rounds] [threads,...] [bf16|int8|int4] [whole]
//
// "whole" counts what is beside the experts in a layer: activations from f32, and the weighted sum
// of each token's slots (scripts/compare_kt_kernel.py).
//
// Wall-clock time, the median over rounds with half the distance between the quartiles. Layers of
// 64 experts of hidden 1024 and intermediate 512 (the model of scripts/make_bench_model.py), as
// many as take more than a large third-level cache; a decode call has the next 8 of them, one row
// each, a prefill 512 tokens of top 8 spread over a layer; eight experts of many rows are what
// throughput mode streams.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/tensor.h"
#include "core/base/thread_pool.h"
#include "kernels/cpu/moe.h"
#include "tests/bench/kernel_bench_util.h"

namespace moesaic {
namespace {

constexpr int64_t kExperts = 64, kTopK = 8, kHidden = 1024, kIntermediate = 512;
constexpr int64_t kBytes = int64_t{1500} << 20;  // of all experts, at least

// Experts of the same values, each with memory of its own.
class Experts {
 public:
  Experts(const CpuKernels& kernels, WeightType type) {
    const int64_t gate_bytes = PackedMatrix::Bytes(type, kIntermediate, kHidden);
    const int64_t down_bytes = PackedMatrix::Bytes(type, kHidden, kIntermediate);
    const int64_t bytes = 2 * gate_bytes + down_bytes;
    const int64_t layers = 1 + kBytes / (kExperts * bytes);
    memory_ = AlignedBuffer(static_cast<size_t>(layers * kExperts * bytes));
    const std::vector<float> values = Normals(kIntermediate * kHidden);
    for (int64_t e = 0; e < layers * kExperts; ++e) {
      std::byte* const at = memory_.data() + e * bytes;
      if (e > 0) {
        std::memcpy(at, memory_.data(), static_cast<size_t>(bytes));
      } else {
        const auto pack = [&](int64_t n, int64_t k, std::byte* to) {
          kernels.pack_panels(values.data(), DType::kF32, k, n, k, type, 0, n / kPanelOutputs, to);
        };
        pack(kIntermediate, kHidden, at);
        pack(kIntermediate, kHidden, at + gate_bytes);
        pack(kHidden, kIntermediate, at + 2 * gate_bytes);
      }
      ExpertWork work;
      work.gate = {at, type, kIntermediate, kHidden};
      work.up = {at + gate_bytes, type, kIntermediate, kHidden};
      work.down = {at + 2 * gate_bytes, type, kHidden, kIntermediate};
      work_.push_back(work);
    }
    bytes_ = bytes;
  }
  const std::vector<ExpertWork>& work() const { return work_; }
  int64_t bytes() const { return bytes_; }  // of one

 private:
  AlignedBuffer memory_;
  std::vector<ExpertWork> work_;
  int64_t bytes_ = 0;
};

// Calls of `tokens` tokens and `active` experts, which take turns on all of them.
class Calls {
 public:
  Calls(const CpuKernels& kernels, WeightType type, const Experts& experts, int64_t tokens,
        int64_t active, int threads, bool whole)
      : kernels_(kernels),
        experts_(experts),
        tokens_(tokens),
        active_(active),
        whole_(whole),
        activations_(ActivationTypeOf(kernels.numerics, type)),
        pool_(threads),
        values_(Normals(tokens * kHidden)),
        weights_(static_cast<size_t>(tokens * kTopK), 1.0f / kTopK),
        y_(static_cast<size_t>(tokens * kHidden)) {
    const int64_t rows = tokens * kTopK / active;
    stride_bytes_ = ActivationRowBytes(activations_, kHidden);
    x_ = AlignedBuffer(static_cast<size_t>(tokens * stride_bytes_));
    for (int64_t token = 0; token < tokens; ++token) Prepare(token);
    workspace_.Reserve(activations_, tokens * kTopK, kIntermediate);
    out_ = AlignedBuffer(static_cast<size_t>(tokens * kTopK * kHidden) * sizeof(float));
    for (int64_t i = 0; i < active * rows; ++i) {
      token_rows_.push_back(static_cast<int32_t>(i % tokens));
      slot_rows_.push_back(static_cast<int32_t>(i));
    }
    rows_ = rows;
    call_.resize(static_cast<size_t>(active));
  }
  void Run() {
    for (int64_t i = 0; i < active_; ++i) {
      ExpertWork& work = call_[static_cast<size_t>(i)];
      work = experts_.work()[next_];
      next_ = (next_ + 1) % experts_.work().size();
      work.token_rows = token_rows_.data() + i * rows_;
      work.slot_rows = slot_rows_.data() + i * rows_;
      work.count = rows_;
    }
    if (whole_) pool_.ParallelFor(tokens_, [this](int64_t token, int) { Prepare(token); });
    RunExperts(pool_, kernels_, x_.data(), stride_bytes_, call_, out_.as<float>(), workspace_);
    if (!whole_) return;
    std::fill(y_.begin(), y_.end(), 0.0f);
    CombineSlots(pool_, kernels_, out_.as<float>(), weights_.data(), tokens_, kTopK, kHidden,
                 y_.data());
  }

 private:
  void Prepare(int64_t token) {
    kernels_.prepare_activations(values_.data() + token * kHidden, kHidden, 1, kHidden,
                                 activations_, x_.data() + token * stride_bytes_, stride_bytes_);
  }

  const CpuKernels& kernels_;
  const Experts& experts_;
  const int64_t tokens_;
  const int64_t active_;
  const bool whole_;
  const ActivationType activations_;
  ThreadPool pool_;
  const std::vector<float> values_;   // [tokens, hidden]
  const std::vector<float> weights_;  // [tokens, slots]
  std::vector<float> y_;              // [tokens, hidden]
  int64_t stride_bytes_ = 0;
  int64_t rows_ = 0;
  size_t next_ = 0;  // expert
  AlignedBuffer x_;
  MoeWorkspace workspace_;
  AlignedBuffer out_;
  std::vector<int32_t> token_rows_, slot_rows_;
  std::vector<ExpertWork> call_;
};

struct Call {
  const char* name;
  int64_t tokens;
  int64_t experts;
};
constexpr Call kCalls[] = {{"decode, batch 1", 1, kTopK},
                           {"decode, batch 16", 16, kExperts},
                           {"decode, batch 64", 64, kExperts},
                           {"prefill, 512 tokens", 512, kExperts},
                           {"prefill, 2048 tokens", 2048, kExperts},
                           {"8 experts of 420 rows", 420, kTopK}};

void Run(int rounds, const std::vector<int>& thread_counts, const std::string& only, bool whole) {
  const CpuKernels& kernels = SelectKernels();
  std::printf(
      "| weights | call | threads | us | spread | GB/s | GFLOP/s "
      "|\n|---|---|---|---|---|---|---|\n");
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    if (!only.empty() && only != WeightTypeName(type)) continue;
    const Experts experts(kernels, type);
    for (const int threads : thread_counts) {
      std::deque<Calls> calls;
      std::vector<Candidate> candidates;
      for (const Call& call : kCalls) {
        Calls& made =
            calls.emplace_back(kernels, type, experts, call.tokens, call.experts, threads, whole);
        candidates.push_back({call.name, [&made] { made.Run(); }});
      }
      Measure(candidates, rounds, 0.03, CLOCK_MONOTONIC);
      for (size_t c = 0; c < candidates.size(); ++c) {
        const double seconds = candidates[c].Median();
        const auto bytes = static_cast<double>(kCalls[c].experts * experts.bytes());
        const auto operations =
            static_cast<double>(6 * kCalls[c].tokens * kTopK * kHidden * kIntermediate);
        std::printf("| %s | %s | %d | %.1f | %.1f%% | %.1f | %.0f |\n", WeightTypeName(type),
                    candidates[c].name.c_str(), threads, seconds * 1e6,
                    100 * candidates[c].Spread(), bytes / seconds / 1e9,
                    operations / seconds / 1e9);
      }
      std::fflush(stdout);
    }
  }
}

int Main(int argc, char** argv) {
  std::vector<int> threads;
  std::istringstream list(argc > 2 ? argv[2] : "1,2");
  for (std::string item; std::getline(list, item, ',');) threads.push_back(std::atoi(item.c_str()));
  Run(argc > 1 ? std::atoi(argv[1]) : 21, threads, argc > 3 ? argv[3] : "",
      argc > 4 && std::string(argv[4]) == "whole");
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) { return moesaic::Main(argc, argv); }
