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

LineFile::LineFile(std::filesystem::path path, Start start, FileCalls& calls)
    : calls_(calls), path_(std::move(path)) {
  OpenAndLock();
  try {
    Prepare(start);
  } catch (...) {
    calls_.Close(fd_);
    throw;
  }
}

LineFile::~LineFile() { calls_.Close(fd_); }

void LineFile::OpenAndLock() {
  for (;;) {
    fd_ = Uninterrupted(
        [&] { return calls_.Open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644); });
    if (fd_ < 0) FailErrno("cannot be opened for writing", errno);
    if (Uninterrupted([&] { return calls_.Flock(fd_, LOCK_EX | LOCK_NB); }) != 0) {
      const int error = errno;
      calls_.Close(fd_);
      if (error != EWOULDBLOCK) FailErrno("cannot be locked", error);
      Fail(ErrorKind::kUnavailable, "{}: another process is writing it", path_.string());
    }
    // Whoever had the lock may have renamed or removed the file before it was locked here: lines
    // would go where nobody finds them.
    if (NamesFile(calls_, path_.c_str(), fd_)) return;
    calls_.Close(fd_);
  }
}

void LineFile::Prepare(Start start) {
  struct stat status;
  if (calls_.Fstat(fd_, &status) != 0) FailErrno("cannot be read", errno);
  regular_ = S_ISREG(status.st_mode);
  if (!regular_) return;  // a device; nothing to look at or to cut
  size_bytes_ = static_cast<uint64_t>(status.st_size);
  if (start == Start::kNew && size_bytes_ > 0) {
    Fail(ErrorKind::kInvalidArgument,
         "{}: there is something in it already; --resume goes on with the job that wrote it, "
         "--overwrite throws it away",
         path_.string());
  }
  if (start == Start::kEmpty) {
    if (!Truncate(0)) FailErrno("cannot be emptied", errno);
    size_bytes_ = 0;
  }
  if (start == Start::kGoOn) CutUnfinishedLine();
  if (calls_.Lseek(fd_, static_cast<off_t>(size_bytes_), SEEK_SET) < 0) {
    FailErrno("cannot be written", errno);
  }
}

bool LineFile::Truncate(uint64_t bytes) {
  return Uninterrupted([&] { return calls_.Ftruncate(fd_, static_cast<off_t>(bytes)); }) == 0;
}

void LineFile::FailErrno(const char* what, int error) const {
  Fail(ErrorKind::kIo, "{}: {}: {}", path_.string(), what, ErrnoMessage(error));
}

void LineFile::CutUnfinishedLine() {
  std::vector<char> buffer(kBufferBytes);
  uint64_t end = size_bytes_;
  while (end > 0) {
    const size_t count = static_cast<size_t>(std::min<uint64_t>(end, buffer.size()));
    const ssize_t got = Uninterrupted(
        [&] { return calls_.Pread(fd_, buffer.data(), count, static_cast<off_t>(end - count)); });
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
  if (cut_bytes_ > 0 && !Truncate(end)) {
    FailErrno("its unfinished last line cannot be cut off", errno);
  }
}

void LineFile::Append(std::string_view line) {
  if (append_error_ != 0) FailErrno("cannot be written", append_error_);
  line_.assign(line);
  line_ += '\n';
  size_t written = 0;
  while (written < line_.size()) {
    const ssize_t count = Uninterrupted(
        [&] { return calls_.Write(fd_, line_.data() + written, line_.size() - written); });
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      // Where that fails (no regular file, say), going on cuts the line off.
      if (!Truncate(size_bytes_) ||
          calls_.Lseek(fd_, static_cast<off_t>(size_bytes_), SEEK_SET) < 0) {
        append_error_ = error;
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
  if (sync_error_ == 0 && Uninterrupted([&] { return calls_.Fdatasync(fd_); }) != 0) {
    // EINVAL: what is no file has nothing to flush.
    if (errno != EINVAL) sync_error_ = errno;
  }
  if (sync_error_ != 0) FailErrno("cannot be flushed to disk", sync_error_);
  if (regular_ && !name_is_synced_) SyncDirectory();
  name_is_synced_ = true;
}

void LineFile::SyncDirectory() {
  const std::filesystem::path directory = path_.has_parent_path() ? path_.parent_path() : ".";
  const int fd = Uninterrupted(
      [&] { return calls_.Open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0); });
  if (fd < 0) return;  // One may write into it, but not open it.
  const bool flushed = Uninterrupted([&] { return calls_.Fsync(fd); }) == 0 || errno == EINVAL;
  const int error = errno;
  calls_.Close(fd);
  if (!flushed) FailErrno("its directory cannot be flushed to disk", error);
}

}  // namespace moesaic
