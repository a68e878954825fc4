#include "serving/plan/device_measuring.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/units.h"
#include "core/device/cuda_device.h"
#include "core/device/pinned_host_pool.h"
#include "kernels/cpu/moe.h"
#include "prefetch/link/expert_loader.h"
#include "serving/model/device_operator.h"
#include "serving/model/expert_sources.h"
#include "serving/model/tensor_source.h"
#include "serving/plan/measuring.h"

namespace moesaic {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = kKiB * kKiB;
ModelConfig ShapeOf(const DeviceAmounts& amounts) {
  ModelConfig config;
  config.hidden_size = amounts.hidden;
  ExpertsSpec experts;
  experts.router.experts = amounts.experts;
  experts.router.top_k = 1;
  experts.expert.width = amounts.intermediate;
  config.layers.emplace_back().mlp = experts;
  config.tensors.SetMlp(kExpertSlots, "experts.{expert}.", {"gate", "up", "down"});
  return config;
}

int64_t MostTokens(const DeviceAmounts& amounts) { return amounts.experts * amounts.rows.back(); }

// Copies a device's memory round and round, packet by packet.
class Copier {
 public:
  Copier(Device& device, uint64_t bytes)
      : pool_(bytes, device.numa_node(), device.host_pinner()),
        host_(TakePinned(pool_, bytes)),
        memory_(AllocateOrThrow(device, bytes, "copies to measure")),
        stream_(device.CreateStream()) {}

  bool pinned() const { return pool_.pinned(); }
  // Seconds of copying everything once.
  double Time(uint64_t packet_bytes, bool to_device) {
    const Stopwatch watch;
    for (uint64_t at = 0; at < host_.bytes(); at += packet_bytes) {
      const uint64_t bytes = std::min(packet_bytes, host_.bytes() - at);
      const std::span<std::byte> host(host_.data() + at, bytes);
      if (to_device) {
        stream_->CopyToDevice(memory_.Subspan(at, bytes), host);
      } else {
        stream_->CopyToHost(host, memory_.Subspan(at, bytes));
      }
    }
    ThrowIfFailed(stream_->Synchronize());
    return watch.seconds();
  }
  double bytes() const { return static_cast<double>(host_.bytes()); }

 private:
  PinnedHostPool pool_;
  HostBuffer host_;
  DeviceBuffer memory_;
  std::unique_ptr<Stream> stream_;  // last: it goes first, and waits
};

// Experts of one type, on the host and, where it computes, on the device.
class Experts {
 public:
  Experts(Device& device, const cuda::Kernels* kernels, ThreadPool& pool,
          const DeviceAmounts& amounts, WeightType type)
      : kernels_(SelectKernels()),
        pool_(pool),
        config_(ShapeOf(amounts)),
        layout_(MakeCpuExpertLayout(config_, type)),
        blobs_(static_cast<size_t>(amounts.experts) * layout_.slot_bytes),
        x_(static_cast<size_t>(MostTokens(amounts) * config_.hidden_size)),
        out_(static_cast<size_t>(amounts.rows.back() * config_.hidden_size)),
        rows_(static_cast<size_t>(MostTokens(amounts))) {
    const std::unique_ptr<TensorSource> source = MakeDummyTensorSource(1);
    ExpertPacker packer(config_, type, *source, kernels_);
    for (int64_t e = 0; e < config_.num_experts(); ++e) {
      packer.Pack(Id(e), {blobs_.data() + static_cast<uint64_t>(e) * layout_.slot_bytes,
                          layout_.slot_bytes});
    }
    for (size_t i = 0; i < x_.size(); ++i) {
      x_[i] = static_cast<float>(i * 7919 % 2003) / 1000.0f - 1.0f;
    }
    std::iota(rows_.begin(), rows_.end(), 0);
    const ActivationType activation = ActivationTypeOf(kernels_.numerics, type);
    activation_bytes_ = ActivationRowBytes(activation, config_.hidden_size);
    const int64_t most_rows = amounts.rows.back();
    activations_ = AlignedBuffer(static_cast<size_t>(most_rows * activation_bytes_));
    kernels_.prepare_activations(x_.data(), config_.hidden_size, most_rows, config_.hidden_size,
                                 activation, activations_.data(), activation_bytes_);
    workspace_.Reserve(activation, most_rows, config_.expert_width());
    if (kernels == nullptr) return;
    memory_ = AllocateOrThrow(device, blobs_.bytes(), "experts to measure");
    const std::unique_ptr<Stream> stream = device.CreateStream();
    stream->CopyToDevice(memory_.span(), blobs_.span());
    ThrowIfFailed(stream->Synchronize());
    operator_ =
        std::make_unique<DeviceOperator>(device, *kernels, layout_, config_, MostTokens(amounts));
    for (int64_t e = 0; e < config_.num_experts(); ++e) {
      const uint64_t offset = static_cast<uint64_t>(e) * layout_.slot_bytes;
      pinned_.push_back({Id(e), memory_.data() + offset, 0, blobs_.data() + offset});
    }
  }

