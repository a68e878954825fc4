#include "core/base/file_calls.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

namespace moesaic {

int FileCalls::Open(const char* path, int flags, mode_t mode) { return open(path, flags, mode); }
int FileCalls::Close(int fd) { return close(fd); }
int FileCalls::Flock(int fd, int operation) { return flock(fd, operation); }
int FileCalls::Fstat(int fd, struct stat* status) { return fstat(fd, status); }
int FileCalls::Stat(const char* path, struct stat* status) { return stat(path, status); }
ssize_t FileCalls::Pread(int fd, void* to, size_t bytes, off_t offset) {
  return pread(fd, to, bytes, offset);
}
ssize_t FileCalls::Write(int fd, const void* from, size_t bytes) { return write(fd, from, bytes); }
off_t FileCalls::Lseek(int fd, off_t offset, int whence) { return lseek(fd, offset, whence); }
int FileCalls::Ftruncate(int fd, off_t bytes) { return ftruncate(fd, bytes); }
int FileCalls::Fsync(int fd) { return fsync(fd); }
int FileCalls::Fdatasync(int fd) { return fdatasync(fd); }
int FileCalls::Rename(const char* from, const char* to) { return rename(from, to); }
int FileCalls::Unlink(const char* path) { return unlink(path); }

FileCalls& FileCalls::System() {
  static FileCalls calls;
  return calls;
}

bool NamesFile(FileCalls& calls, const char* path, int fd) {
  struct stat open_file;
  struct stat named;
  return calls.Fstat(fd, &open_file) == 0 && calls.Stat(path, &named) == 0 &&
         open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev;
}

}  // namespace moesaic
