// ExpertStoreWriter. Everything is written into a hidden directory beside the destination, locked
// while it is being written, and moved into place in one step. What a killed writer left is found
// by its name and lack of a lock, and removed by the next one.
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/aligned_buffer.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/units.h"
#include "core/io/expert_store.h"
#include "core/io/expert_store_json.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void FailErrno(const fs::path& path, const char* what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  Fail(full ? ErrorKind::kResourceExhausted : ErrorKind::kIo, "{}: {}: {}{}", path.string(), what,
       ErrnoMessage(error), full ? "; free some space, or write the store elsewhere (-o DIR)" : "");
}

class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const fs::path& path, int flags) : Descriptor(TryOpen(path, flags)) {
    if (fd_ < 0) FailErrno(path, "cannot open", errno);
  }
  // fd() < 0 and errno when it cannot be opened.
  static Descriptor TryOpen(const fs::path& path, int flags) {
    Descriptor result;
    result.fd_ = open(path.c_str(), flags | O_CLOEXEC, 0644);
    return result;
  }
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept { *this = std::move(other); }
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  void Close() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
};

void Sync(const Descriptor& descriptor, const fs::path& path) {
  if (fsync(descriptor.fd()) != 0) FailErrno(path, "cannot flush to disk", errno);
}

void WriteAll(const Descriptor& descriptor, const fs::path& path, std::span<const std::byte> bytes,
              uint64_t offset) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = pwrite(descriptor.fd(), bytes.data() + done, bytes.size() - done,
                             static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) FailErrno(path, "cannot write", errno);
    done += static_cast<size_t>(n);
  }
}

// Whether `path` may be replaced by a store: absent, empty, or a store itself.
void CheckReplaceable(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(fs::symlink_status(path, ignored))) return;
  if (fs::is_directory(path, ignored) &&
      (fs::is_empty(path, ignored) || fs::exists(path / "store.json", ignored))) {
    return;
  }
  Fail(ErrorKind::kInvalidArgument,
       "{}: exists and is not an expert store; it is left alone, choose another directory",
       path.string());
}

// Makes `path` an empty directory that this process holds the lock of.
Descriptor ClaimDirectory(const fs::path& path) {
  for (;;) {
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) FailErrno(path, "cannot create", errno);
    Descriptor claim = Descriptor::TryOpen(path, O_RDONLY | O_DIRECTORY);
    if (claim.fd() < 0 && errno == ENOENT) continue;  // another writer has just finished
    if (claim.fd() < 0) FailErrno(path, "cannot open", errno);
    if (flock(claim.fd(), LOCK_EX | LOCK_NB) != 0) {
      Fail(ErrorKind::kUnavailable, "{}: another `moesaic pack` is writing this store",
           path.string());
    }
    struct stat locked;
    struct stat named;
    const bool same = fstat(claim.fd(), &locked) == 0 && stat(path.c_str(), &named) == 0 &&
                      locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
    if (!same) continue;  // moved away between the open and the lock
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      fs::remove_all(entry.path(), error);
      if (error) break;
    }
    if (error) FailErrno(path, "cannot remove what an earlier run left", error.value());
    return claim;
  }
}

void CheckFreeSpace(const fs::path& directory, uint64_t needed_bytes) {
  struct statvfs disk;
  if (statvfs(directory.c_str(), &disk) != 0) return;  // then writing will tell
  const uint64_t free_bytes = uint64_t{disk.f_bavail} * disk.f_frsize;
  if (free_bytes >= needed_bytes) return;
  Fail(ErrorKind::kResourceExhausted,
       "{}: the expert store takes {}, but the disk has {} free ({} missing); free some space, or "
       "write "
       "the store elsewhere (-o DIR)",
       directory.string(), FormatBytes(needed_bytes), FormatBytes(free_bytes),
       FormatBytes(needed_bytes - free_bytes));
}

}  // namespace

struct ExpertStoreWriter::Impl {
  fs::path destination;
  fs::path temporary;
  ExpertStoreDescription store;
  uint64_t total_bytes = 0;
  uint64_t written_bytes = 0;
  uint64_t flushed_bytes = 0;
  Descriptor claim;  // holds the lock of `temporary`
  Descriptor data;
  bool moved = false;

  ~Impl() {
    // While the lock is held: nobody else's files can be there.
    std::error_code ignored;
    if (!moved && !temporary.empty()) fs::remove_all(temporary, ignored);
  }
  fs::path data_path() const { return ExpertStoreDataFile(temporary); }
  void FlushWindow();
  void MoveIntoPlace();
};

