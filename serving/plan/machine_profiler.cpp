#include "serving/plan/machine_profiler.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "serving/plan/device_measuring.h"
#include "serving/plan/kernel_measuring.h"
#include "serving/plan/measuring.h"
#include "serving/plan/peak_kernels.h"

namespace moesaic {
namespace {

struct PeakLoop {
  const char* instructions;
  Isa isa;
  std::optional<QuantIsa> integers;  // whose products they are
  float (*run)(int64_t iterations);
  int64_t multiply_adds;
};

std::vector<PeakLoop> SupportedPeakLoops() {
  std::vector<PeakLoop> loops = {
    {"baseline f32", Isa::kScalar, {}, PeakBaselineF32, kBaselineF32MultiplyAdds},
#if defined(__x86_64__)
    {"avx2 f32", Isa::kAvx2, {}, PeakAvx2F32, kAvx2F32MultiplyAdds},
    {"avx512 f32", Isa::kAvx512, {}, PeakAvx512F32, kAvx512F32MultiplyAdds},
    {"avx512_bf16 bf16", Isa::kAvx512Bf16, {}, PeakAvx512Bf16, kAvx512Bf16MultiplyAdds},
    {"amx bf16", Isa::kAmx, {}, PeakAmxBf16, kAmxBf16MultiplyAdds},
    {"avx512_vnni int8", Isa::kAvx512, QuantIsa::kAvx512Vnni, PeakAvx512VnniInt8,
     kAvx512VnniMultiplyAdds},
    {"amx int8", Isa::kAmx, QuantIsa::kAmx, PeakAmxInt8, kAmxInt8MultiplyAdds},
#endif
  };
  std::erase_if(loops, [](const PeakLoop& loop) {
    return !IsaSupported(loop.isa) || (loop.integers && !QuantIsaSupported(*loop.integers));
  });
  return loops;
}

// 1, 2, 4, ... and all; 1 and all when quick.
std::vector<int> ThreadCounts(int all, bool quick) {
  std::vector<int> counts = {1};
  for (int threads = 2; !quick && threads < all; threads *= 2) counts.push_back(threads);
  if (all > 1) counts.push_back(all);
  return counts;
}

}  // namespace

HardwareProfile MeasureMachine(const Topology& topology, const std::filesystem::path& directory,
                               const ProfilerOptions& options) {
  HardwareProfile profile;
  profile.host = DescribeHost(topology);
  profile.created = UtcNow();
  profile.quick = options.quick;

  const std::vector<int> cpus = topology.pin_order();
  const int all_threads =
      std::max(topology.default_threads(),
               topology.cgroup.cpu_quota ? 1 : static_cast<int>(topology.cpus.size()));
  const std::vector<int> counts = ThreadCounts(all_threads, options.quick);

  for (const PeakLoop& loop : SupportedPeakLoops()) {
    for (const int threads : counts) {
      options.progress(fmt::format("compute: {}, {} thread{}", loop.instructions, threads,
                                   threads == 1 ? "" : "s"));
      profile.compute.push_back(
          {loop.instructions, threads,
           MeasurePeak(loop.run, loop.multiply_adds, threads, cpus, options.quick)});
    }
  }
  profile.kernels = MeasureKernelChoices(SelectKernels(), options);
  for (const int threads : counts) {
    options.progress(fmt::format("memory: {} thread{}", threads, threads == 1 ? "" : "s"));
    profile.memory.push_back(
        {threads, MeasureMemoryRead(threads, cpus, topology.usable_memory_bytes(), options.quick)});
  }
  ThreadPool pool(topology.default_threads());
  profile.devices = MeasureCudaDevices(pool, options);
  options.progress(fmt::format("disk: writing a temporary file in {}", directory.string()));
  const TemporaryFile file(directory, options.quick);
  DiskProfile disk = MeasureDiskFile(file.path(), options, /*drop_cached=*/true);
  disk.path = std::filesystem::canonical(directory).string();
  profile.disks.push_back(std::move(disk));
  return profile;
}

MachinePeaks MeasurePeaks(const Topology& topology, Isa isa, WeightType weights, int threads) {
  const std::vector<int> cpus = topology.pin_order();
  const std::vector<PeakLoop> loops = SupportedPeakLoops();
  const PeakLoop* used = &loops.front();
  for (const PeakLoop& loop : loops) {
    const bool meant = loop.integers ? IsQuantized(weights) && isa >= loop.isa : loop.isa == isa;
    if (meant) used = &loop;
  }
  MachinePeaks peaks;
  peaks.flop_per_s = MeasurePeak(used->run, used->multiply_adds, threads, cpus, true).value;
  peaks.read_bytes_per_s =
      MeasureMemoryRead(threads, cpus, topology.usable_memory_bytes(), true).value;
  return peaks;
}

const DiskRate* ChooseDiskRate(const DiskProfile& disk, uint64_t read_bytes, ReadUse use) {
  // The shortest block that holds such a run, or the longest of all.
  uint32_t longest_bytes = 0;
  for (const DiskRate& rate : disk.rates) {
    const bool enough = longest_bytes >= read_bytes;
    if (enough ? rate.block_bytes >= read_bytes && rate.block_bytes < longest_bytes
               : rate.block_bytes > longest_bytes) {
      longest_bytes = rate.block_bytes;
    }
  }
  const auto fits = [&](const DiskRate& rate) { return rate.block_bytes <= longest_bytes; };
  double best = 0;
  for (const DiskRate& rate : disk.rates) {
    if (fits(rate)) best = std::max(best, rate.read.value);
  }
  const auto in_flight_bytes = [](const DiskRate& rate) {
    return uint64_t{rate.block_bytes} * static_cast<uint64_t>(rate.depth);
  };
  const auto preferred = [&](const DiskRate& a, const DiskRate& b) {
    if (use == ReadUse::kStream && a.block_bytes != b.block_bytes) {
      return a.block_bytes > b.block_bytes;
    }
    return in_flight_bytes(a) < in_flight_bytes(b);
  };
  const DiskRate* chosen = nullptr;
  for (const DiskRate& rate : disk.rates) {
    if (!fits(rate) || rate.read.value < 0.9 * best) continue;
    if (chosen == nullptr || preferred(rate, *chosen)) chosen = &rate;
  }
  return chosen;
}

}  // namespace moesaic
