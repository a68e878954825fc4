// The measuring loops of MeasureMachine. Internal to serving/plan.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/perf/hardware_profile.h"

namespace moesaic {

inline double AsDouble(int64_t value) { return static_cast<double>(value); }

std::string UtcNow();  // "2026-01-31T12:00:00Z"

// The median and the range of the samples. CHECKs that there is one.
Measured Summarise(std::vector<double> samples, std::string unit, std::string how);

// flop/s of a loop of peak_kernels.h on `threads` threads, pinned to cpus in order.
Measured MeasurePeak(float (*run)(int64_t iterations), int64_t multiply_adds, int threads,
                     const std::vector<int>& cpus, bool quick);

// byte/s of streaming reads; each thread reads memory that it touched first. `usable_memory_bytes`
// bounds what is taken (a quarter at most).
Measured MeasureMemoryRead(int threads, const std::vector<int>& cpus, uint64_t usable_memory_bytes,
                           bool quick);

// A file of incompressible bytes on disk and not in the page cache, removed by the destructor.
// Throws Error(kIo, kResourceExhausted).
class TemporaryFile {
 public:
  TemporaryFile(const std::filesystem::path& directory, bool quick);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace moesaic
