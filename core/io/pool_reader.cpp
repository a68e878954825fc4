// AsyncReader over a few threads that call pread.
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/base/mutex.h"
#include "core/io/reader_backends.h"

namespace moesaic {
namespace {

// Eight reads at a time reach the disk's best rate (tests/bench/disk_read_bench).
constexpr int kMostThreads = 8;

class PoolReader : public AsyncReader {
 public:
  PoolReader(std::vector<File> files, bool direct, int depth, bool scattered)
      : files_(std::move(files)), direct_(direct), depth_(depth) {
    // Of whole packets at scattered places read-ahead would only fetch what nobody asked for.
    for (const File& file : files_) {
      if (!direct && scattered) posix_fadvise(file.fd(), 0, 0, POSIX_FADV_RANDOM);
    }
    try {
      for (int i = 0; i < std::min(depth, kMostThreads); ++i) {
        threads_.emplace_back([this] { Work(); });
      }
    } catch (...) {  // the system makes no more: nobody else joins those that are there
      StopThreads();
      throw;
    }
  }

  ~PoolReader() override { StopThreads(); }
  PoolReader(const PoolReader&) = delete;
  PoolReader& operator=(const PoolReader&) = delete;

  ReadBackend backend() const override {
    return direct_ ? ReadBackend::kThreads : ReadBackend::kBuffered;
  }
  bool aligned_only() const override { return direct_; }
  int free_slots() const override { return depth_ - in_flight_; }

  void Submit(const ReadRequest& request) override {
    CheckRequest(request, files_.size(), direct_);
    CHECK_GT(free_slots(), 0);
    ++in_flight_;
    {
      MutexLock lock(mutex_);
      queue_.push_back(request);
    }
    work_.NotifyOne();
  }

  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point deadline =
        Clock::now() + std::chrono::microseconds(std::max<int64_t>(timeout_us, 0));
    MutexLock lock(mutex_);
    while (finished_.empty() && !woken_ && timeout_us != 0) {
      if (timeout_us < 0) {
        events_.Wait(mutex_);
      } else if (!events_.WaitUntil(mutex_, deadline)) {
        break;
      }
    }
    woken_ = false;
    in_flight_ -= static_cast<int>(finished_.size());
    out.insert(out.end(), finished_.begin(), finished_.end());
    finished_.clear();
  }

  void Wake() override {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    events_.NotifyOne();
  }

 private:
  void StopThreads() {
    {
      MutexLock lock(mutex_);
      stop_ = true;
      queue_.clear();
    }
    work_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Work() {
    pthread_setname_np(pthread_self(), "disk-read");
    for (;;) {
      ReadRequest request;
      {
        MutexLock lock(mutex_);
        while (queue_.empty() && !stop_) work_.Wait(mutex_);
        if (stop_) return;
        request = queue_.front();
        queue_.pop_front();
      }
      const ReadCompletion completion{request.tag, Read(request)};
      {
        MutexLock lock(mutex_);
        finished_.push_back(completion);
      }
      events_.NotifyOne();
    }
  }

  int64_t Read(const ReadRequest& request) const {
    uint32_t done_bytes = 0;
    while (done_bytes < request.bytes) {
      const ssize_t n =
          pread(files_[request.file].fd(), request.destination + done_bytes,
                request.bytes - done_bytes, static_cast<off_t>(request.offset + done_bytes));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return -errno;
      done_bytes += static_cast<uint32_t>(n);
      // The end of the file; with O_DIRECT an odd count means it too, and cannot be continued.
      if (n == 0 || (direct_ && done_bytes % kDirectAlignmentBytes != 0)) break;
    }
    return done_bytes;
  }

  const std::vector<File> files_;
  const bool direct_;
  const int depth_;
  int in_flight_ = 0;  // of the driving thread

  Mutex mutex_;
  CondVar work_;    // queue_ or stop_ has changed
  CondVar events_;  // finished_ or woken_ has changed
  std::deque<ReadRequest> queue_ GUARDED_BY(mutex_);
  std::vector<ReadCompletion> finished_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use everything above
};

}  // namespace

std::unique_ptr<AsyncReader> MakePoolReader(std::vector<File> files, bool direct, int depth,
                                            bool scattered) {
  return std::make_unique<PoolReader>(std::move(files), direct, depth, scattered);
}

}  // namespace moesaic
