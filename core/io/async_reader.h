// AsyncReader: several reads in flight over a fixed set of files.
//
// Thread contract: driven by one thread at a time (a link's I/O thread): Submit, Wait and
// free_slots are called by it alone. Wake may be called from any thread. Another thread may destroy
// the reader once the driving one has stopped using it; the destructor waits for the reads in
// flight, so that no buffer is written afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/named.h"

namespace moesaic {

enum class ReadBackend {
  kAuto,      // io_uring with O_DIRECT; falls back to threads, and to buffered reads where the file
              // system has no O_DIRECT
  kUring,     // io_uring, O_DIRECT
  kThreads,   // a few threads with pread, O_DIRECT
  kBuffered,  // a few threads with pread through the page cache
  kMapped,    // mmap; the copy is a memcpy by the driving thread
};
inline constexpr Named<ReadBackend> kReadBackends[] = {{"auto", ReadBackend::kAuto},
                                                       {"uring", ReadBackend::kUring},
                                                       {"threads", ReadBackend::kThreads},
                                                       {"buffered", ReadBackend::kBuffered},
                                                       {"mapped", ReadBackend::kMapped}};

struct ReadRequest {
  int32_t file = 0;
  uint64_t offset = 0;  // multiple of 4096 when aligned_only()
  uint32_t bytes = 0;   // multiple of 4096 when aligned_only(); may reach past the end of the file
  std::byte* destination =
      nullptr;       // 4 KiB aligned when aligned_only(); stays valid until completion
  uint64_t tag = 0;  // returned with the completion
  // Of a reader over several links (striped_reader.h): a bit for each whose copy of these bytes is
  // known to be damaged.
  uint32_t avoid = 0;
};

struct ReadCompletion {
  uint64_t tag = 0;
  // Bytes read: fewer than asked only at the end of the file. Negative: -errno.
  int64_t result = 0;
  // Of a reader over several links: where it came from: byte i is 1 + the link that gave the i-th
  // eighth (StripePieceBytes, stripe_schedule.h).
  uint64_t from = 0;
};

// What one link of a reader over several has carried since it was opened.
struct ReaderLink {
  std::string name;  // the directory
  uint64_t bytes = 0;
  uint64_t reads = 0;
  uint64_t failed = 0;     // reads that another link took over, or that failed for good
  int64_t busy_us = 0;     // in which at least one read was under way
  double bytes_per_s = 0;  // as measured last; 0: not known yet
  bool set_aside = false;  // its reads failed: the others carry them, and it is tried now and then
};

class AsyncReader {
 public:
  virtual ~AsyncReader() = default;
  virtual ReadBackend backend() const = 0;
  // O_DIRECT rules hold (see ReadRequest).
  virtual bool aligned_only() const = 0;
  // How many more Submit calls are accepted before a completion has to be taken.
  virtual int free_slots() const = 0;
  virtual void Submit(const ReadRequest& request) = 0;
  // Appends finished reads to `out`; blocks until there is at least one, until Wake, or until
  // timeout_us passed (negative: no limit; 0: polls).
  virtual void Wait(std::vector<ReadCompletion>& out, int64_t timeout_us) = 0;
  // Ends the Wait under way, or the next one.
  virtual void Wake() = 0;
  // Of a reader over several links: what each has carried, in place of what `out` had; none
  // otherwise. Any thread.
  virtual void Links(std::vector<ReaderLink>& out) const { out.clear(); }
};

// Opens the files. `depth`: reads in flight at most. Throws Error(kNotFound / kIo) naming the file.
std::unique_ptr<AsyncReader> OpenAsyncReader(const std::vector<std::filesystem::path>& files,
                                             ReadBackend backend, int depth);
// Of one file whose reads are mostly one behind the other: as ReadBackend::kBuffered, but the
// system may read ahead, and keep what it reads in large pages.
std::unique_ptr<AsyncReader> OpenForwardReader(const std::filesystem::path& file, int depth);
const char* ReadBackendName(ReadBackend backend);

}  // namespace moesaic
