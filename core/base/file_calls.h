// FileCalls: the system calls by which files are written durably. A seam for tests: they pass calls
// that fail, end early or keep what reached the disk, and see what is asked of the kernel and in
// which order. Everybody else uses the system's own.
//
// Each call is that of the same name: the same result, and errno where it failed. Any thread.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cerrno>
#include <cstddef>

namespace moesaic {

class FileCalls {
 public:
  virtual ~FileCalls() = default;

  virtual int Open(const char* path, int flags, mode_t mode);
  virtual int Close(int fd);
  virtual int Flock(int fd, int operation);
  virtual int Fstat(int fd, struct stat* status);
  virtual int Stat(const char* path, struct stat* status);
  virtual ssize_t Pread(int fd, void* to, size_t bytes, off_t offset);
  virtual ssize_t Write(int fd, const void* from, size_t bytes);
  virtual off_t Lseek(int fd, off_t offset, int whence);
  virtual int Ftruncate(int fd, off_t bytes);
  virtual int Fsync(int fd);
  virtual int Fdatasync(int fd);
  virtual int Rename(const char* from, const char* to);
  virtual int Unlink(const char* path);

  // Has no state.
  static FileCalls& System();
};

// The call once more while a signal interrupts it.
template <typename Call>
auto Uninterrupted(const Call& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// Whether the path still names the open file.
bool NamesFile(FileCalls& calls, const char* path, int fd);

}  // namespace moesaic
