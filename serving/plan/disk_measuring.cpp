// Reading rates of a disk: MeasureDiskFile and its temporary file.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/aligned_buffer.h"
#include "core/base/clock.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/units.h"
#include "serving/plan/machine_profiler.h"
#include "serving/plan/measuring.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlignmentBytes = 4096;

// One (block, depth): reads at random aligned positions until the time is up or the file was
// covered `passes` times.
class DiskRun {
 public:
  DiskRun(const fs::path& file, uint64_t file_bytes, ReadBackend backend, uint32_t block_bytes,
          int depth)
      : positions_(file_bytes / block_bytes),
        block_bytes_(block_bytes),
        depth_(depth),
        buffers_(static_cast<size_t>(depth) * block_bytes),
        submitted_ns_(static_cast<size_t>(depth)),
        reader_(OpenAsyncReader({file}, backend, depth)) {}

  ReadBackend backend() const { return reader_->backend(); }

  // Appends one sample of byte/s and the latencies (us) of its reads.
  void Sample(double seconds, std::vector<double>* rates, std::vector<double>* latencies_us) {
    const uint64_t max_reads = std::max<uint64_t>(positions_ * 4, 8);
    uint64_t submitted = 0;
    uint64_t bytes = 0;
    int in_flight = 0;
    const int64_t begin_ns = clock_.NowNs();
    const int64_t end_ns = begin_ns + static_cast<int64_t>(seconds * 1e9);
    for (int slot = 0; slot < depth_ && submitted < max_reads; ++slot, ++submitted, ++in_flight) {
      Submit(static_cast<size_t>(slot));
    }
    while (in_flight > 0) {
      completions_.clear();
      reader_->Wait(completions_, -1);
      const int64_t now_ns = clock_.NowNs();
      for (const ReadCompletion& completion : completions_) {
        if (completion.result < 0) {
          Fail(ErrorKind::kIo, "reading the disk failed: {}",
               ErrnoMessage(static_cast<int>(-completion.result)));
        }
        const size_t slot = completion.tag;
        bytes += static_cast<uint64_t>(completion.result);
        latencies_us->push_back(static_cast<double>(now_ns - submitted_ns_[slot]) * 1e-3);
        if (now_ns < end_ns && submitted < max_reads) {
          Submit(slot);
          ++submitted;
        } else {
          --in_flight;
        }
      }
    }
    const double elapsed_s = static_cast<double>(clock_.NowNs() - begin_ns) * 1e-9;
    rates->push_back(static_cast<double>(bytes) / elapsed_s);
  }

 private:
  void Submit(size_t slot) {
    ReadRequest request;
    request.offset = random_() % positions_ * block_bytes_;
    request.bytes = block_bytes_;
    request.destination = buffers_.data() + slot * block_bytes_;
    request.tag = slot;
    submitted_ns_[slot] = clock_.NowNs();
    reader_->Submit(request);
  }

  SteadyClock clock_;
  uint64_t positions_;
  uint32_t block_bytes_;
  int depth_;
  AlignedBuffer buffers_;
  std::vector<int64_t> submitted_ns_;
  std::vector<ReadCompletion> completions_;
  std::mt19937_64 random_{20240229};
  std::unique_ptr<AsyncReader> reader_;  // last: it ends before the buffers that it reads into
};

// Asks the kernel to forget the file's pages, so that buffered backends are measured against the
// disk.
void DropFromPageCache(const fs::path& path) {
  const File file(path);
  fdatasync(file.fd());
  posix_fadvise(file.fd(), 0, 0, POSIX_FADV_DONTNEED);
}

}  // namespace

