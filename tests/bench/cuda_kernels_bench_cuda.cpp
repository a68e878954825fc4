// The experts' products and attention on a GPU, with the shapes of Qwen3-30B-A3B: against the copy
// rate of the device's own memory, and against cuBLAS where that has the same problem (one dense
// matrix). Prints Markdown tables.
//
//   cuda_kernels_bench [ROUNDS [DEVICE]]      (default: 9, after one to warm up; cuda:0)
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/device/cuda_device.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/products.h"

namespace moesaic {
namespace {

constexpr int64_t kHidden = 2048;
constexpr int64_t kIntermediate = 768;
constexpr int64_t kExperts = 128;
constexpr int64_t kTopK = 8;
constexpr uint64_t kGiB = uint64_t{1} << 30;
// Calls take turns over so much, which no cache of a GPU holds.
constexpr uint64_t kBeyondCaches = kGiB / 2;
constexpr uint64_t kMostTurns = 32;
constexpr uint64_t Turns(uint64_t bytes) {
  return std::clamp<uint64_t>(kBeyondCaches / std::max<uint64_t>(bytes, 1), 1, kMostTurns);
}

class Bench {
 public:
  Bench(Device& device, int rounds)
      : device_(device), rounds_(rounds), stream_(device.CreateStream()) {}

  // Seconds of one call, the median over rounds of as many as take 20 ms. `launch` is told whose
  // turn it is of `turns`.
  double Seconds(uint64_t turns,
                 const std::function<LaunchResult(cuda::StreamHandle, size_t)>& launch) {
    const auto batch = [&](int64_t calls) {
      const int64_t begin_ns = clock_.NowNs();
      for (int64_t i = 0; i < calls; ++i) {
        const size_t turn = static_cast<size_t>(turn_++ % turns);
        stream_->Launch([&](cuda::StreamHandle stream) { return launch(stream, turn); });
      }
      ThrowIfFailed(stream_->Synchronize());
      return static_cast<double>(clock_.NowNs() - begin_ns) * 1e-9 / static_cast<double>(calls);
    };
    batch(3);
    const int64_t calls = std::clamp<int64_t>(static_cast<int64_t>(0.02 / batch(3)), 1, 2000);
    std::vector<double> seconds;
    for (int round = 0; round < rounds_; ++round) seconds.push_back(batch(calls));
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2];
  }

  // Random bytes that are small bf16 numbers, f16 scales and levels alike.
  DeviceBuffer Random(uint64_t bytes) {
    std::vector<uint16_t> values(bytes / 2 + 1);
    for (uint16_t& v : values) v = static_cast<uint16_t>(0x3c00u | (random_() & 0x80ffu));
    return Upload(values.data(), bytes);
  }
  template <typename T>
  DeviceBuffer Upload(const std::vector<T>& values) {
    return Upload(values.data(), values.size() * sizeof(T));
  }
  DeviceBuffer Allocate(uint64_t bytes) {
    std::optional<DeviceBuffer> buffer = device_.Allocate(bytes);
    if (!buffer) Fail(ErrorKind::kResourceExhausted, "the bench's arena is too small");
    return std::move(*buffer);
  }

  // Bytes per second of a copy within the device, reading and writing counted.
  double MemoryRate() {
    const DeviceBuffer from = Allocate(kGiB / 2);
    const DeviceBuffer to = Allocate(kGiB / 2);
    const double seconds = Seconds(1, [&](cuda::StreamHandle stream, size_t) -> LaunchResult {
      const cudaError_t code =
          cudaMemcpyAsync(to.data(), from.data(), from.bytes(), cudaMemcpyDeviceToDevice, stream);
      return {static_cast<int>(code), "copy", cudaGetErrorString(code)};
    });
    return 2.0 * static_cast<double>(from.bytes()) / seconds;
  }

  void Experts(double memory_rate);
  void Dense();
  void Attend(double memory_rate);

