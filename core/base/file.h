// File: an open file for positioned reads, and whole small text files.
//
// A File owns its descriptor and is move-only. ReadAt is safe from any thread; the rest belongs to
// the owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

namespace moesaic {

class File {
 public:
  File() = default;
  // Opens for reading; `extra_flags` are open(2) flags such as O_DIRECT. Throws Error(kNotFound)
  // when there is no such file, Error(kIo) when it cannot be opened or is not a regular file.
  explicit File(std::filesystem::path path, int extra_flags = 0);
  ~File();
  File(File&& other) noexcept { *this = std::move(other); }
  File& operator=(File&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  const std::filesystem::path& path() const { return path_; }
  // As fstat says now. Throws Error(kIo).
  uint64_t size_bytes() const;
  int64_t modified_ns() const;

  // Reads until `destination` is full or the file ends; returns the bytes read. Interrupted and
  // short reads are continued. Throws Error(kIo).
  size_t ReadAt(uint64_t offset, std::span<std::byte> destination) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

// The content of a file of at most max_bytes. Throws Error(kNotFound / kIo), or Error(kCorrupt)
// when it is larger.
std::string ReadTextFile(const std::filesystem::path& path, uint64_t max_bytes);

// "Permission denied": what errno value `error` means. Thread-safe, unlike strerror.
std::string ErrnoMessage(int error);

}  // namespace moesaic
