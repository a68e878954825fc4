// Read bandwidth of the disk under a directory by backend, block size and reads in flight. Prints
// Markdown tables: GB/s (median over rounds, half the interquartile distance, share of the best
// rate of the run) and the CPU time that a GB takes. The default packet size and depth of the
// expert loader come from here.
//
//   disk_read_bench [DIRECTORY] [FILE_GIB] [ROUNDS]      (default: the temporary directory, 2, 5)
//
// Reads are at random block-aligned places of a file that is written first and removed at the end.
// O_DIRECT goes past the page cache of this machine; a virtual disk may still be cached by its
// host. For `buffered` and `mapped` the file's pages are dropped before each sample (cold); what
// they read twice within one sample comes from memory, which the file's size keeps rare. A round
// runs all candidates one after the other, so that a slow phase of the machine hits all of them.
// Every block's stamp is checked: the reads have happened.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/units.h"
#include "core/io/async_reader.h"
#include "tests/bench/random_reads.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr double kSampleSeconds = 0.12;

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class TemporaryFile {
 public:
  TemporaryFile(const fs::path& directory, uint64_t bytes)
      : path_(directory / fmt::format("moesaic-disk-read-bench-{}", getpid())) {
    constexpr uint64_t kChunkBytes = 8 << 20;
    std::vector<char> chunk(kChunkBytes);
    std::mt19937_64 random(1);
    for (size_t i = 0; i < chunk.size(); i += 8) {
      const uint64_t value = random();
      std::memcpy(chunk.data() + i, &value, 8);
    }
    std::ofstream out(path_, std::ios::binary);
    for (uint64_t at = 0; at < bytes && out; at += kChunkBytes) {
      StampBlocks(at, std::as_writable_bytes(std::span(chunk)));
      out.write(chunk.data(), static_cast<std::streamsize>(kChunkBytes));
    }
    out.close();
    if (!out) Fail(ErrorKind::kIo, "{}: cannot write {}", path_.string(), FormatBytes(bytes));
    DropFromCache();
  }
  ~TemporaryFile() {
    std::error_code ignored;
    fs::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const fs::path& path() const { return path_; }
  void DropFromCache() const {
    const File file(path_);
    fdatasync(file.fd());
    posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
  }

 private:
  fs::path path_;
};

struct Candidate {
  ReadBackend backend;
  uint32_t block_bytes;
  int depth;
  std::vector<double> rates = {};  // byte/s, one entry a round
  std::vector<double> cpu = {};    // seconds per byte

  static double Quantile(std::vector<double> values, size_t quarter) {
    std::sort(values.begin(), values.end());
    return values[values.size() * quarter / 4];
  }
  double Rate() const { return Quantile(rates, 2); }
};

void Sample(Candidate& candidate, const TemporaryFile& file, uint64_t file_bytes,
            std::mt19937_64& random) {
  const bool direct =
      candidate.backend == ReadBackend::kUring || candidate.backend == ReadBackend::kThreads;
  if (!direct) file.DropFromCache();
  const auto reader = OpenAsyncReader({file.path()}, candidate.backend, candidate.depth);
  RandomReads reads(*reader, file_bytes, candidate.block_bytes, candidate.depth);
  const double cpu_begin = CpuSeconds();
  const Stopwatch watch;
  const uint64_t bytes = reads.Run(kSampleSeconds, random);
  candidate.rates.push_back(static_cast<double>(bytes) / watch.seconds());
  candidate.cpu.push_back((CpuSeconds() - cpu_begin) / static_cast<double>(bytes));
}

void Print(const std::vector<Candidate>& candidates, ReadBackend backend, double best,
           const std::vector<uint32_t>& blocks, const std::vector<int>& depths) {
  fmt::print(
      "\n{}: GB/s +- half the interquartile distance (share of the best), CPU ms per GB\n\n| block "
      "|",
      ReadBackendName(backend));
  for (const int depth : depths) fmt::print(" {} in flight |", depth);
  fmt::print("\n|---|");
  for (size_t i = 0; i < depths.size(); ++i) fmt::print("---|");
  for (const uint32_t block_bytes : blocks) {
    fmt::print("\n| {} |", FormatBytes(block_bytes));
    for (const Candidate& c : candidates) {
      if (c.backend != backend || c.block_bytes != block_bytes) continue;
      const double spread = (Candidate::Quantile(c.rates, 3) - Candidate::Quantile(c.rates, 1)) / 2;
      fmt::print(" {:.2f} +- {:.2f} ({:.0f}%), {:.0f} |", c.Rate() * 1e-9, spread * 1e-9,
                 100 * c.Rate() / best, Candidate::Quantile(c.cpu, 2) * 1e12);
    }
  }
  fmt::print("\n");
}

void Run(const fs::path& directory, uint64_t file_bytes, int rounds) {
  const std::vector<uint32_t> blocks = {64 << 10, 128 << 10, 256 << 10, 512 << 10,
                                        1 << 20,  2 << 20,   4 << 20};
  const std::vector<int> depths = {1, 2, 4, 8, 16, 32};
  const TemporaryFile file(directory, file_bytes);
  std::vector<ReadBackend> backends;
  std::vector<Candidate> candidates;
  for (const ReadBackend backend :
       {ReadBackend::kUring, ReadBackend::kThreads, ReadBackend::kBuffered, ReadBackend::kMapped}) {
    try {
      OpenAsyncReader({file.path()}, backend, 1);
    } catch (const Error& error) {
      fmt::print("{} is left out: {}\n", ReadBackendName(backend), error.what());
      continue;
    }
    backends.push_back(backend);
    for (const uint32_t block_bytes : blocks) {
      for (const int depth : depths) candidates.push_back({backend, block_bytes, depth});
    }
  }
  std::mt19937_64 random(7);
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    for (Candidate& candidate : candidates) {
      Sample(candidate, file, file_bytes, random);
      if (round < 0) {
        candidate.rates.clear();
        candidate.cpu.clear();
      }
    }
  }
  double best = 0;
  for (const Candidate& candidate : candidates) best = std::max(best, candidate.Rate());
  fmt::print("{}: file of {}, {} rounds, {} samples of {} s; best {:.2f} GB/s\n",
             directory.string(), FormatBytes(file_bytes), rounds,
             candidates.size() * static_cast<size_t>(rounds), kSampleSeconds, best * 1e-9);
  for (const ReadBackend backend : backends) Print(candidates, backend, best, blocks, depths);
}

}  // namespace
}  // namespace moesaic

int main(int argc, char** argv) {
  try {
    const std::filesystem::path directory =
        argc > 1 ? argv[1] : std::filesystem::temp_directory_path().string();
    const uint64_t gib = argc > 2 ? std::stoull(argv[2]) : 2;
    const int rounds = argc > 3 ? std::stoi(argv[3]) : 5;
    if (gib < 1 || gib > 4 || rounds < 1) {
      moesaic::Fail(moesaic::ErrorKind::kInvalidArgument,
                    "disk_read_bench [DIRECTORY] [FILE_GIB from 1 to 4] [ROUNDS]");
    }
    moesaic::Run(directory, gib * moesaic::kGiB, rounds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
