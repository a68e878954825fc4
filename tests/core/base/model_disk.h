// ModelDisk: one directory in memory behind FileCalls, which knows what has been flushed and so
// what a power cut may leave: of a file what it held when it was last flushed, or held at any
// moment since; of the directory likewise, independently of its files. Calls can be made to fail,
// to be interrupted and to write little at a time. One thread.
#pragma once

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/file_calls.h"

namespace moesaic {

class ModelDisk final : public FileCalls {
 public:
  explicit ModelDisk(std::string directory = ".") : directory_(std::move(directory)) {}

  // Asked before each call, with its name, the file and its number from 0: an errno, or 0.
  std::function<int(const std::string& call, int number)> before;
  std::function<void()> after;        // each call
  size_t most_write_bytes = 1 << 20;  // of one call
  const std::vector<std::string>& log() const { return log_; }
  int open_files() const { return static_cast<int>(open_.size()); }

  // --- what others do, or see
  // On the disk, flushed.
  void Put(const std::string& path, const std::string& content) {
    files_.push_back({{content}});
    names_.back()[path] = files_.size() - 1;
    names_ = {names_.back()};
  }
  void Move(const std::string& from, const std::string& to) {
    Names names = names_.back();
    names[to] = names.at(from);
    names.erase(from);
    names_.push_back(std::move(names));
  }
  // What another process reads.
  std::optional<std::string> Read(const std::string& path) const {
    const auto found = names_.back().find(path);
    if (found == names_.back().end()) return std::nullopt;
    return files_[found->second].versions.back();
  }
  // All that may be found after a power cut.
  std::set<std::optional<std::string>> AfterPowerCut(const std::string& path) const {
    std::set<std::optional<std::string>> contents;
    for (const Names& names : names_) {
      const auto found = names.find(path);
      if (found == names.end()) {
        contents.insert(std::nullopt);
        continue;
      }
      for (const std::string& version : files_[found->second].versions) contents.insert(version);
    }
    return contents;
  }

  // --- FileCalls
  int Open(const char* path, int flags, mode_t /*mode*/) override {
    return Call<int>(std::string("open ") + path, [&] {
      Descriptor descriptor{path, std::nullopt, 0};
      if ((flags & O_DIRECTORY) == 0) {
        if (!Read(path)) {
          if ((flags & O_CREAT) == 0) return Failed(ENOENT);
          files_.push_back({{""}});
          Names names = names_.back();
          names[path] = files_.size() - 1;
          names_.push_back(std::move(names));
        }
        descriptor.file = names_.back()[path];
      }
      open_[next_fd_] = descriptor;
      return next_fd_++;
    });
  }
  int Close(int fd) override {
    const int result = Call<int>(Named("close", fd), [] { return 0; });
    for (File& file : files_) {
      if (file.locked_by == fd) file.locked_by = -1;
    }
    open_.erase(fd);  // also when it failed
    return result;
  }
  int Flock(int fd, int /*operation*/) override {
    return Call<int>(Named("flock", fd), [&] {
      File& file = Of(fd);
      if (file.locked_by >= 0 && file.locked_by != fd) return Failed(EWOULDBLOCK);
      file.locked_by = fd;
      return 0;
    });
  }
  int Fstat(int fd, struct stat* status) override {
    return Call<int>(Named("fstat", fd), [&] { return Fill(*open_.at(fd).file, status); });
  }
  int Stat(const char* path, struct stat* status) override {
    return Call<int>(std::string("stat ") + path, [&] {
      return Read(path) ? Fill(names_.back().at(path), status) : Failed(ENOENT);
    });
  }
  ssize_t Pread(int fd, void* to, size_t bytes, off_t offset) override {
    return Call<ssize_t>(Named("pread", fd), [&]() -> ssize_t {
      const std::string& content = Of(fd).versions.back();
      const auto begin = std::min(static_cast<size_t>(offset), content.size());
      return static_cast<ssize_t>(content.copy(static_cast<char*>(to), bytes, begin));
    });
  }
  ssize_t Write(int fd, const void* from, size_t bytes) override {
    return Call<ssize_t>(Named("write", fd), [&]() -> ssize_t {
      size_t& at = open_.at(fd).offset;
      const size_t count = std::min(bytes, most_write_bytes);
      std::string content = Of(fd).versions.back();
      if (content.size() < at + count) content.resize(at + count);
      content.replace(at, count, static_cast<const char*>(from), count);
      Of(fd).versions.push_back(std::move(content));
      at += count;
      return static_cast<ssize_t>(count);
    });
  }
  off_t Lseek(int fd, off_t offset, int /*whence*/) override {
    return Call<off_t>(Named("lseek", fd), [&]() -> off_t {
      open_.at(fd).offset = static_cast<size_t>(offset);
      return offset;
    });
  }
  int Ftruncate(int fd, off_t bytes) override {
    return Call<int>(Named("ftruncate", fd), [&] {
      std::string content = Of(fd).versions.back();
      content.resize(static_cast<size_t>(bytes));
      Of(fd).versions.push_back(std::move(content));
      return 0;
    });
  }
  int Fsync(int fd) override {
    return Call<int>(Named("fsync", fd), [&] { return Flush(fd); });
  }
  int Fdatasync(int fd) override {
    return Call<int>(Named("fdatasync", fd), [&] { return Flush(fd); });
  }
  int Rename(const char* from, const char* to) override {
    return Call<int>(std::string("rename ") + from + " " + to, [&] {
      if (!Read(from)) return Failed(ENOENT);
      Move(from, to);
      return 0;
    });
  }
  int Unlink(const char* path) override {
    return Call<int>(std::string("unlink ") + path, [&] {
      Names names = names_.back();
      if (names.erase(path) == 0) return Failed(ENOENT);
      names_.push_back(std::move(names));
      return 0;
    });
  }

 private:
  using Names = std::map<std::string, size_t>;  // numbers of files_
  struct File {
    std::vector<std::string> versions;  // the flushed one first, the present one last
    int locked_by = -1;
  };
  struct Descriptor {
    std::string path;
    std::optional<size_t> file;  // none: the directory
    size_t offset = 0;
  };

  static int Failed(int error) {
    errno = error;
    return -1;
  }
  template <typename Result, typename Body>
  Result Call(const std::string& call, const Body& body) {
    log_.push_back(call);
    const int error = before ? before(call, static_cast<int>(log_.size()) - 1) : 0;
    const Result result = error != 0 ? Failed(error) : body();
    const int number = errno;
    if (after) after();
    errno = number;
    return result;
  }
  std::string Named(const char* call, int fd) const {
    return std::string(call) + " " + open_.at(fd).path;
  }
  File& Of(int fd) { return files_[*open_.at(fd).file]; }
  static int Fill(size_t file, struct stat* status, size_t bytes) {
    *status = {};
    status->st_ino = file + 1;
    status->st_mode = S_IFREG;
    status->st_size = static_cast<off_t>(bytes);
    return 0;
  }
  int Fill(size_t file, struct stat* status) const {
    return Fill(file, status, files_[file].versions.back().size());
  }
  int Flush(int fd) {
    const Descriptor& descriptor = open_.at(fd);
    if (descriptor.file) {
      Of(fd).versions = {Of(fd).versions.back()};
    } else if (descriptor.path == directory_) {
      names_ = {names_.back()};
    }
    return 0;
  }

  const std::string directory_;
  std::vector<File> files_;
  std::vector<Names> names_ = {{}};  // as File::versions
  std::map<int, Descriptor> open_;
  int next_fd_ = 3;
  std::vector<std::string> log_;
};

}  // namespace moesaic