DiskProfile MeasureDiskFile(const fs::path& file, const ProfilerOptions& options,
                            bool drop_cached) {
  const uint64_t file_bytes = File(file).size_bytes() / kAlignmentBytes * kAlignmentBytes;
  if (file_bytes == 0) {
    Fail(ErrorKind::kInvalidArgument, "{}: too small to measure the disk with", file.string());
  }
  std::vector<uint32_t> blocks = {4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
  std::vector<int> depths = {1, 2, 4, 8, 16, 32};
  int samples = 3;
  double sample_s = 0.15;
  if (options.quick) {
    blocks = {64 << 10, 256 << 10, 1 << 20};
    depths = {1, 4, 16};
    samples = 1;
    sample_s = 0.08;
  }
  DiskProfile disk;
  disk.path = file.parent_path().string();
  for (const uint32_t block_bytes : blocks) {
    if (block_bytes > file_bytes) break;
    for (const int depth : depths) {
      options.progress(fmt::format("disk: {}, {} in flight", FormatBytes(block_bytes), depth));
      if (drop_cached) DropFromPageCache(file);
      DiskRun run(file, file_bytes, options.backend, block_bytes, depth);
      disk.backend = ReadBackendName(run.backend());
      std::vector<double> rates;
      std::vector<double> latencies_us;
      for (int sample = 0; sample < samples; ++sample) {
        run.Sample(sample_s, &rates, &latencies_us);
      }
      const std::string how = fmt::format(
          "{} of {:.0f} ms, random aligned reads of {} of {}, {}",
          samples == 1 ? "one run" : fmt::format("median of {} runs", samples), sample_s * 1e3,
          FormatBytes(block_bytes), FormatBytes(file_bytes), disk.backend);
      disk.rates.push_back(
          {block_bytes, depth, Summarise(std::move(rates), "byte/s", how),
           Summarise(std::move(latencies_us), "us", "median of single reads; " + how)});
    }
  }
  return disk;
}

TemporaryFile::TemporaryFile(const fs::path& directory, bool quick) {
  std::error_code error;
  if (!fs::is_directory(directory, error)) {
    Fail(ErrorKind::kNotFound, "--path {}: no such directory", directory.string());
  }
  const fs::space_info space = fs::space(directory, error);
  const uint64_t file_bytes =
      std::min<uint64_t>(uint64_t{quick ? 64u : 1024u} << 20, error ? 0 : space.available / 10) >>
      20 << 20;
  if (file_bytes < (uint64_t{8} << 20)) {
    Fail(ErrorKind::kResourceExhausted,
         "--path {}: too little free space to measure the disk (80 MiB are needed)",
         directory.string());
  }
  std::string name = (directory / ".moesaic_profile_XXXXXX").string();
  const int fd = mkstemp(name.data());
  if (fd < 0) {
    Fail(ErrorKind::kIo, "--path {}: cannot write there: {}", directory.string(),
         ErrnoMessage(errno));
  }
  path_ = name;
  // Random words: a file system or a disk that compresses must not make the numbers look better.
  constexpr size_t kChunkBytes = size_t{1} << 20;
  AlignedBuffer chunk(kChunkBytes);
  std::mt19937_64 random(static_cast<uint64_t>(fd) + 1);
  int failure = 0;
  for (uint64_t written = 0; written < file_bytes && failure == 0;) {
    for (size_t i = 0; i < kChunkBytes / sizeof(uint64_t); ++i) chunk.as<uint64_t>()[i] = random();
    for (size_t done = 0; done < kChunkBytes && failure == 0;) {
      const ssize_t n = write(fd, chunk.data() + done, kChunkBytes - done);
      if (n < 0 && errno != EINTR) failure = errno;
      if (n > 0) done += static_cast<size_t>(n);
    }
    written += kChunkBytes;
  }
  if (failure == 0 && fsync(fd) != 0) failure = errno;
  close(fd);
  if (failure != 0) {
    fs::remove(path_, error);
    Fail(ErrorKind::kIo, "{}: cannot write: {}", path_.string(), ErrnoMessage(failure));
  }
}

TemporaryFile::~TemporaryFile() {
  std::error_code error;
  fs::remove(path_, error);
}

}  // namespace moesaic
