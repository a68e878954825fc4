// How fast experts get to a GPU and back: copies of packets, of experts and of large pieces, from
// pinned and from ordinary memory, one way and both ways, as a share of the pinned peak of the same
// run. Prints a Markdown table.
//
//   cuda_copy_bench [ROUNDS [DEVICE]]      (default: 9, after one to warm up; cuda:0)
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/device/cuda_device.h"
#include "core/device/pinned_host_pool.h"

namespace moesaic {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kPeakBytes = 256 * kMiB;  // of the copy that gives the peak

enum class Way { kToDevice, kToHost, kBoth };

struct Setting {
  const char* name;
  uint64_t packet_bytes;
  bool pinned;
  Way way;
};

class Bench {
 public:
  Bench(Device& device, int rounds)
      : rounds_(rounds),
        pool_(2 * kPeakBytes, device.numa_node(), device.host_pinner()),
        ordinary_(2 * kPeakBytes),
        in_(*device.Allocate(kPeakBytes)),
        out_(*device.Allocate(kPeakBytes)),
        sending_(device.CreateStream()),
        receiving_(device.CreateStream()),
        pinned_(*pool_.Allocate(2 * kPeakBytes)) {
    if (!pool_.pinned()) fmt::print("NOT PINNED: {}\n\n", pool_.why_not_pinned()->what());
    std::memset(pinned_.data(), 1, 2 * kPeakBytes);
    std::memset(ordinary_.data(), 1, 2 * kPeakBytes);
  }

  // Bytes per second of each direction: median and half the distance of the quartiles.
  struct Rate {
    double median = 0;
    double spread = 0;
  };
  Rate Measure(const Setting& s) {
    std::vector<double> rates;
    for (int round = 0; round <= rounds_; ++round) {
      const double rate = Once(s);
      if (round > 0) rates.push_back(rate);
    }
    std::sort(rates.begin(), rates.end());
    const size_t n = rates.size();
    return {rates[n / 2], (rates[n * 3 / 4] - rates[n / 4]) / 2};
  }

  // What came back is what was sent.
  void Verify() {
    for (uint64_t i = 0; i < kPeakBytes; ++i) pinned_.data()[i] = static_cast<std::byte>(i * 7);
    sending_->CopyToDevice(in_.span(), pinned_.span().first(kPeakBytes));
    sending_->CopyToHost(pinned_.span().subspan(kPeakBytes, kPeakBytes), in_.span());
    ThrowIfFailed(sending_->Synchronize());
    CHECK_EQ(std::memcmp(pinned_.data(), pinned_.data() + kPeakBytes, kPeakBytes), 0);
  }

 private:
  double Once(const Setting& s) {
    std::byte* host = s.pinned ? pinned_.data() : ordinary_.data();
    const uint64_t total_bytes = s.pinned ? kPeakBytes : kPeakBytes / 4;
    const int64_t begin_ns = clock_.NowNs();
    for (uint64_t at = 0; at + s.packet_bytes <= total_bytes; at += s.packet_bytes) {
      if (s.way != Way::kToHost) {
        sending_->CopyToDevice(in_.Subspan(at, s.packet_bytes), {host + at, s.packet_bytes});
      }
      if (s.way != Way::kToDevice) {
        receiving_->CopyToHost({host + kPeakBytes + at, s.packet_bytes},
                               out_.Subspan(at, s.packet_bytes));
      }
    }
    ThrowIfFailed(sending_->Synchronize());
    ThrowIfFailed(receiving_->Synchronize());
    const uint64_t moved_bytes = total_bytes / s.packet_bytes * s.packet_bytes;
    return static_cast<double>(moved_bytes) /
           (static_cast<double>(clock_.NowNs() - begin_ns) * 1e-9);
  }

  const int rounds_;
  const SteadyClock clock_;
  PinnedHostPool pool_;
  std::vector<std::byte> ordinary_;
  DeviceBuffer in_, out_;
  std::unique_ptr<Stream> sending_, receiving_;
  HostBuffer pinned_;
};

int Main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  const int ordinal = argc > 2 ? std::atoi(argv[2]) : 0;
  const CudaMachine machine = FindCudaDevices();
  if (machine.devices.empty()) {
    fmt::print("SKIPPED: {}\n", machine.why_none);
    return 0;
  }
  const auto device =
      CreateCudaDevice({.ordinal = ordinal, .capacity_bytes = 2 * kPeakBytes + kMiB});
  const CudaDeviceInfo& info = machine.devices[static_cast<size_t>(ordinal)];
  fmt::print("{} ({}), NUMA node {}, {} copy engines; {} rounds\n\n", info.name, device->name(),
             info.numa_node, info.copy_engines, rounds);
  Bench bench(*device, rounds);
  bench.Verify();
  const double peak_in = bench.Measure({"", kPeakBytes, true, Way::kToDevice}).median;
  const double peak_out = bench.Measure({"", kPeakBytes, true, Way::kToHost}).median;
  fmt::print("Pinned peak, one copy of 256 MiB: {:.2f} GB/s in, {:.2f} GB/s out\n\n",
             peak_in * 1e-9, peak_out * 1e-9);
  fmt::print("| copies | GB/s | spread | share of the peak |\n|---|---|---|---|\n");
  for (const Setting& s : {
           Setting{"64 KiB in, pinned", 64 * kKiB, true, Way::kToDevice},
           Setting{"256 KiB in, pinned", 256 * kKiB, true, Way::kToDevice},
           Setting{"1 MiB in, pinned", kMiB, true, Way::kToDevice},
           Setting{"2.25 MiB in, pinned (an int4 expert of Qwen3-30B-A3B)", 2304 * kKiB, true,
                   Way::kToDevice},
           Setting{"9 MiB in, pinned (a bf16 expert of Qwen3-30B-A3B)", 9 * kMiB, true,
                   Way::kToDevice},
           Setting{"1 MiB out, pinned", kMiB, true, Way::kToHost},
           Setting{"1 MiB in and out at once, pinned (per direction)", kMiB, true, Way::kBoth},
           Setting{"1 MiB in, ordinary memory", kMiB, false, Way::kToDevice},
           Setting{"1 MiB out, ordinary memory", kMiB, false, Way::kToHost},
       }) {
    const Bench::Rate rate = bench.Measure(s);
    const double peak = s.way == Way::kToHost ? peak_out : peak_in;
    fmt::print("| {} | {:.2f} | {:.2f} | {:.1f}% |\n", s.name, rate.median * 1e-9,
               rate.spread * 1e-9, 100 * rate.median / peak);
  }
  return 0;
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    return moesaic::Main(argc, argv);
  } catch (const moesaic::Error& error) {
    fmt::print(stderr, "cuda_copy_bench: {}\n", error.what());
    return moesaic::ExitCode(error.kind());
  }
}
