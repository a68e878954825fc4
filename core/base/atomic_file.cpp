#include "core/base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "core/base/error.h"
#include "core/base/file.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class Descriptor {
 public:
  Descriptor(FileCalls& calls, const fs::path& path, int flags) : calls_(calls), path_(path) {
    fd_ = Uninterrupted([&] { return calls.Open(path.c_str(), flags | O_CLOEXEC, 0644); });
    if (fd_ < 0) FailErrno("cannot open");
  }
  ~Descriptor() { calls_.Close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  void Sync() const {
    if (Uninterrupted([&] { return calls_.Fsync(fd_); }) != 0) FailErrno("cannot flush to disk");
  }
  void Empty() const {
    if (Uninterrupted([&] { return calls_.Ftruncate(fd_, 0); }) != 0) FailErrno("cannot empty");
  }
  void WriteAll(std::span<const std::byte> content) const {
    for (size_t done = 0; done < content.size();) {
      const ssize_t n = Uninterrupted(
          [&] { return calls_.Write(fd_, content.data() + done, content.size() - done); });
      if (n == 0) errno = ENOSPC;  // a disk that takes nothing
      if (n <= 0) FailErrno("cannot write");
      done += static_cast<size_t>(n);
    }
  }
  // False when another process has the lock.
  bool Lock() const {
    if (Uninterrupted([&] { return calls_.Flock(fd_, LOCK_EX | LOCK_NB); }) == 0) return true;
    if (errno != EWOULDBLOCK) FailErrno("cannot lock");
    return false;
  }
  // Whether the path still names this file.
  bool InPlace() const { return NamesFile(calls_, path_.c_str(), fd_); }
  [[noreturn]] void FailErrno(const char* what) const {
    Fail(ErrorKind::kIo, "{}: {}: {}", path_.string(), what, ErrnoMessage(errno));
  }

 private:
  FileCalls& calls_;
  fs::path path_;
  int fd_ = -1;
};

fs::path DirectoryOf(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

}  // namespace

void WriteFileAtomically(const fs::path& file, std::span<const std::byte> content,
                         FileCalls& calls) {
  const fs::path name = file.string() + ".tmp";
  // Opened first: where that fails, nothing has been replaced.
  const Descriptor directory(calls, DirectoryOf(file), O_RDONLY | O_DIRECTORY);
  for (;;) {
    const Descriptor temporary(calls, name, O_RDWR | O_CREAT);
    if (!temporary.Lock()) {
      Fail(ErrorKind::kUnavailable, "{}: another process is writing it", file.string());
    }
    // Another writer has just renamed it: it is the finished file, which must not be touched.
    if (!temporary.InPlace()) continue;
    try {
      temporary.Empty();
      temporary.WriteAll(content);
      temporary.Sync();
      if (calls.Rename(name.c_str(), file.c_str()) != 0) temporary.FailErrno("cannot rename");
    } catch (const Error&) {
      calls.Unlink(name.c_str());
      throw;
    }
    directory.Sync();
    return;
  }
}

void SaveTextFile(const std::filesystem::path& file, std::string_view text) {
  std::error_code error;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), error);
  if (error) {
    Fail(ErrorKind::kIo, "{}: cannot make the directory: {}", file.parent_path().string(),
         error.message());
  }
  WriteFileAtomically(file, std::as_bytes(std::span(text)));
}

fs::path SetFileAside(const fs::path& file, const char* label) {
  for (int n = 1;; ++n) {
    fs::path aside = fmt::format("{}.{}-{}", file.string(), label, n);
    if (renameat2(AT_FDCWD, file.c_str(), AT_FDCWD, aside.c_str(), RENAME_NOREPLACE) == 0) {
      return aside;
    }
    if (errno != EEXIST) {
      Fail(ErrorKind::kIo, "{}: cannot rename it to {}: {}", file.string(), aside.string(),
           ErrnoMessage(errno));
    }
  }
}

}  // namespace moesaic
