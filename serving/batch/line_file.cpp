#include "serving/batch/line_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "core/base/error.h"

namespace moesaic {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;

}  // namespace

LineReader::LineReader(const std::filesystem::path& path, uint64_t max_line_bytes)
    : file_(path), max_line_bytes_(max_line_bytes), buffer_(kBufferBytes) {}

bool LineReader::Fill() {
  buffered_ = file_.ReadAt(offset_, std::as_writable_bytes(std::span(buffer_)));
  offset_ += buffered_;
  at_ = 0;
  return buffered_ > 0;
}

bool LineReader::Next(std::string* line) {
  line->clear();
  too_long_ = false;
  whole_ = false;
  bool any = false;
  while (!whole_ && (at_ < buffered_ || Fill())) {
    any = true;
    const char* const begin = buffer_.data() + at_;
    const void* const newline = std::memchr(begin, '\n', buffered_ - at_);
    whole_ = newline != nullptr;
    const size_t count =
        whole_ ? static_cast<size_t>(static_cast<const char*>(newline) - begin) : buffered_ - at_;
    const size_t room = static_cast<size_t>(max_line_bytes_) - line->size();
    line->append(begin, std::min(count, room));
    too_long_ = too_long_ || count > room;
    at_ += count + (whole_ ? 1 : 0);
  }
  if (!any) return false;
  ++line_number_;
  if (whole_ && line->ends_with('\r')) line->pop_back();
  return true;
}

LineFile::LineFile(std::filesystem::path path, Start start) : path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) FailErrno("cannot be opened for writing", errno);
  try {
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      Fail(ErrorKind::kUnavailable, "{}: another process is writing it", path_.string());
    }
    struct stat status;
    if (fstat(fd_, &status) != 0) FailErrno("cannot be read", errno);
    if (!S_ISREG(status.st_mode)) return;  // a device; nothing to look at or to cut
    size_bytes_ = static_cast<uint64_t>(status.st_size);
    if (start == Start::kNew && size_bytes_ > 0) {
      Fail(ErrorKind::kInvalidArgument,
           "{}: there is something in it already; --resume goes on with the job that wrote it, "
           "--overwrite throws it away",
           path_.string());
    }
    if (start == Start::kEmpty) {
      if (ftruncate(fd_, 0) != 0) FailErrno("cannot be emptied", errno);
      size_bytes_ = 0;
    }
    if (start == Start::kGoOn) CutUnfinishedLine();
    if (lseek(fd_, static_cast<off_t>(size_bytes_), SEEK_SET) < 0) {
      FailErrno("cannot be written", errno);
    }
  } catch (...) {
    close(fd_);
    throw;
  }
}

LineFile::~LineFile() { close(fd_); }

void LineFile::FailErrno(const char* what, int error) const {
  Fail(ErrorKind::kIo, "{}: {}: {}", path_.string(), what, ErrnoMessage(error));
}

void LineFile::CutUnfinishedLine() {
  std::vector<char> buffer(kBufferBytes);
  uint64_t end = size_bytes_;
  while (end > 0) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(end, buffer.size()));
    const ssize_t got = pread(fd_, buffer.data(), count, static_cast<off_t>(end - count));
    if (got < 0 && errno == EINTR) continue;
    if (got != static_cast<ssize_t>(count)) FailErrno("cannot be read", got < 0 ? errno : EIO);
    const void* const newline = memrchr(buffer.data(), '\n', count);
    if (newline != nullptr) {
      end -= count - static_cast<size_t>(static_cast<const char*>(newline) + 1 - buffer.data());
      break;
    }
    end -= count;
  }
  cut_bytes_ = size_bytes_ - end;
  size_bytes_ = end;
  if (cut_bytes_ > 0 && ftruncate(fd_, static_cast<off_t>(end)) != 0) {
    FailErrno("its unfinished last line cannot be cut off", errno);
  }
}

void LineFile::Append(std::string_view line) {
  line_.assign(line);
  line_ += '\n';
  size_t written = 0;
  while (written < line_.size()) {
    const ssize_t count = write(fd_, line_.data() + written, line_.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      // Where even that fails (no regular file), going on cuts the line off.
      if (ftruncate(fd_, static_cast<off_t>(size_bytes_)) == 0) {
        lseek(fd_, static_cast<off_t>(size_bytes_), SEEK_SET);
      }
      FailErrno("cannot be written", error);
    }
    written += static_cast<size_t>(count);
  }
  size_bytes_ += line_.size();
}

bool LineFile::InPlace() const {
  struct stat mine;
  struct stat there;
  return fstat(fd_, &mine) == 0 && stat(path_.c_str(), &there) == 0 &&
         mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
}

void LineFile::Sync() {
  // EINVAL: what is no file has nothing to flush.
  if (fdatasync(fd_) != 0 && errno != EINVAL) FailErrno("cannot be flushed to disk", errno);
}

}  // namespace moesaic
