#include "core/io/striped_reader.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/mutex.h"
#include "core/base/units.h"
#include "core/io/reader_backends.h"
#include "core/io/throttled_reader.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class StripedReader : public AsyncReader {
 public:
  StripedReader(std::vector<StripedLink> links, std::vector<uint64_t> file_bytes, int depth,
                const Clock* clock)
      : file_bytes_(std::move(file_bytes)),
        depth_(depth),
        clock_(clock != nullptr ? clock : &steady_clock_),
        schedule_(static_cast<int>(links.size())) {
    const auto requests = static_cast<size_t>(depth);
    const size_t parts = requests * links.size();
    links_.reserve(links.size());
    for (StripedLink& link : links) {
      links_.push_back({std::move(link.name), std::move(link.reader)});
      aligned_only_ = aligned_only_ || links_.back().reader->aligned_only();
    }
    const MutexLock lock(mutex_);
    work_.resize(links_.size());
    for (Work& work : work_) work.waiting.reserve(parts);
    requests_.resize(requests);
    parts_.resize(parts);
    for (size_t i = requests; i > 0; --i) free_requests_.push_back(static_cast<int>(i - 1));
    for (size_t i = parts; i > 0; --i) free_parts_.push_back(static_cast<int>(i - 1));
    planned_.reserve(links_.size());
    finished_.reserve(requests);
    StartThreads();
  }

  ~StripedReader() override { StopThreads(); }
  StripedReader(const StripedReader&) = delete;
  StripedReader& operator=(const StripedReader&) = delete;

  ReadBackend backend() const override { return links_.front().reader->backend(); }
  bool aligned_only() const override { return aligned_only_; }
  int free_slots() const override { return depth_ - in_flight_; }

  void Submit(const ReadRequest& request) override {
    CheckRequest(request, file_bytes_.size(), aligned_only_);
    CHECK_GT(free_slots(), 0);
    ++in_flight_;
    uint32_t to_wake = 0;
    {
      const MutexLock lock(mutex_);
      const int index = Take(free_requests_);
      planned_.clear();
      schedule_.Plan(request.bytes, request.avoid, clock_->NowNs(), planned_);
      RequestAt(index) = {request, static_cast<int>(planned_.size()), 0, UINT32_MAX, 0};
      for (const StripeSchedule::Part& part : planned_) {
        to_wake |= Give(part.link, {index, part.offset, part.bytes, 0});
      }
    }
    WakeLinks(to_wake);
  }

  void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) override {
    using WallClock = std::chrono::steady_clock;
    const WallClock::time_point deadline =
        WallClock::now() + std::chrono::microseconds(std::max<int64_t>(timeout_us, 0));
    const MutexLock lock(mutex_);
    while (finished_.empty() && !woken_ && !fatal_ && timeout_us != 0) {
      if (timeout_us < 0) {
        events_.Wait(mutex_);
      } else if (!events_.WaitUntil(mutex_, deadline)) {
        break;
      }
    }
    if (fatal_) std::rethrow_exception(fatal_);
    woken_ = false;
    in_flight_ -= static_cast<int>(finished_.size());
    out.insert(out.end(), finished_.begin(), finished_.end());
    finished_.clear();
  }

  void Wake() override {
    {
      const MutexLock lock(mutex_);
      woken_ = true;
    }
    events_.NotifyOne();
  }

  void Links(std::vector<ReaderLink>& out) const override {
    out.resize(links_.size());
    const MutexLock lock(mutex_);
    const int64_t now_ns = clock_->NowNs();
    for (size_t l = 0; l < links_.size(); ++l) {
      const int link = static_cast<int>(l);
      out[l].name = links_[l].name;
      out[l].bytes = work_[l].bytes;
      out[l].reads = work_[l].reads;
      out[l].failed = work_[l].failed;
      out[l].busy_us = schedule_.busy_ns(link, now_ns) / 1000;
      out[l].bytes_per_s = schedule_.bytes_per_s(link);
      out[l].set_aside = schedule_.set_aside(link);
    }
  }

 private:
  struct Link {
    std::string name;
    std::unique_ptr<AsyncReader> reader;
    std::thread thread = {};  // drives the reader
  };
  // A read, in parts.
  struct Request {
    ReadRequest read;
    int parts_left = 0;
    int64_t error = 0;       // of a part that no link could read
    uint32_t end_bytes = 0;  // what there is of it ends here, where it ends early
    uint64_t from = 0;       // ReadCompletion
  };
  struct Part {
    int request = 0;
    uint32_t offset = 0;  // in the request
    uint32_t bytes = 0;
    uint32_t tried = 0;  // links that could not read it
  };
  // What a link has to do and has done.
  struct Work {
    std::vector<int> waiting = {};  // parts, oldest first
    uint64_t bytes = 0;
    uint64_t reads = 0;
    uint64_t failed = 0;
    bool said = false;  // that it fails; until it is back
  };

  static int Take(std::vector<int>& free) {
    CHECK(!free.empty());
    const int index = free.back();
    free.pop_back();
    return index;
  }
  Request& RequestAt(int index) REQUIRES(mutex_) { return requests_[static_cast<size_t>(index)]; }
  Part& PartAt(int index) REQUIRES(mutex_) { return parts_[static_cast<size_t>(index)]; }

  // Returns the link's bit, for WakeLinks.
  uint32_t Give(int link, const Part& part) REQUIRES(mutex_) {
    const int index = Take(free_parts_);
    PartAt(index) = part;
    work_[static_cast<size_t>(link)].waiting.push_back(index);
    return uint32_t{1} << link;
  }

  void WakeLinks(uint32_t mask) {
    for (size_t l = 0; l < links_.size(); ++l) {
      if ((mask >> l & 1) != 0) links_[l].reader->Wake();
    }
  }

  void StartThreads() REQUIRES(mutex_) {
    try {
      for (size_t l = 0; l < links_.size(); ++l) {
        links_[l].thread = std::thread([this, l] { LinkThread(l); });
      }
    } catch (...) {  // the system makes no more: nobody else joins those that are there
      mutex_.Unlock();
      StopThreads();
      mutex_.Lock();
      throw;
    }
  }

  void StopThreads() EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    WakeLinks(UINT32_MAX);
    for (Link& link : links_) {
      if (link.thread.joinable()) link.thread.join();
    }
  }

  void LinkThread(size_t l) EXCLUDES(mutex_) {
    pthread_setname_np(pthread_self(), fmt::format("expert-link-{}", l).c_str());
    try {
      LinkLoop(static_cast<int>(l), *links_[l].reader);
    } catch (...) {
      const MutexLock lock(mutex_);
      fatal_ = std::current_exception();
      events_.NotifyAll();
    }
  }

  void LinkLoop(int link, AsyncReader& reader) EXCLUDES(mutex_) {
    std::vector<ReadRequest> reads;
    std::vector<ReadCompletion> completions;
    reads.reserve(static_cast<size_t>(std::max(reader.free_slots(), 1)));
    completions.reserve(reads.capacity());
    for (;;) {
      if (!CollectReads(link, reader.free_slots(), reads)) return;
      for (const ReadRequest& read : reads) reader.Submit(read);
      completions.clear();
      reader.Wait(completions, -1);
      if (completions.empty()) continue;
      uint32_t to_wake = 0;
      {
        const MutexLock lock(mutex_);
        for (const ReadCompletion& completion : completions) {
          to_wake |= Complete(link, static_cast<int>(completion.tag), completion.result);
        }
        if (!finished_.empty()) events_.NotifyOne();
      }
      WakeLinks(to_wake);
    }
  }

  // False when the thread is to end.
  bool CollectReads(int link, int room, std::vector<ReadRequest>& reads) EXCLUDES(mutex_) {
    reads.clear();
    const MutexLock lock(mutex_);
    if (stop_) return false;
    std::vector<int>& waiting = work_[static_cast<size_t>(link)].waiting;
    const size_t taken = std::min(waiting.size(), static_cast<size_t>(std::max(room, 0)));
    for (size_t i = 0; i < taken; ++i) {
      const int index = waiting[i];
      const Part& part = PartAt(index);
      const ReadRequest& whole = RequestAt(part.request).read;
      reads.push_back({.file = whole.file,
                       .offset = whole.offset + part.offset,
                       .bytes = part.bytes,
                       .destination = whole.destination + part.offset,
                       .tag = static_cast<uint64_t>(index)});
    }
    waiting.erase(waiting.begin(), waiting.begin() + static_cast<std::ptrdiff_t>(taken));
    return true;
  }

  // How much of the part the file has.
  uint32_t BytesThere(const ReadRequest& read, const Part& part) const {
    const uint64_t begin = read.offset + part.offset;
    const uint64_t end = file_bytes_[static_cast<size_t>(read.file)];
    return begin >= end ? 0 : static_cast<uint32_t>(std::min<uint64_t>(part.bytes, end - begin));
  }

  static uint64_t PiecesFrom(int link, const Part& part, uint32_t read_bytes) {
    const uint32_t piece_bytes = StripePieceBytes(read_bytes);
    uint64_t from = 0;
    for (uint32_t at = part.offset; at < part.offset + part.bytes; at += piece_bytes) {
      from |= static_cast<uint64_t>(link + 1) << (8 * (at / piece_bytes));
    }
    return from;
  }

  // Returns the links that have something new to do.
  uint32_t Complete(int link, int index, int64_t result) REQUIRES(mutex_) {
    Part part = PartAt(index);
    free_parts_.push_back(index);
    Request& request = RequestAt(part.request);
    Work& work = work_[static_cast<size_t>(link)];
    const bool ok = result >= static_cast<int64_t>(BytesThere(request.read, part));
    const int64_t now_ns = clock_->NowNs();
    const StripeSchedule::Change change = schedule_.Done(link, part.bytes, ok, now_ns);
    ++work.reads;
    if (ok) {
      work.bytes += static_cast<uint64_t>(result);
      request.from |= PiecesFrom(link, part, request.read.bytes);
      if (change == StripeSchedule::Change::kBack) {
        work.said = false;
        LogInfo("{} can be read again", links_[static_cast<size_t>(link)].name);
      }
    } else {
      ++work.failed;
      part.tried |= uint32_t{1} << link;
      const int other = schedule_.TakeOver(part.bytes, part.tried, request.read.avoid, now_ns);
      SayFailed(link, other, result);
      if (other >= 0) return Give(other, part);
      if (result < 0) {
        request.error = result;
      } else {
        request.end_bytes =
            std::min(request.end_bytes, part.offset + static_cast<uint32_t>(result));
      }
    }
    if (--request.parts_left == 0) Finish(part.request);
    return 0;
  }

  void Finish(int index) REQUIRES(mutex_) {
    const Request& request = RequestAt(index);
    const Part whole = {index, 0, request.read.bytes, 0};
    const int64_t there = std::min(BytesThere(request.read, whole), request.end_bytes);
    finished_.push_back(
        {request.read.tag, request.error < 0 ? request.error : there, request.from});
    free_requests_.push_back(index);
  }

  void SayFailed(int link, int other, int64_t result) REQUIRES(mutex_) {
    Work& work = work_[static_cast<size_t>(link)];
    if (work.said || other < 0) return;  // who asked says that nobody could read it
    work.said = true;
    LogWarn("{}: a read failed ({}); what it cannot give is read from {} until it can",
            links_[static_cast<size_t>(link)].name,
            result < 0 ? ErrnoMessage(static_cast<int>(-result)) : "its file has become shorter",
            links_[static_cast<size_t>(other)].name);
  }

  const std::vector<uint64_t> file_bytes_;
  const int depth_;
  const SteadyClock steady_clock_{};
  const Clock* const clock_;
  bool aligned_only_ = false;
  int in_flight_ = 0;  // of the driving thread

  mutable Mutex mutex_;
  CondVar events_;  // finished_, woken_ or fatal_ has changed
  StripeSchedule schedule_ GUARDED_BY(mutex_);
  std::vector<Work> work_ GUARDED_BY(mutex_);         // [links]
  std::vector<Request> requests_ GUARDED_BY(mutex_);  // [depth]
  std::vector<Part> parts_ GUARDED_BY(mutex_);        // [depth, links]
  std::vector<int> free_requests_ GUARDED_BY(mutex_);
  std::vector<int> free_parts_ GUARDED_BY(mutex_);
  std::vector<StripeSchedule::Part> planned_ GUARDED_BY(mutex_);  // scratch
  std::vector<ReadCompletion> finished_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::exception_ptr fatal_ GUARDED_BY(mutex_);
  std::vector<Link> links_;  // last: their threads use everything above
};

