#include "core/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "core/base/error.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

struct stat StatOrFail(int fd, const std::filesystem::path& path) {
  struct stat status;
  if (fstat(fd, &status) != 0) {
    Fail(ErrorKind::kIo, "{}: cannot stat: {}", path.string(), ErrnoMessage(errno));
  }
  return status;
}

}  // namespace

std::string ErrnoMessage(int error) {
  const std::string message = std::generic_category().message(error);
  // Nothing else that is said of a failed write hints at where that limit comes from.
  return error == EFBIG ? message + " (the limit on file sizes, `ulimit -f`, or the file system's)"
                        : message;
}

File::File(std::filesystem::path path, int extra_flags) : path_(std::move(path)) {
  // O_NONBLOCK so that opening a FIFO fails below instead of waiting for a writer; cleared again,
  // because io_uring would take it as "fail rather than wait" on some file systems.
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | extra_flags);
  if (fd < 0) {
    const int error = errno;
    const ErrorKind kind =
        error == ENOENT || error == ENOTDIR ? ErrorKind::kNotFound : ErrorKind::kIo;
    Fail(kind, "{}: cannot open: {}", path_.string(), ErrnoMessage(error));
  }
  struct stat status;
  const bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular) {
    close(fd);
    Fail(ErrorKind::kIo, "{}: is not a regular file", path_.string());
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  fd_ = fd;
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

uint64_t File::size_bytes() const { return static_cast<uint64_t>(StatOrFail(fd_, path_).st_size); }

int64_t File::modified_ns() const {
  const struct stat status = StatOrFail(fd_, path_);
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

size_t File::ReadAt(uint64_t offset, std::span<std::byte> destination) const {
  // Linux moves at most 0x7ffff000 bytes per call (read(2)); smaller pieces also keep a signal's
  // delay short.
  constexpr size_t kPieceBytes = size_t{256} << 20;
  size_t done = 0;
  while (done < destination.size()) {
    const size_t piece = std::min(kPieceBytes, destination.size() - done);
    const ssize_t n =
        pread(fd_, destination.data() + done, piece, static_cast<off_t>(offset + done));
    if (n < 0) {
      if (errno == EINTR) continue;
      Fail(ErrorKind::kIo, "{}: reading {} bytes at offset {} failed: {}", path_.string(), piece,
           offset + done, ErrnoMessage(errno));
    }
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

std::string ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes) {
  const File file(path);
  const uint64_t bytes = file.size_bytes();
  if (bytes > max_bytes) {
    Fail(ErrorKind::kCorrupt, "{}: is {}, expected at most {}", path.string(), FormatBytes(bytes),
         FormatBytes(max_bytes));
  }
  std::string text(bytes, '\0');
  text.resize(file.ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace moesaic
