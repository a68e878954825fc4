// AsyncReader over mapped files: a read is a memcpy from the page cache, done in Wait by the
// driving thread, one per call, so that an urgent read waits for at most one.
#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/mutex.h"
#include "core/base/units.h"
#include "core/io/reader_backends.h"

#ifndef MADV_POPULATE_READ  // kernel 5.14; the C library's headers may be older
#define MADV_POPULATE_READ 22
#endif

namespace moesaic {
namespace {

class MappedReader : public AsyncReader {
 public:
  MappedReader(std::vector<File> files, int depth) : files_(std::move(files)), depth_(depth) {
    for (const File& file : files_) {
      const uint64_t bytes = file.size_bytes();
      void* data = nullptr;
      if (bytes > 0) {
        data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.fd(), 0);
        if (data == MAP_FAILED) {
          const int error = errno;
          Unmap();
          Fail(ErrorKind::kIo, "{}: cannot map {}: {}", file.path().string(), FormatBytes(bytes),
               ErrnoMessage(error));
        }
      }
      // No read-around on faults: where the disk's read-ahead is set to megabytes, each small read
      // would cost that much. Submit asks for exactly the pages that are wanted.
      if (data != nullptr) madvise(data, bytes, MADV_RANDOM);
      maps_.push_back({static_cast<const std::byte*>(data), bytes});
    }
  }
  ~MappedReader() override { Unmap(); }
  MappedReader(const MappedReader&) = delete;
  MappedReader& operator=(const MappedReader&) = delete;

  ReadBackend backend() const override { return ReadBackend::kMapped; }
  bool aligned_only() const override { return false; }
  int free_slots() const override { return depth_ - static_cast<int>(queue_.size()); }

  void Submit(const ReadRequest& request) override {
    CheckRequest(request, files_.size(), false);
    CHECK_GT(free_slots(), 0);
    queue_.push_back(request);
    // In steps, because the kernel cuts one request to the disk's read-ahead setting, commonly 128
    // KiB.
    constexpr uint32_t kStepBytes = 128 << 10;
    for (uint64_t done_bytes = 0; done_bytes < request.bytes; done_bytes += kStepBytes) {
      const uint64_t step_bytes = std::min<uint64_t>(kStepBytes, request.bytes - done_bytes);
      posix_fadvise(files_[request.file].fd(), static_cast<off_t>(request.offset + done_bytes),
                    static_cast<off_t>(step_bytes), POSIX_FADV_WILLNEED);
    }
  }

  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    using Clock = std::chrono::steady_clock;
    if (!queue_.empty()) {
      out.push_back({queue_.front().tag, Read(queue_.front())});
      queue_.pop_front();
      return;
    }
    const Clock::time_point deadline =
        Clock::now() + std::chrono::microseconds(std::max<int64_t>(timeout_us, 0));
    MutexLock lock(mutex_);
    while (!woken_ && timeout_us != 0) {
      if (timeout_us < 0) {
        events_.Wait(mutex_);
      } else if (!events_.WaitUntil(mutex_, deadline)) {
        break;
      }
    }
    woken_ = false;
  }

  void Wake() override {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    events_.NotifyOne();
  }

 private:
  struct Map {
    const std::byte* data;
    uint64_t bytes;
  };

  int64_t Read(const ReadRequest& request) const {
    const Map& map = maps_[request.file];
    // Touching a page past the end of a file that has shrunk, or one that cannot be read, would
    // raise SIGBUS. The size is asked for again, and MADV_POPULATE_READ turns the rest into an
    // error (and faults all pages in one call).
    uint64_t file_bytes;
    try {
      file_bytes = std::min(map.bytes, files_[request.file].size_bytes());
    } catch (const Error&) {
      return -EIO;
    }
    if (request.offset >= file_bytes) return 0;
    const uint64_t bytes = std::min<uint64_t>(request.bytes, file_bytes - request.offset);
    const uint64_t page_offset = request.offset % kPageBytes;
    void* first_page = const_cast<std::byte*>(map.data + request.offset - page_offset);
    if (madvise(first_page, bytes + page_offset, MADV_POPULATE_READ) != 0 && errno != EINVAL) {
      return errno == ENOMEM ? -ENOMEM : -EIO;
    }
    std::memcpy(request.destination, map.data + request.offset, bytes);
    return static_cast<int64_t>(bytes);
  }

  void Unmap() {
    for (const Map& map : maps_) {
      if (map.data != nullptr) munmap(const_cast<std::byte*>(map.data), map.bytes);
    }
  }

  static constexpr uint64_t kPageBytes = 4096;

  const std::vector<File> files_;
  const int depth_;
  std::vector<Map> maps_;
  std::deque<ReadRequest> queue_;  // of the driving thread

  Mutex mutex_;
  CondVar events_;
  bool woken_ GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<AsyncReader> MakeMappedReader(std::vector<File> files, int depth) {
  return std::make_unique<MappedReader>(std::move(files), depth);
}

}  // namespace moesaic
