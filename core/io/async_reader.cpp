#include "core/io/async_reader.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/io/reader_backends.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// Whether the file can be opened and read with O_DIRECT. Some file systems refuse the flag, others
// take it and fail the read. True as well when the file cannot be opened at all: the caller's open
// reports that.
bool HasDirectIo(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
  if (fd < 0) return errno != EINVAL;
  AlignedBuffer block(kDirectAlignmentBytes);
  const ssize_t n = pread(fd, block.data(), block.bytes(), 0);
  const bool refused = n < 0 && errno == EINVAL;
  close(fd);
  return !refused;
}

std::vector<File> OpenFiles(const std::vector<fs::path>& paths, int flags) {
  std::vector<File> files;
  files.reserve(paths.size());
  for (const fs::path& path : paths) files.emplace_back(path, flags);
  return files;
}

const fs::path* FindWithoutDirectIo(const std::vector<fs::path>& paths) {
  const auto it = std::find_if_not(paths.begin(), paths.end(), HasDirectIo);
  return it == paths.end() ? nullptr : &*it;
}

std::unique_ptr<AsyncReader> OpenDirect(const std::vector<fs::path>& paths, ReadBackend backend,
                                        int depth) {
  std::vector<File> files = OpenFiles(paths, O_DIRECT);
  if (backend == ReadBackend::kThreads) return MakePoolReader(std::move(files), true, depth);
  int error = 0;
  if (auto reader = MakeUringReader(files, depth, error)) return reader;
  if (backend == ReadBackend::kUring) {
    Fail(ErrorKind::kUnsupported,
         "io_uring is not available: {}; use another I/O backend (threads), or allow it (a "
         "container's "
         "seccomp profile, the sysctl kernel.io_uring_disabled)",
         ErrnoMessage(error));
  }
  LogWarn(
      "io_uring is not available ({}): reading with threads instead, which is slower; a "
      "container's "
      "seccomp profile or the sysctl kernel.io_uring_disabled can forbid it (docs/packaging.md)",
      ErrnoMessage(error));
  return MakePoolReader(std::move(files), true, depth);
}

}  // namespace

void CheckRequest(const ReadRequest& request, size_t files, bool aligned_only) {
  CHECK_GE(request.file, 0);
  CHECK_LT(static_cast<size_t>(request.file), files);
  CHECK_GT(request.bytes, 0u);
  CHECK(request.destination != nullptr);
  if (!aligned_only) return;
  CHECK_EQ(request.offset % kDirectAlignmentBytes, 0u);
  CHECK_EQ(request.bytes % kDirectAlignmentBytes, 0u);
  CHECK_EQ(reinterpret_cast<uintptr_t>(request.destination) % kDirectAlignmentBytes, 0u);
}

std::unique_ptr<AsyncReader> OpenAsyncReader(const std::vector<fs::path>& paths,
                                             ReadBackend backend, int depth) {
  CHECK_GE(depth, 1);
  CHECK_LE(depth, 4096);
  if (backend == ReadBackend::kMapped) return MakeMappedReader(OpenFiles(paths, 0), depth);
  if (backend != ReadBackend::kBuffered) {
    const fs::path* without = FindWithoutDirectIo(paths);
    if (without == nullptr) return OpenDirect(paths, backend, depth);
    if (backend != ReadBackend::kAuto) {
      Fail(ErrorKind::kUnsupported,
           "{}: its file system has no O_DIRECT, which the I/O backend \"{}\" needs; use buffered, "
           "mapped "
           "or auto",
           without->string(), ReadBackendName(backend));
    }
    LogWarn(
        "{}: its file system has no O_DIRECT: reading through the page cache, which takes memory "
        "beyond the budgets",
        without->string());
  }
  return MakePoolReader(OpenFiles(paths, 0), false, depth);
}

std::unique_ptr<AsyncReader> OpenForwardReader(const fs::path& file, int depth) {
  CHECK_GE(depth, 1);
  return MakePoolReader(OpenFiles({file}, 0), false, depth, false);
}

const char* ReadBackendName(ReadBackend backend) { return NameOf(kReadBackends, backend); }

}  // namespace moesaic