 private:
  DeviceBuffer Upload(const void* data, uint64_t bytes) {
    DeviceBuffer buffer = Allocate(bytes);
    stream_->CopyToDevice(buffer.span(), {static_cast<const std::byte*>(data), bytes});
    ThrowIfFailed(stream_->Synchronize());
    return buffer;
  }

  Device& device_;
  const int rounds_;
  const SteadyClock clock_;
  std::unique_ptr<Stream> stream_;
  std::mt19937_64 random_{1};
  uint64_t turn_ = 0;
};

template <typename T>
T* As(const DeviceBuffer& buffer) {
  return reinterpret_cast<T*>(buffer.data());
}

// The up projection of all routed experts of a layer, experts drawn evenly.
void Bench::Experts(double memory_rate) {
  fmt::print(
      "\n| experts of a layer, up | path | us | weights GB/s | of memory | TFLOP/s |\n"
      "|---|---|---|---|---|---|\n");
  struct Type {
    const char* name;
    cuda::Weights weights;
  };
  for (const Type& type :
       {Type{"bf16", cuda::Weights::kBf16}, Type{"int8", cuda::Weights::kInt8},
        Type{"int4", cuda::Weights::kInt4}, Type{"mxfp4", cuda::Weights::kMxfp4},
        Type{"fp8", cuda::Weights::kFp8}, Type{"w4a16", cuda::Weights::kW4A16}}) {
    const int64_t expert_bytes =
        kIntermediate / cuda::kPanelOutputs * cuda::PanelBytes(type.weights, kHidden);
    const DeviceBuffer weights = Random(static_cast<uint64_t>(expert_bytes * kExperts));
    std::vector<const std::byte*> pointers;
    for (int64_t e = 0; e < kExperts; ++e) pointers.push_back(weights.data() + e * expert_bytes);
    const DeviceBuffer pointers_gpu = Upload(pointers);
    for (const int64_t tokens : {1, 8, 64, 512}) {
      const int64_t rows = tokens * kTopK;
      std::vector<DeviceBuffer> offsets_gpu;
      int64_t used = 0;
      const uint64_t turns = Turns(static_cast<uint64_t>(rows * expert_bytes));
      for (uint64_t turn = 0; turn < turns; ++turn) {
        std::vector<int32_t> count(kExperts, 0);
        for (int64_t token = 0; token < tokens; ++token) {
          // Others than before, as far as there are others.
          int64_t expert = static_cast<int64_t>(random_() % kExperts);
          if (tokens == 1) expert = static_cast<int64_t>(turn) * kTopK;
          for (int64_t i = 0; i < kTopK; ++i) ++count[static_cast<size_t>((expert + i) % kExperts)];
        }
        used += kExperts - std::count(count.begin(), count.end(), 0);
        std::vector<int32_t> offsets = {0};
        for (const int32_t c : count) offsets.push_back(offsets.back() + c);
        offsets_gpu.push_back(Upload(offsets));
      }
      const double bytes =
          static_cast<double>(used * expert_bytes) / static_cast<double>(turns);  // of a call
      const DeviceBuffer x = Random(static_cast<uint64_t>(rows * kHidden * 2));
      const DeviceBuffer y = Allocate(static_cast<uint64_t>(rows * kIntermediate * 4));
      for (const auto path : {cuda::ProductPath::kMatrix, cuda::ProductPath::kVector}) {
        const double seconds = Seconds(turns, [&](cuda::StreamHandle stream, size_t turn) {
          return cuda::Product({.x = As<uint16_t>(x),
                                .rows = rows,
                                .groups = kExperts,
                                .offsets = As<int32_t>(offsets_gpu[turn]),
                                .weights = As<const std::byte*>(pointers_gpu),
                                .type = type.weights,
                                .n = kIntermediate,
                                .k = kHidden,
                                .y = As<float>(y)},
                               path, stream);
        });
        const double rate = bytes / seconds;
        fmt::print("| {} {} tokens | {} | {:.1f} | {:.0f} | {:.0f}% | {:.2f} |\n", type.name,
                   tokens, path == cuda::ProductPath::kMatrix ? "matrix" : "vector", seconds * 1e6,
                   rate * 1e-9, 100 * rate / memory_rate,
                   2.0 * static_cast<double>(rows * kHidden * kIntermediate) / seconds * 1e-12);
      }
    }
  }
}

// One matrix of the dense part (queries of all heads), ours and cuBLAS's.
void Bench::Dense() {
  constexpr int64_t kOutputs = 4096;
  fmt::print(
      "\n| dense [{}, {}] bf16 | ours us | TFLOP/s | cuBLAS us | TFLOP/s |\n"
      "|---|---|---|---|---|\n",
      kOutputs, kHidden);
  cublasHandle_t handle = nullptr;
  CHECK_EQ(static_cast<int>(cublasCreate(&handle)), 0);
  constexpr uint64_t kBytes = kOutputs * kHidden * 2;
  const DeviceBuffer weights = Random(Turns(kBytes) * kBytes);
  for (const int64_t rows : {1, 16, 64, 512, 4096}) {
    const DeviceBuffer x = Random(static_cast<uint64_t>(rows * kHidden * 2));
    const DeviceBuffer y = Allocate(static_cast<uint64_t>(rows * kOutputs * 4));
    const double ours = Seconds(Turns(kBytes), [&](cuda::StreamHandle stream, size_t turn) {
      return cuda::Product({.x = As<uint16_t>(x),
                            .rows = rows,
                            .matrix = weights.data() + turn * kBytes,
                            .n = kOutputs,
                            .k = kHidden,
                            .y = As<float>(y)},
                           cuda::ProductPath::kMatrix, stream);
    });
    const auto theirs_run = [&](cuda::StreamHandle stream, size_t turn) -> LaunchResult {
      const float one = 1;
      const float zero = 0;
      cublasSetStream(handle, stream);
      const cublasStatus_t status = cublasGemmEx(
          handle, CUBLAS_OP_T, CUBLAS_OP_N, kOutputs, static_cast<int>(rows), kHidden, &one,
          weights.data() + turn * kBytes, CUDA_R_16BF, kHidden, x.data(), CUDA_R_16BF, kHidden,
          &zero, y.data(), CUDA_R_32F, kOutputs, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      if (status == CUBLAS_STATUS_SUCCESS) return {};
      return {static_cast<int>(cudaErrorUnknown), "cublasGemmEx", cublasGetStatusString(status)};
    };
    const double theirs = Seconds(Turns(kBytes), theirs_run);
    const double flop = 2.0 * static_cast<double>(rows * kHidden * kOutputs);
    fmt::print("| {} rows | {:.1f} | {:.2f} | {:.1f} | {:.2f} |\n", rows, ours * 1e6,
               flop / ours * 1e-12, theirs * 1e6, flop / theirs * 1e-12);
  }
  cublasDestroy(handle);
}

// 32 heads of 128 over 4 KV heads.
void Bench::Attend(double memory_rate) {
  constexpr int64_t kHeads = 32;
  constexpr int64_t kKvHeads = 4;
  constexpr int64_t kHeadDim = 128;
  fmt::print("\n| attention | us | KV GB/s | of memory | TFLOP/s |\n|---|---|---|---|---|\n");
  struct Case {
    const char* name;
    int64_t sequences, rows, context;
    bool split;
  };
  for (const Case& c :
       {Case{"decode, 1 x 4096", 1, 1, 4096, true}, Case{"decode, 8 x 4096", 8, 1, 4096, true},
        Case{"decode, 64 x 1024", 64, 1, 1024, true},
        Case{"decode, 64 x 1024, not split", 64, 1, 1024, false},
        Case{"prompt of 2048", 1, 2048, 2048, false}}) {
    const int64_t blocks = c.context / cuda::kBlockTokens;
    const int64_t stride = kKvHeads * cuda::KvHeadBytes(kHeadDim);
    const auto bytes = static_cast<uint64_t>(c.sequences * blocks * stride);
    const DeviceBuffer cache = Random(Turns(bytes) * bytes);
    std::vector<int32_t> table;
    std::vector<cuda::AttentionSequence> sequences;
    for (int64_t s = 0; s < c.sequences; ++s) {
      sequences.push_back({static_cast<int32_t>(s * c.rows), static_cast<int32_t>(c.rows),
                           static_cast<int32_t>(c.context - c.rows + 1),
                           static_cast<int32_t>(table.size())});
      for (int64_t b = 0; b < blocks; ++b) table.push_back(static_cast<int32_t>(s * blocks + b));
    }
    const DeviceBuffer table_gpu = Upload(table);
    const DeviceBuffer sequences_gpu = Upload(sequences);
    const int64_t rows = c.sequences * c.rows;
    const DeviceBuffer q =
        Upload(std::vector<float>(static_cast<size_t>(rows * kHeads * kHeadDim), 0.01f));
    const DeviceBuffer out = Allocate(static_cast<uint64_t>(rows * kHeads * kHeadDim * 2));
    cuda::AttentionArgs args;
    args.cache = {cache.data(), stride, kKvHeads, kHeadDim};
    args.q = As<float>(q);
    args.q_row_stride = kHeads * kHeadDim;
    args.heads = kHeads;
    args.scale = 0.088f;
    args.sequences = As<cuda::AttentionSequence>(sequences_gpu);
    args.num_sequences = c.sequences;
    args.max_rows = c.rows;
    args.max_context = c.context;
    args.blocks = As<int32_t>(table_gpu);
    args.out = As<uint16_t>(out);
    args.out_stride = kHeads * kHeadDim;
    args.split = c.split;
    const DeviceBuffer workspace =
        Allocate(c.split ? static_cast<uint64_t>(cuda::AttentionWorkspaceFloats(args)) * 4 : 0);
    args.workspace = As<float>(workspace);
    const double seconds = Seconds(Turns(bytes), [&](cuda::StreamHandle stream, size_t turn) {
      args.cache.data = cache.data() + turn * bytes;
      return cuda::Attention(args, stream);
    });
    const double rate =
        static_cast<double>(c.sequences * c.context * kKvHeads * kHeadDim * 4) / seconds;
    const double seen =
        static_cast<double>(c.context) - static_cast<double>(c.rows - 1) / 2;  // by a row
    fmt::print("| {} | {:.1f} | {:.0f} | {:.0f}% | {:.2f} |\n", c.name, seconds * 1e6, rate * 1e-9,
               100 * rate / memory_rate,
               4.0 * static_cast<double>(rows * kHeads * kHeadDim) * seen / seconds * 1e-12);
  }
}

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  const int ordinal = argc > 2 ? std::atoi(argv[2]) : 0;
  const CudaMachine machine = FindCudaDevices();
  if (machine.devices.empty()) {
    fmt::print("SKIPPED: {}\n", machine.why_none);
    return 0;
  }
  const auto device = CreateCudaDevice({.ordinal = ordinal,
                                        .capacity_bytes = 4 * kGiB,
                                        .load_kernels = cuda::LoadKernels,
                                        .fetch = cuda::FetchFromHost});
  const CudaDeviceInfo& info = machine.devices[static_cast<size_t>(ordinal)];
  Bench bench(*device, rounds);
  const double memory_rate = bench.MemoryRate();
  fmt::print("{} ({}), memory {:.0f} GB/s (a copy, both sides counted); medians of {} rounds\n",
             info.name, device->name(), memory_rate * 1e-9, rounds);
  bench.Experts(memory_rate);
  bench.Dense();
  bench.Attend(memory_rate);
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    return moesaic::Main(argc, argv);
  } catch (const moesaic::Error& error) {
    fmt::print(stderr, "cuda_kernels_bench: {}\n", error.what());
    return moesaic::ExitCode(error.kind());
  }
}
