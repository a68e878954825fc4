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
  Descriptor(const fs::path& path, int flags)
      : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)), path_(path) {
    if (fd_ < 0) FailErrno("cannot open");
  }
  ~Descriptor() { close(fd_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int fd() const { return fd_; }
  void Sync() const {
    if (fsync(fd_) != 0) FailErrno("cannot flush to disk");
  }
  [[noreturn]] void FailErrno(const char* what) const {
    Fail(ErrorKind::kIo, "{}: {}: {}", path_.string(), what, ErrnoMessage(errno));
  }
  // Whether the path still names this file.
  bool InPlace() const {
    struct stat mine;
    struct stat there;
    return fstat(fd_, &mine) == 0 && stat(path_.c_str(), &there) == 0 &&
           mine.st_ino == there.st_ino && mine.st_dev == there.st_dev;
  }

 private:
  int fd_;
  fs::path path_;
};

// Locks the temporary file and empties it. False when another writer has just renamed it: then it
// is the finished file, which must not be touched.
bool Claim(const Descriptor& temporary, const fs::path& file) {
  if (flock(temporary.fd(), LOCK_EX | LOCK_NB) != 0) {
    Fail(ErrorKind::kUnavailable, "{}: another process is writing it", file.string());
  }
  if (!temporary.InPlace()) return false;
  if (ftruncate(temporary.fd(), 0) != 0) temporary.FailErrno("cannot empty");
  return true;
}

void WriteAll(const Descriptor& to, std::span<const std::byte> content) {
  for (size_t done = 0; done < content.size();) {
    const ssize_t n = write(to.fd(), content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) to.FailErrno("cannot write");
    done += static_cast<size_t>(n);
  }
}

fs::path DirectoryOf(const fs::path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

}  // namespace

void WriteFileAtomically(const fs::path& file, std::span<const std::byte> content) {
  const fs::path name = file.string() + ".tmp";
  for (;;) {
    const Descriptor temporary(name, O_RDWR | O_CREAT);
    if (!Claim(temporary, file)) continue;
    try {
      WriteAll(temporary, content);
      temporary.Sync();
      if (rename(name.c_str(), file.c_str()) != 0) temporary.FailErrno("cannot rename");
    } catch (const Error&) {
      unlink(name.c_str());
      throw;
    }
    Descriptor(DirectoryOf(file), O_RDONLY | O_DIRECTORY).Sync();
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
