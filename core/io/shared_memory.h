// Memory that processes of one user on one machine have together. One process fills it (ShareClaim
// says who), and gives it to the others, its members, which only read it. Beside it is a small
// piece that all of them write.
//
// The memory has no name in a file system, so that nothing is left of it when the last process that
// has it ends, however that ends. It is handed over on a Unix socket that only processes of the
// same user can open, to those that ask with the same key (what the memory holds, as a text), and
// it is sealed: nobody can cut it off under those that read it, or map it for writing once more.
// The connection stays open and tells each side that the other has ended: the kernel closes it.
//
// NAME is a name (letters, digits, '.', '_', '-'), of which each user has his own in
// /tmp/moesaic-UID, or a path, whose directory must be there. Two files are made: NAME.lock, which
// stays, and NAME.socket.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace moesaic {

constexpr int kMostShareMembers = 32;

// A file descriptor that is closed. Move-only.
class OwnedFd {
 public:
  explicit OwnedFd(int fd = -1) : fd_(fd) {}
  ~OwnedFd();
  OwnedFd(OwnedFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_;
};

// Who fills the memory of this name: a lock, which the kernel takes from a process that ends.
class ShareClaim {
 public:
  // Claims it. Throws Error(kInvalidArgument) for what is no name, kIo when its files cannot be
  // made or are another user's.
  static ShareClaim Take(const std::string& name);
  // As it is now; claims nothing and makes no file.
  static ShareClaim Look(const std::string& name);

  // This process fills the memory (Look: it would); else another one does.
  bool fills() const { return fills_; }
  // Where another process fills it: whether that still lives.
  bool HeldByOther() const;
  const std::string& name() const { return name_; }
  const std::filesystem::path& socket() const { return socket_; }

 private:
  std::string name_;
  std::filesystem::path socket_;
  OwnedFd lock_;
  bool fills_ = false;
};

// A piece of anonymous memory with a descriptor, mapped. Move-only.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(const OwnedFd& memory, uint64_t bytes, bool writable);
  ~SharedMapping();
  SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// As the process that fills it. Thread contract: its owner's; it has a thread of its own, on which
// on_gone is called.
class SharedMemory {
 public:
  // Both pieces are zero. `claim` outlives this and fills. Throws Error(kUnsupported /
  // kResourceExhausted).
  SharedMemory(const ShareClaim& claim, uint64_t memory_bytes, uint64_t control_bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<std::byte> memory() const { return memory_.span(); }
  std::span<std::byte> control() const { return control_.span(); }

  // From now on others get it. `on_gone`: the member of that number, below kMostShareMembers, has
  // ended; another one may get its number afterwards. Throws Error(kIo).
  void Offer(std::string key, std::function<void(int member)> on_gone);
  int members() const { return members_.load(std::memory_order_relaxed); }

 private:
  void Listen();
  void Serve();
  void Welcome(OwnedFd fd);
  bool Ended(int fd) const;

  const ShareClaim& claim_;
  OwnedFd memory_fd_;
  OwnedFd control_fd_;
  SharedMapping memory_;
  SharedMapping control_;
  std::string key_;
  std::function<void(int)> on_gone_;
  OwnedFd stop_;
  OwnedFd listener_;
  std::array<OwnedFd, kMostShareMembers> connections_;  // the thread's; -1: no such member
  std::atomic<int> members_{0};
  std::thread thread_;
};

// As another process. Thread contract: none; safe from any thread once made.
class SharedMemoryView {
 public:
  // Waits until the memory is offered, at most `patience`. Throws Error: kInvalidArgument when the
  // other process has another key (its message names both), kUnavailable when it has ended or does
  // not answer, kResourceExhausted when it has kMostShareMembers members.
  SharedMemoryView(const ShareClaim& claim, std::string_view key, std::chrono::seconds patience);

  std::span<const std::byte> memory() const { return memory_.span(); }
  std::span<std::byte> control() const { return control_.span(); }
  int member() const { return member_; }
  // The process that fills has not ended.
  bool FillerLives() const;

 private:
  OwnedFd connection_;
  int member_ = -1;
  SharedMapping memory_;
  SharedMapping control_;
};

}  // namespace moesaic
