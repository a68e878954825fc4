// How close the emulated device keeps to its model on the steady clock: streams of copies against
// latency + bytes / rate, how late a single copy is noticed, and what the emulation itself costs.
// Prints a Markdown table.
//
//   emulated_device_bench [ROUNDS]      (default: 9, after one to warm up)
//
// An idle machine is within a few percent; a busy one is late, because threads get the CPU late.
// CPU seconds are those of the whole process: waiting must cost next to nothing.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/device/emulated_device.h"

namespace moesaic {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Case {
  const char* name;
  EmulatedLink link;
  int copies;
  uint64_t bytes;
  bool both_directions;  // as many copies out on a second stream
  bool one_at_a_time;    // the host waits for each before it queues the next
};

struct Sample {
  double seconds = 0;
  double cpu_seconds = 0;
};

Sample Run(const Case& c, const std::vector<std::byte>& host) {
  EmulatedSystem system;
  EmulatedDeviceOptions options;
  options.capacity_bytes = 2 * c.bytes;
  options.host_to_device = options.device_to_host = c.link;
  EmulatedDevice device(system, options);
  const DeviceBuffer in = *device.Allocate(c.bytes);
  const DeviceBuffer out = *device.Allocate(c.bytes);
  std::vector<std::byte> received(c.bytes);
  {  // touches the memory
    const auto stream = device.CreateStream();
    stream->CopyToDevice(in.span(), std::span(host).first(c.bytes));
    stream->CopyToDevice(out.span(), std::span(host).first(c.bytes));
    ThrowIfFailed(stream->Synchronize());
  }
  const auto to_device = device.CreateStream();
  const auto to_host = device.CreateStream();
  const double cpu_begin = CpuSeconds();
  const Stopwatch watch;
  for (int i = 0; i < c.copies; ++i) {
    to_device->CopyToDevice(in.span(), std::span(host).first(c.bytes));
    if (c.both_directions) to_host->CopyToHost(received, out.span());
    if (c.one_at_a_time) ThrowIfFailed(to_device->Synchronize());
  }
  ThrowIfFailed(to_device->Synchronize());
  ThrowIfFailed(to_host->Synchronize());
  const Sample sample = {watch.seconds(), CpuSeconds() - cpu_begin};
  to_host->CopyToHost(received, in.span());
  ThrowIfFailed(to_host->Synchronize());
  CHECK_EQ(Hash64(received), Hash64(std::span(host).first(c.bytes)));  // the copies have happened
  return sample;
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

void RunAll(int rounds) {
  const std::vector<Case> cases = {
      {"64 x 1 MiB at 2 GB/s", {2e9, 0}, 64, kMiB, false, false},
      {"64 x 1 MiB at 2 GB/s, 10 us latency", {2e9, 10}, 64, kMiB, false, false},
      {"the same in both directions", {2e9, 10}, 64, kMiB, true, false},
      {"1024 x 64 KiB at 2 GB/s, 10 us", {2e9, 10}, 1024, 64 * 1024, false, false},
      {"64 x 1 MiB at 2 GB/s, waited for one by one", {2e9, 0}, 64, kMiB, false, true},
      {"4096 x 4 KiB, no limit", {0, 0}, 4096, 4096, false, false},
  };
  std::vector<std::byte> host(kMiB);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i * 2654435761u >> 24);
  std::vector<std::vector<double>> seconds(cases.size());
  std::vector<std::vector<double>> cpu_seconds(cases.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const Sample sample = Run(cases[i], host);
      if (round < 0) continue;
      seconds[i].push_back(sample.seconds);
      cpu_seconds[i].push_back(sample.cpu_seconds);
    }
  }
  fmt::print(
      "| | model, ms | measured, ms: median (min .. max) | off by | late per copy, us | CPU, ms |\n"
      "|---|---|---|---|---|---|\n");
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const double per_copy =
        c.link.latency_us * 1e-6 +
        (c.link.bytes_per_s > 0 ? static_cast<double>(c.bytes) / c.link.bytes_per_s : 0.0);
    const double model = per_copy * c.copies;
    const double median = Quantile(seconds[i], 0.5);
    const std::string off =
        model > 0 ? fmt::format("{:+.2f}%", 100 * (median / model - 1)) : std::string("-");
    fmt::print("| {} | {:.2f} | {:.2f} ({:.2f} .. {:.2f}) | {} | {:.1f} | {:.2f} |\n", c.name,
               model * 1e3, median * 1e3, Quantile(seconds[i], 0) * 1e3,
               Quantile(seconds[i], 1) * 1e3, off, (median - model) / c.copies * 1e6,
               Quantile(cpu_seconds[i], 0.5) * 1e3);
  }
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    moesaic::RunAll(std::max(argc > 1 ? std::atoi(argv[1]) : 9, 1));
  } catch (const moesaic::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return moesaic::ExitCode(error.kind());
  }
}