// Of each file, the same in all replicas.
std::vector<uint64_t> CommonSizes(std::span<const std::vector<fs::path>> replicas) {
  std::vector<uint64_t> sizes;
  sizes.reserve(replicas.front().size());
  for (const fs::path& path : replicas.front()) sizes.push_back(File(path).size_bytes());
  for (const std::vector<fs::path>& files : replicas) {
    CHECK_EQ(files.size(), sizes.size());
    for (size_t f = 0; f < files.size(); ++f) {
      const uint64_t bytes = File(files[f]).size_bytes();
      if (bytes == sizes[f]) continue;
      Fail(ErrorKind::kCorrupt,
           "{} has {} bytes and {} has {}: they are not the same file; copy it again, or name one "
           "place only",
           replicas.front()[f].string(), sizes[f], files[f].string(), bytes);
    }
  }
  return sizes;
}

}  // namespace

std::unique_ptr<AsyncReader> MakeStripedReader(std::vector<StripedLink> links,
                                               std::vector<uint64_t> file_bytes, int depth,
                                               const Clock* clock) {
  CHECK(!links.empty());
  return std::make_unique<StripedReader>(std::move(links), std::move(file_bytes), depth, clock);
}

std::unique_ptr<AsyncReader> OpenStripedReader(std::span<const std::vector<fs::path>> replicas,
                                               std::span<const RemoteStore> remotes,
                                               ReadBackend backend, int depth,
                                               uint64_t bytes_per_s) {
  CHECK(!replicas.empty());
  std::vector<uint64_t> sizes = CommonSizes(replicas);
  std::vector<StripedLink> links;
  links.reserve(replicas.size() + remotes.size());
  const auto add = [&](std::string name, std::unique_ptr<AsyncReader> reader) {
    if (bytes_per_s > 0) {
      reader = MakeThrottledReader(std::move(reader), static_cast<double>(bytes_per_s));
    }
    links.push_back({std::move(name), std::move(reader)});
  };
  for (const std::vector<fs::path>& files : replicas) {
    CHECK(!files.empty());
    add(files.front().parent_path().string(), OpenAsyncReader(files, backend, depth));
  }
  for (const RemoteStore& remote : remotes) {
    CHECK_EQ(sizes.size(), size_t{1});
    add(ExpertPeerName(remote.peer), MakeRemoteReader(remote, depth));
  }
  const int total_depth = depth * static_cast<int>(links.size());
  return MakeStripedReader(std::move(links), std::move(sizes), total_depth);
}

}  // namespace moesaic