  bool on_device() const { return operator_ != nullptr; }
  double blob_bytes() const { return static_cast<double>(layout_.blob_bytes); }

  // Seconds of one expert, computed one after another by all threads: what the host does while
  // copies are on their way.
  double TimeOnHost(int64_t rows, double least_s) {
    const Stopwatch watch;
    int64_t done = 0;
    do {
      const std::byte* const blob =
          blobs_.data() + static_cast<uint64_t>(next_) * layout_.slot_bytes;
      next_ = (next_ + 1) % config_.num_experts();
      ExpertWork work;
      work.gate = SectionMatrix(layout_.sections[0], blob, 0);
      work.up = SectionMatrix(layout_.sections[1], blob, 0);
      work.down = SectionMatrix(layout_.sections[2], blob, 0);
      work.token_rows = rows_.data();
      work.slot_rows = rows_.data();
      work.count = rows;
      RunExperts(pool_, kernels_, activations_.data(), activation_bytes_, {&work, 1}, out_.data(),
                 workspace_);
      ++done;
    } while (watch.seconds() < least_s);
    return watch.seconds() / static_cast<double>(done);
  }

  // Seconds of one expert of a batch of all of them, with the rows' way there and back.
  double TimeOnDevice(int64_t rows, double least_s) {
    std::vector<int32_t> first_row;
    for (int64_t e = 0; e <= config_.num_experts(); ++e) {
      first_row.push_back(static_cast<int32_t>(e * rows));
    }
    const Stopwatch watch;
    int64_t done = 0;
    do {
      operator_->BeginLayer({x_.data(), config_.hidden_size, config_.num_experts() * rows},
                            {first_row, rows_});
      operator_->Queue(pool_, pinned_);
      const DeviceOperator::Batch batch = operator_->TakeOldest();
      if (batch.out == nullptr) {
        Fail(ErrorKind::kUnavailable, "the device computes no experts; the log says why");
      }
      done += config_.num_experts();
    } while (watch.seconds() < least_s);
    return watch.seconds() / static_cast<double>(done);
  }

 private:
  static ExpertId Id(int64_t index) {
    ExpertId id;
    id.index = static_cast<uint16_t>(index);
    return id;
  }