// Starts writing back and forgets pages that are on disk, so that packing a large model neither
// fills the page cache with what nobody reads nor ends in one long fsync.
void ExpertStoreWriter::Impl::FlushWindow() {
  constexpr uint64_t kWindowBytes = 64 << 20;
  if (written_bytes - flushed_bytes < kWindowBytes) return;
  const auto begin = static_cast<off_t>(flushed_bytes);
  const auto bytes = static_cast<off_t>(written_bytes - flushed_bytes);
  sync_file_range(data.fd(), begin, bytes,
                  SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
  posix_fadvise(data.fd(), begin, bytes, POSIX_FADV_DONTNEED);
  flushed_bytes = written_bytes;
}

void ExpertStoreWriter::Impl::MoveIntoPlace() {
  std::error_code ignored;
  // An old store is exchanged in one step, so that there is one at every moment.
  if (fs::exists(destination, ignored)) {
    // The old one takes the temporary name: lock it, or another writer could claim it before it is
    // removed.
    const Descriptor old = Descriptor::TryOpen(destination, O_RDONLY | O_DIRECTORY);
    if (old.fd() >= 0) flock(old.fd(), LOCK_EX | LOCK_NB);
    if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, destination.c_str(), RENAME_EXCHANGE) ==
        0) {
      moved = true;
      fs::remove_all(temporary, ignored);  // the old one
      return;
    }
    if (errno != EINVAL && errno != ENOSYS) FailErrno(destination, "cannot replace", errno);
    // A file system without exchange: a moment without a store.
    std::error_code error;
    fs::remove_all(destination, error);
    if (error) FailErrno(destination, "cannot remove the old store", error.value());
  }
  if (rename(temporary.c_str(), destination.c_str()) != 0) {
    FailErrno(destination, "cannot create", errno);
  }
  moved = true;
}

ExpertStoreWriter::ExpertStoreWriter(const fs::path& directory, ExpertStoreHeader header)
    : impl_(std::make_unique<Impl>()) {
  CHECK(!header.sparse_layers.empty());
  CHECK_GT(header.num_experts, 0);
  CHECK_EQ(header.layout.slot_bytes % AlignedBuffer::kPageBytes, 0u);
  impl_->store.header = std::move(header);
  impl_->total_bytes = ExpertStoreBytes(impl_->store.header);
  impl_->store.checksums.reserve(ExpertStoreCount(impl_->store.header));

  std::error_code error;
  impl_->destination = fs::absolute(directory).lexically_normal();
  if (!impl_->destination.has_filename()) impl_->destination = impl_->destination.parent_path();
  CheckReplaceable(impl_->destination);
  const fs::path parent = impl_->destination.parent_path();
  fs::create_directories(parent, error);
  if (error) FailErrno(parent, "cannot create", error.value());
  const fs::path temporary =
      parent / fmt::format(".{}.packing", impl_->destination.filename().string());
  impl_->claim = ClaimDirectory(temporary);
  impl_->temporary = temporary;

  constexpr uint64_t kBytesPerChecksum = 32;
  CheckFreeSpace(parent, impl_->total_bytes + (1 << 20) +
                             ExpertStoreCount(impl_->store.header) * kBytesPerChecksum);
  impl_->data = Descriptor(impl_->data_path(), O_WRONLY | O_CREAT | O_EXCL);
  // Takes the room now rather than running out of it halfway; some file systems cannot.
  const auto total = static_cast<off_t>(impl_->total_bytes);
  if (fallocate(impl_->data.fd(), 0, 0, total) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
    FailErrno(impl_->data_path(), "cannot reserve the space", errno);
  }
}

ExpertStoreWriter::~ExpertStoreWriter() = default;

void ExpertStoreWriter::Append(std::span<const std::byte> blob) {
  CHECK_EQ(blob.size(), impl_->store.header.layout.slot_bytes);
  CHECK_LE(impl_->written_bytes + blob.size(), impl_->total_bytes);
  WriteAll(impl_->data, impl_->data_path(), blob, impl_->written_bytes);
  impl_->store.checksums.push_back(Hash64(blob));
  impl_->written_bytes += blob.size();
  impl_->FlushWindow();
}

void ExpertStoreWriter::Finish() {
  CHECK(!impl_->moved);
  CHECK_EQ(impl_->written_bytes, impl_->total_bytes);
  Sync(impl_->data, impl_->data_path());
  impl_->data.Close();
  const std::string text = FormatExpertStoreJson(impl_->store);
  const fs::path json_path = impl_->temporary / "store.json";
  const Descriptor json(json_path, O_WRONLY | O_CREAT | O_EXCL);
  WriteAll(json, json_path, std::as_bytes(std::span(text)), 0);
  Sync(json, json_path);
  Sync(impl_->claim, impl_->temporary);
  impl_->MoveIntoPlace();
  const fs::path parent = impl_->destination.parent_path();
  Sync(Descriptor(parent, O_RDONLY | O_DIRECTORY), parent);
}

}  // namespace moesaic
