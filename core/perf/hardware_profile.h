// HardwareProfile: the measured constants of one machine, each with its provenance. Written by
// `moesaic profile` (serving/plan/machine_profiler), read by everything that has to predict a time.
//
// Plain data. A profile of another machine is refused by its host fingerprint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/kernel_choice.h"
#include "core/base/topology.h"

namespace moesaic {

// One measured constant.
struct Measured {
  double value = 0;  // the median of the runs
  double low = 0;    // the slowest and the fastest run
  double high = 0;
  std::string unit;  // "byte/s", "flop/s", "us"
  std::string how;   // "median of 5 runs over 256 MiB"
  std::string when;  // UTC, ISO 8601
};

struct DiskRate {
  uint32_t block_bytes = 0;
  int depth = 0;     // reads in flight
  Measured read;     // byte/s
  Measured latency;  // us from submission to completion, of the median read
};

struct DiskProfile {
  std::string path;     // directory that was measured
  std::string backend;  // ReadBackendName
  std::vector<DiskRate> rates;
};

struct MemoryRate {
  int threads = 0;
  Measured read;  // byte/s, streaming reads of memory larger than the caches
};

struct ComputeRate {
  std::string instructions;  // "avx2 f32", "avx512 f32", "avx512_bf16 bf16"
  int threads = 0;
  Measured rate;  // flop/s, a multiply-add counts as two
};

// Copies between host memory and a device, in packets of one size that follow each other.
struct CopyRate {
  uint32_t packet_bytes = 0;
  Measured to_device;         // byte/s
  Measured to_device_loaded;  // byte/s, while the host computes experts
  Measured to_host;           // byte/s
};

// Computing routed experts, each for so many rows. Rates are of weights, so that they say something
// of experts of other sizes: one takes its bytes over that.
struct ExpertRate {
  std::string weights;  // WeightTypeName
  int64_t rows = 0;     // of each expert
  Measured alone;       // byte/s
  Measured loaded;      // byte/s, while experts are copied to the device
};

struct DeviceProfile {
  std::string name;                   // "cuda:0"
  std::string model;                  // "NVIDIA H100 80GB HBM3"
  std::vector<CopyRate> copies;       // ascending packets
  std::vector<ExpertRate> on_host;    // ascending rows of each type
  std::vector<ExpertRate> on_device;  // likewise; none where the device computes nothing

  // The rate to the device under load, in packets of the nearest size; 0 when there is none.
  double copy_bytes_per_s(uint64_t packet_bytes) const;
};

struct HostDescription {
  std::string fingerprint;  // of the fields below, as HostFingerprint makes it
  std::string cpu_model;
  std::vector<std::string> isa_flags;
  int logical_cpus = 0;
  int physical_cores = 0;
  double cpu_quota = 0;  // 0: none
  int numa_nodes = 0;
  uint64_t memory_total_bytes = 0;
};

struct HardwareProfile {
  static constexpr int kVersion = 2;

  HostDescription host;
  std::string created;  // UTC, ISO 8601
  bool quick = false;   // a rough one, of a second or two
  std::vector<DiskProfile> disks;
  std::vector<MemoryRate> memory;  // ascending threads
  std::vector<ComputeRate> compute;
  std::vector<KernelChoice> kernels;  // none where there is nothing to choose
  std::vector<DeviceProfile> devices;

  // The rate of the most threads measured; 0 when there is none.
  double memory_bytes_per_s() const;
  // Null when there is no such device, or another one now.
  const DeviceProfile* DeviceNamed(std::string_view name, std::string_view model) const;
  // The disk profile whose path is a parent of (or equal to) `path`, the nearest one; null when
  // there is none.
  const DiskProfile* DiskFor(const std::filesystem::path& path) const;
};

HostDescription DescribeHost(const Topology& topology);

// A pretty-printed JSON document, and back. `name` is the file in messages. Throws Error: kCorrupt
// (not such a document), kUnsupported (a version that this program does not know).
std::string SerializeProfile(const HardwareProfile& profile);
HardwareProfile ParseProfile(std::string_view json, std::string_view name);

// Writes by way of a temporary file beside it; makes the directory. Throws Error(kIo).
void SaveProfile(const HardwareProfile& profile, const std::filesystem::path& file);

// $XDG_CACHE_HOME/moesaic/profile.json or ~/.cache/moesaic/profile.json. The two arguments are what
// these variables hold ("" when unset).
std::filesystem::path DefaultProfilePath(std::string_view xdg_cache_home, std::string_view home);

// The profile of a file when it is there and of this host; nullopt with the reason in *why
// otherwise. A corrupt file is a reason too: the caller measures again.
std::optional<HardwareProfile> LoadProfileFor(const HostDescription& host,
                                              const std::filesystem::path& file, std::string* why);

}  // namespace moesaic