  const CpuKernels& kernels_;
  ThreadPool& pool_;
  const ModelConfig config_;
  const ExpertLayout layout_;
  AlignedBuffer blobs_;        // [experts, slot_bytes]
  std::vector<float> x_;       // [most tokens, hidden]
  std::vector<float> out_;     // [most rows, hidden]
  std::vector<int32_t> rows_;  // [most tokens] 0, 1, 2, ...
  int64_t activation_bytes_ = 0;
  AlignedBuffer activations_;  // [most rows, activation_bytes]
  MoeWorkspace workspace_;
  int64_t next_ = 0;
  DeviceBuffer memory_;  // [experts, slot_bytes]
  std::vector<PinnedExpert> pinned_;
  std::unique_ptr<DeviceOperator> operator_;
};

// Calls `measure` while a thread copies to the device. Returns the seconds of each round of copies
// that was under the load from its beginning to its end; at least one.
std::vector<double> WhileCopying(Copier& copier, uint64_t packet_bytes,
                                 const std::function<void()>& measure) {
  std::vector<double> seconds;
  std::exception_ptr failed;
  std::atomic<int64_t> rounds{0};
  std::atomic<bool> stop{false};
  std::thread copying([&] {
    try {
      while (!stop) {
        const double round = copier.Time(packet_bytes, true);
        // The first one has begun before the load, the last one ends after it.
        if (!stop && rounds > 0) seconds.push_back(round);
        ++rounds;
      }
    } catch (...) {
      failed = std::current_exception();
      rounds = INT64_MAX / 2;
    }
  });
  std::exception_ptr failed_here;
  try {
    while (rounds < 1) std::this_thread::yield();
    do {
      measure();
    } while (rounds < 3);
  } catch (...) {
    failed_here = std::current_exception();
  }
  stop = true;
  copying.join();
  if (failed) std::rethrow_exception(failed);
  if (failed_here) std::rethrow_exception(failed_here);
  return seconds;
}

Measured Rates(double bytes, const std::vector<double>& seconds, std::string how) {
  std::vector<double> rates;
  rates.reserve(seconds.size());
  for (const double s : seconds) rates.push_back(bytes / s);
  return Summarise(std::move(rates), "byte/s", std::move(how));
}

// `time`: seconds of one expert in a round.
ExpertRate RateOf(const std::string& weights, int64_t rows, double blob_bytes, Copier& copier,
                  const DeviceAmounts& amounts, const std::string& how,
                  const std::function<double()>& time) {
  ExpertRate rate;
  rate.weights = weights;
  rate.rows = rows;
  time();  // warms up
  std::vector<double> alone;
  alone.reserve(static_cast<size_t>(amounts.rounds));
  for (int round = 0; round < amounts.rounds; ++round) alone.push_back(time());
  std::vector<double> loaded;
  WhileCopying(copier, kDefaultPacketBytes, [&] {
    for (int round = 0; round < amounts.rounds; ++round) loaded.push_back(time());
  });
  rate.alone = Rates(blob_bytes, alone, how);
  rate.loaded = Rates(blob_bytes, loaded,
                      fmt::format("{}, while {} packets are copied to the device", how,
                                  FormatBytes(kDefaultPacketBytes)));
  return rate;
}

}  // namespace

// The experts are those of Qwen3-30B-A3B: 9 MiB in bf16, too many for the caches.
DeviceAmounts DeviceAmountsFor(const ProfilerOptions& options) {
  if (options.quick) {
    return {.rounds = 3,
            .round_s = 0.005,
            .copy_bytes = 4 * kMiB,
            .hidden = 512,
            .intermediate = 256,
            .experts = 8,
            .packets = {kDefaultPacketBytes, 4 * kMiB},
            .rows = {1, 16},
            .types = {WeightType::kBf16}};
  }
  return {.rounds = 7,
          .round_s = 0.02,
          .copy_bytes = 64 * kMiB,
          .hidden = 2048,
          .intermediate = 768,
          .experts = 16,
          .packets = {64 * kKiB, 256 * kKiB, kDefaultPacketBytes, kMiB, 4 * kMiB, 16 * kMiB},
          .rows = {1, 4, 16, 64},
          .types = {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}};
}

