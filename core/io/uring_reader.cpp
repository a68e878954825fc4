// AsyncReader over io_uring.
//
// One completion queue entry per read, and a standing read of an eventfd that Wake writes to. The
// ring is set up without SINGLE_ISSUER and DEFER_TASKRUN: both bind it to the thread that uses it
// first, so that another one (the owner, after its I/O thread has ended) could not wait for the
// reads in flight, and their buffers would be written after they were freed. What the two flags
// save is far below the cost of a read of 64 KiB or more; COOP_TASKRUN saves the interrupts too and
// binds nothing (tests/bench/disk_read_bench).
#include <liburing.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/io/reader_backends.h"

namespace moesaic {
namespace {

using Clock = std::chrono::steady_clock;

class UringReader : public AsyncReader {
 public:
  // Takes over the ring and the eventfd.
  UringReader(std::vector<File> files, int depth, const io_uring& ring, int wake_fd)
      : files_(std::move(files)), slots_(depth), ring_(ring), wake_fd_(wake_fd) {
    for (int slot = depth - 1; slot >= 0; --slot) free_.push_back(slot);
  }

  ~UringReader() override {
    // The kernel writes into the buffers of reads in flight: wait for them. Wake ends the eventfd's
    // read.
    closing_ = true;
    Wake();
    std::vector<ReadCompletion> ignored;
    while (wake_armed_ || in_flight() > 0) {
      if (!Block(ignored, Clock::time_point::max())) break;
    }
    io_uring_queue_exit(&ring_);
    close(wake_fd_);
  }
  UringReader(const UringReader&) = delete;
  UringReader& operator=(const UringReader&) = delete;

  ReadBackend backend() const override { return ReadBackend::kUring; }
  bool aligned_only() const override { return true; }
  int free_slots() const override { return static_cast<int>(free_.size()); }

  void Submit(const ReadRequest& request) override {
    CheckRequest(request, files_.size(), true);
    CHECK(!free_.empty());
    const int slot = free_.back();
    free_.pop_back();
    slots_[slot] = {request, 0, 0};
    Start(slot);
  }

  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    const size_t before = out.size();
    bool woken = false;
    if (!wake_armed_) ArmWake();
    Reap(out, woken);
    if (out.size() > before || woken || timeout_us == 0) return;
    const Clock::time_point deadline = timeout_us < 0
                                           ? Clock::time_point::max()
                                           : Clock::now() + std::chrono::microseconds(timeout_us);
    while (out.size() == before && !woken_) {
      if (!Block(out, deadline)) break;
    }
    woken_ = false;
  }

  void Wake() override {
    const uint64_t one = 1;
    // Fails only when the counter is full, and then the waiter has been woken all the more.
    [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof(one));
  }

 private:
  static constexpr uint64_t kWakeTag = UINT64_MAX;
  static constexpr int kMostRetries = 64;

  struct Slot {
    ReadRequest request;
    uint32_t done_bytes = 0;
    int retries = 0;
  };

  size_t in_flight() const { return slots_.size() - free_.size(); }

  io_uring_sqe* NextEntry() {
    // Every entry is submitted at once, so that the queue (of depth + 1 at least) is never full.
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    CHECK(entry != nullptr);
    return entry;
  }

  void SubmitEntry() {
    for (;;) {
      const int n = io_uring_submit(&ring_);
      if (n >= 0) return;
      // EAGAIN and EBUSY: the kernel is short of memory or of room for completions; both pass.
      CHECK(n == -EINTR || n == -EAGAIN || n == -EBUSY);
    }
  }

  void Start(int index) {
    const Slot& slot = slots_[index];
    io_uring_sqe* entry = NextEntry();
    io_uring_prep_read(entry, files_[slot.request.file].fd(),
                       slot.request.destination + slot.done_bytes,
                       slot.request.bytes - slot.done_bytes, slot.request.offset + slot.done_bytes);
    io_uring_sqe_set_data64(entry, static_cast<uint64_t>(index));
    SubmitEntry();
  }

  void ArmWake() {
    io_uring_sqe* entry = NextEntry();
    io_uring_prep_read(entry, wake_fd_, &wake_count_, sizeof(wake_count_), 0);
    io_uring_sqe_set_data64(entry, kWakeTag);
    wake_armed_ = true;
    SubmitEntry();
  }

  // Takes what has finished.
  void Reap(std::vector<ReadCompletion>& out, bool& woken) {
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0) {
      const uint64_t tag = io_uring_cqe_get_data64(entry);
      const int32_t result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      if (tag == kWakeTag) {
        wake_armed_ = false;
        woken = true;
        if (!closing_) ArmWake();
      } else {
        Complete(static_cast<int>(tag), result, out);
      }
    }
  }

  void Complete(int index, int32_t result, std::vector<ReadCompletion>& out) {
    Slot& slot = slots_[index];
    const bool passing = result == -EINTR || result == -EAGAIN;
    if (passing && ++slot.retries <= kMostRetries) return Start(index);
    ReadCompletion completion{slot.request.tag, result};
    if (result >= 0) {
      slot.done_bytes += static_cast<uint32_t>(result);
      // A short read that ends on a block boundary may be continued; any other has met the end of
      // the file.
      const bool may_continue = result > 0 && slot.done_bytes < slot.request.bytes &&
                                slot.done_bytes % kDirectAlignmentBytes == 0;
      if (may_continue && !closing_) return Start(index);
      completion.result = slot.done_bytes;
    }
    free_.push_back(index);
    out.push_back(completion);
  }

  // Waits for an event and takes it. False when the deadline has passed.
  bool Block(std::vector<ReadCompletion>& out, Clock::time_point deadline) {
    io_uring_cqe* entry = nullptr;
    int error;
    if (deadline == Clock::time_point::max()) {
      error = io_uring_wait_cqe(&ring_, &entry);
    } else {
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero()) return false;
      const int64_t ns = std::chrono::nanoseconds(left).count();
      __kernel_timespec timeout{ns / 1'000'000'000, ns % 1'000'000'000};
      error = io_uring_wait_cqe_timeout(&ring_, &entry, &timeout);
    }
    if (error == -ETIME) return false;
    CHECK(error == 0 || error == -EINTR || error == -EAGAIN);
    Reap(out, woken_);
    return true;
  }

  std::vector<File> files_;
  std::vector<Slot> slots_;
  std::vector<int> free_;  // indices of unused slots
  io_uring ring_;
  int wake_fd_;
  uint64_t wake_count_ = 0;  // where the kernel writes the eventfd's counter
  bool wake_armed_ = false;
  bool woken_ = false;
  bool closing_ = false;
};

int OpenRing(unsigned entries, io_uring& ring) {
  // Kernel 5.19; without it a completion interrupts whatever the thread computes.
  const unsigned wanted = IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  int error = io_uring_queue_init(entries, &ring, wanted);
  if (error == -EINVAL) error = io_uring_queue_init(entries, &ring, 0);
  return -error;
}

}  // namespace

std::unique_ptr<AsyncReader> MakeUringReader(std::vector<File>& files, int depth, int& error) {
  io_uring ring;
  // The wake-up read, and one that liburing may need for a timeout on old kernels.
  error = OpenRing(static_cast<unsigned>(depth) + 2, ring);
  if (error != 0) return nullptr;
  const int wake_fd = eventfd(0, EFD_CLOEXEC);
  if (wake_fd < 0) {
    error = errno;
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<UringReader>(std::move(files), depth, ring, wake_fd);
}

}  // namespace moesaic
