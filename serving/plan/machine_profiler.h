// MeasureMachine: fills a HardwareProfile by measuring disk, memory, compute, kernels and GPUs of
// this machine.
//
// Blocking; starts threads of its own and ends them. Call it while nothing else runs: neighbours
// lower what it sees.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "core/base/topology.h"
#include "core/io/async_reader.h"
#include "core/perf/hardware_profile.h"
#include "kernels/cpu/kernels.h"

namespace moesaic {

struct ProfilerOptions {
  // About two seconds instead of about forty: fewer points, shorter runs.
  bool quick = false;
  ReadBackend backend = ReadBackend::kAuto;
  // What is measured now, for a progress line.
  std::function<void(std::string_view stage)> progress = [](std::string_view) {};
};

// `directory` is where reading is measured: a temporary file of at most 1 GiB, and of at most a
// tenth of the free space, is written there and removed. Throws Error(kNotFound, kIo,
// kResourceExhausted) when that is not possible.
HardwareProfile MeasureMachine(const Topology& topology, const std::filesystem::path& directory,
                               const ProfilerOptions& options);

// Reading only, from an existing file (a checkpoint, an expert store); writes nothing.
// `drop_cached`: the kernel forgets the file's cached pages before each point, so that a buffered
// backend is measured against the disk; others who use the file have to read it again.
DiskProfile MeasureDiskFile(const std::filesystem::path& file, const ProfilerOptions& options,
                            bool drop_cached = false);

// What bounds computation on `threads` threads: reading of memory, and multiply-adds of the
// instructions that products with such weights take, operands in registers. Takes about half a
// second and at most half a gigabyte.
struct MachinePeaks {
  double read_bytes_per_s = 0;
  double flop_per_s = 0;
};
MachinePeaks MeasurePeaks(const Topology& topology, Isa isa, WeightType weights, int threads);

// What reads are for: experts that a token may wait for, or a stream in which everything has its
// turn.
enum class ReadUse : uint8_t { kUrgent, kStream };

// The block size and depth to read with: of those that give at least 90% of the best rate, for
// kUrgent the one with the least bytes in flight, because what is wanted urgently waits behind
// them; for kStream the one with the longest blocks, which take the least time of the processor (a
// fifth at 512 KiB of what 64 KiB take, tests/bench/disk_read_bench). `read_bytes`: how long the
// runs are that will be read (an expert, or a matrix of one); blocks that are longer than needed
// for those are left out. nullptr when nothing was measured.
const DiskRate* ChooseDiskRate(const DiskProfile& disk, uint64_t read_bytes = UINT64_MAX,
                               ReadUse use = ReadUse::kUrgent);

}  // namespace moesaic