uint64_t MeasuredDeviceBytes(const DeviceAmounts& amounts) {
  const ModelConfig config = ShapeOf(amounts);
  const uint64_t blobs = static_cast<uint64_t>(amounts.experts) *
                         MakeCpuExpertLayout(config, WeightType::kBf16).slot_bytes;
  return amounts.copy_bytes + blobs + DeviceOperator::DeviceBytes(config, MostTokens(amounts)) +
         8 * Device::kAlignment;
}

DeviceProfile MeasureDevice(Device& device, const std::string& model, const cuda::Kernels* kernels,
                            ThreadPool& pool, const DeviceAmounts& amounts,
                            const std::function<void(std::string_view)>& progress) {
  DeviceProfile profile;
  profile.name = device.name();
  profile.model = model;
  Copier copier(device, amounts.copy_bytes);
  const std::string threads =
      fmt::format("{} thread{}", pool.threads(), pool.threads() == 1 ? "" : "s");
  for (const WeightType type : amounts.types) {
    Experts experts(device, kernels, pool, amounts, type);
    const std::string weights = WeightTypeName(type);
    if (profile.copies.empty()) {  // under the load of this first type
      for (const uint64_t packet : amounts.packets) {
        progress(fmt::format("{}: copies of {}", device.name(), FormatBytes(packet)));
        CopyRate& rate = profile.copies.emplace_back();
        rate.packet_bytes = static_cast<uint32_t>(packet);
        const std::string how =
            fmt::format("median of rounds of {}, {} memory", FormatBytes(amounts.copy_bytes),
                        copier.pinned() ? "pinned" : "ordinary");
        std::vector<double> in;
        std::vector<double> out;
        copier.Time(packet, true);  // warms up
        for (int round = 0; round < amounts.rounds; ++round) {
          in.push_back(copier.Time(packet, true));
          out.push_back(copier.Time(packet, false));
        }
        rate.to_device = Rates(copier.bytes(), in, how);
        rate.to_host = Rates(copier.bytes(), out, how);
        rate.to_device_loaded = Rates(
            copier.bytes(),
            WhileCopying(copier, packet, [&] { experts.TimeOnHost(1, amounts.round_s); }),
            fmt::format("{}, while the host computes {} experts with {}", how, weights, threads));
      }
    }
    progress(fmt::format("{}: experts in {}", device.name(), weights));
    for (const int64_t rows : amounts.rows) {
      const std::string how = fmt::format("median of {} runs, experts of {}", amounts.rounds,
                                          FormatBytes(static_cast<uint64_t>(experts.blob_bytes())));
      profile.on_host.push_back(RateOf(weights, rows, experts.blob_bytes(), copier, amounts,
                                       fmt::format("{}, one at a time, {}", how, threads),
                                       [&] { return experts.TimeOnHost(rows, amounts.round_s); }));
      if (!experts.on_device()) continue;
      profile.on_device.push_back(RateOf(
          weights, rows, experts.blob_bytes(), copier, amounts,
          fmt::format("{}, {} at once, with their rows' way there and back", how, amounts.experts),
          [&] { return experts.TimeOnDevice(rows, amounts.round_s); }));
    }
  }
  return profile;
}

std::vector<DeviceProfile> MeasureCudaDevices(ThreadPool& pool, const ProfilerOptions& options) {
  const DeviceAmounts amounts = DeviceAmountsFor(options);
  std::vector<DeviceProfile> profiles;
  for (const CudaDeviceInfo& info : FindCudaDevices().devices) {
    try {
      const std::unique_ptr<Device> device =
          CreateCudaDevice({.ordinal = info.ordinal,
                            .capacity_bytes = MeasuredDeviceBytes(amounts),
                            .load_kernels = cuda::LoadKernels,
                            .fetch = cuda::FetchFromHost});
      profiles.push_back(MeasureDevice(*device, info.name, cuda::CompiledKernels(), pool, amounts,
                                       options.progress));
    } catch (const Error& error) {
      LogWarn("GPU {} is not measured: {}", info.ordinal, error.what());
    }
  }
  return profiles;
}

}  // namespace moesaic
