#include "cache/kv_store_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <system_error>
#include <utility>

#include "core/base/atomic_file.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/logging.h"
#include "core/base/units.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMarkerName = "kv-store.txt";
constexpr const char* kMarkerText =
    "Moesaic keeps keys and values of prompts here (--kv-store). Nothing is lost but time when "
    "this\n"
    "directory is deleted while no server uses it.\n";
constexpr uint64_t kSlotAlignment = 4096;  // a page of the system's cache is of one slot
constexpr size_t kIndexPieceBytes = size_t{1} << 20;

[[noreturn]] void FailCall(const fs::path& path, const char* what) {
  Fail(ErrorKind::kIo, "{}: {}: {}", path.string(), what, ErrnoMessage(errno));
}

}  // namespace

void CheckKvStorePlace(const fs::path& directory) {
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) {
    Fail(ErrorKind::kInvalidArgument, "--kv-store {}: is not a directory", directory.string());
  }
  if (fs::exists(directory / kMarkerName, error)) return;
  const fs::directory_iterator first(directory, error);
  if (error) {
    Fail(ErrorKind::kIo, "--kv-store {}: cannot be read: {}", directory.string(), error.message());
  }
  if (first == fs::directory_iterator()) return;
  Fail(
      ErrorKind::kInvalidArgument,
      "--kv-store {}: is not a store of keys and values: it has no {} and is not empty; name a new "
      "or an empty directory",
      directory.string(), kMarkerName);
}

uint64_t KvStoreFile::SlotBytes(const KvStoreShape& shape) {
  return CheckedAdd(shape.block_bytes, kSlotAlignment - 1, "KV store") / kSlotAlignment *
         kSlotAlignment;
}

int64_t KvStoreFile::SlotsFor(const KvStoreShape& shape, uint64_t limit_bytes) {
  const uint64_t slot = SlotBytes(shape) + KvStoreEntryBytes(shape.block_tokens);
  const uint64_t room = limit_bytes > kKvStoreHeaderBytes ? limit_bytes - kKvStoreHeaderBytes : 0;
  return static_cast<int64_t>(std::min<uint64_t>(room / slot, INT32_MAX));
}

KvStoreFile::KvStoreFile(fs::path directory, KvStoreShape shape, uint64_t limit_bytes,
                         FileCalls& calls)
    : calls_(calls),
      directory_(std::move(directory)),
      shape_(std::move(shape)),
      limit_bytes_(limit_bytes),
      stride_(SlotBytes(shape_)),
      entry_bytes_(KvStoreEntryBytes(shape_.block_tokens)),
      slots_(SlotsFor(shape_, limit_bytes)) {
  if (slots_ < 1) {
    Fail(ErrorKind::kInvalidArgument,
         "--kv-store-size: {} hold no block of {} tokens, which takes {}", FormatBytes(limit_bytes),
         shape_.block_tokens, FormatBytes(stride_));
  }
  CheckKvStorePlace(directory_);
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) {
    Fail(ErrorKind::kInvalidArgument, "--kv-store {}: cannot make the directory: {}",
         directory_.string(), error.message());
  }
  if (!fs::exists(directory_ / kMarkerName, error)) {
    try {
      SaveTextFile(directory_ / kMarkerName, kMarkerText);
    } catch (const Error& other) {
      if (other.kind() != ErrorKind::kUnavailable) throw;  // another process writes the same
    }
  }
  const std::string name = fmt::format("{:016x}", Hash64(shape_.key));
  index_path_ = directory_ / (name + ".index");
  blocks_path_ = directory_ / (name + ".blocks");
  try {
    OpenFiles();
  } catch (...) {
    if (index_ >= 0) calls_.Close(index_);
    if (blocks_ >= 0) calls_.Close(blocks_);
    throw;
  }
}

KvStoreFile::~KvStoreFile() {
  calls_.Close(blocks_);
  calls_.Close(index_);
}

int KvStoreFile::OpenFile(const fs::path& path, int flags) const {
  return Uninterrupted([&] { return calls_.Open(path.c_str(), flags | O_CLOEXEC, 0644); });
}

void KvStoreFile::OpenFiles() {
  index_ = OpenFile(index_path_, O_RDWR | O_CREAT);
  if (index_ >= 0) {
    writable_ = Uninterrupted([&] { return calls_.Flock(index_, LOCK_EX | LOCK_NB); }) == 0;
    if (!writable_ && errno != EWOULDBLOCK) FailCall(index_path_, "cannot lock");
  } else {
    index_ = OpenFile(index_path_, O_RDONLY);
    if (index_ < 0) FailCall(index_path_, "cannot open");
  }
  blocks_ = OpenFile(blocks_path_, writable_ ? O_RDWR | O_CREAT : O_RDONLY);
  if (blocks_ < 0) FailCall(blocks_path_, "cannot open");
  if (!writable_) return;
  if (!IndexIsMine()) StartAnew();
  blocks_bytes_ = SizeOf(blocks_, blocks_path_);
  // Slots beyond a limit that was higher.
  const uint64_t most = static_cast<uint64_t>(slots_) * stride_;
  if (blocks_bytes_ > most) {
    Truncate(index_, index_path_, EntryOffset(static_cast<int32_t>(slots_)));
    Truncate(blocks_, blocks_path_, most);
    blocks_bytes_ = most;
  }
  FindOthers();
  MakeRoom(blocks_bytes_);
}

// Whether the index, which may be new, has a header of this model. Says why not.
bool KvStoreFile::IndexIsMine() const {
  const uint64_t bytes = SizeOf(index_, index_path_);
  if (bytes == 0) return false;
  try {
    std::vector<std::byte> header(std::min<uint64_t>(bytes, kKvStoreHeaderBytes));
    ReadAt(index_, index_path_, 0, header);
    const KvStoreShape found = ParseKvStoreHeader(header, index_path_.string());
    if (found == shape_) return true;
    LogWarn("{}: is of other blocks than this model's; it is replaced", index_path_.string());
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kIo) throw;
    LogWarn("{}; it is replaced", error.what());
  }
  return false;
}

void KvStoreFile::StartAnew() {
  Truncate(index_, index_path_, 0);
  Truncate(blocks_, blocks_path_, 0);
  std::vector<std::byte> header(kKvStoreHeaderBytes);
  PackKvStoreHeader(shape_, header);
  WriteAt(index_, index_path_, 0, header);
}

uint64_t KvStoreFile::EntryOffset(int32_t slot) const {
  return kKvStoreHeaderBytes + static_cast<uint64_t>(slot) * entry_bytes_;
}

KvStoreFile::Index KvStoreFile::ReadIndex() const {
  Index index;
  const uint64_t bytes = SizeOf(index_, index_path_);
  std::vector<std::byte> piece(std::min<uint64_t>(bytes, kKvStoreHeaderBytes));
  ReadAt(index_, index_path_, 0, piece);
  if (ParseKvStoreHeader(piece, index_path_.string()) != shape_) {
    Fail(ErrorKind::kCorrupt, "{}: is of other blocks than this model's", index_path_.string());
  }
  const uint64_t whole = SizeOf(blocks_, blocks_path_) / stride_;  // slots that are there
  const uint64_t count = std::min(
      {(bytes - kKvStoreHeaderBytes) / entry_bytes_, whole, static_cast<uint64_t>(slots_)});
  const auto block_tokens = static_cast<size_t>(shape_.block_tokens);
  const size_t piece_entries = std::max<size_t>(1, kIndexPieceBytes / entry_bytes_);
  std::vector<int32_t> tokens(block_tokens);
  for (uint64_t first = 0; first < count; first += piece_entries) {
    const size_t entries = std::min<size_t>(piece_entries, count - first);
    piece.resize(entries * entry_bytes_);
    ReadAt(index_, index_path_, EntryOffset(static_cast<int32_t>(first)), piece);
    for (size_t i = 0; i < entries; ++i) {
      KvStoreEntry entry;
      const KvEntryState state = ParseKvStoreEntry(
          std::span(piece).subspan(i * entry_bytes_, entry_bytes_), entry, tokens);
      if (state == KvEntryState::kDamaged) ++index.damaged;
      if (state != KvEntryState::kGood) continue;
      index.slots.push_back(static_cast<int32_t>(first + i));
      index.entries.push_back(entry);
      index.tokens.insert(index.tokens.end(), tokens.begin(), tokens.end());
    }
  }
  return index;
}

void KvStoreFile::WriteBlock(int32_t slot, std::span<const std::byte> block) {
  CHECK(writable_);
  CHECK_EQ(block.size(), shape_.block_bytes);
  const uint64_t begin = static_cast<uint64_t>(slot) * stride_;
  const uint64_t end = begin + stride_;
  if (end > blocks_bytes_) {
    MakeRoom(end);
    Truncate(blocks_, blocks_path_, end);  // whole slots, and a slot's end is not read from before
    blocks_bytes_ = end;
  }
  WriteAt(blocks_, blocks_path_, begin, block);
}

void KvStoreFile::WriteEntry(int32_t slot, const KvStoreEntry& entry,
                             std::span<const int32_t> tokens) {
  CHECK(writable_);
  std::vector<std::byte> bytes(entry_bytes_);
  PackKvStoreEntry(entry, tokens, bytes);
  WriteAt(index_, index_path_, EntryOffset(slot), bytes);
}

void KvStoreFile::ClearEntry(int32_t slot) {
  CHECK(writable_);
  WriteAt(index_, index_path_, EntryOffset(slot), std::vector<std::byte>(entry_bytes_));
}

void KvStoreFile::FindOthers() {
  std::error_code error;
  for (const fs::directory_entry& file : fs::directory_iterator(directory_, error)) {
    if (file.path().extension() != ".blocks" || file.path() == blocks_path_) continue;
    struct stat status;
    if (calls_.Stat(file.path().c_str(), &status) != 0) continue;
    others_.push_back({fs::path(file.path()).replace_extension(),
                       static_cast<uint64_t>(status.st_size),
                       int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec});
  }
  std::sort(others_.begin(), others_.end(),
            [](const OtherModel& a, const OtherModel& b) { return a.modified_ns > b.modified_ns; });
}

// Removes what others have left while it and this model's blocks would take more than the limit.
void KvStoreFile::MakeRoom(uint64_t own_bytes) {
  const auto total = [&] {
    return std::accumulate(others_.begin(), others_.end(), own_bytes,
                           [](uint64_t sum, const OtherModel& other) { return sum + other.bytes; });
  };
  while (!others_.empty() && total() > limit_bytes_) {
    const OtherModel other = std::move(others_.back());
    others_.pop_back();
    const fs::path index = other.stem.string() + ".index";
    const int fd = OpenFile(index, O_RDWR);
    if (fd >= 0 && Uninterrupted([&] { return calls_.Flock(fd, LOCK_EX | LOCK_NB); }) == 0) {
      calls_.Unlink(index.c_str());
      calls_.Unlink((other.stem.string() + ".blocks").c_str());
      LogInfo("{}: {} of another model's keys and values have left, to make room",
              directory_.string(), FormatBytes(other.bytes));
    }
    if (fd >= 0) calls_.Close(fd);
  }
}

uint64_t KvStoreFile::SizeOf(int fd, const fs::path& path) const {
  struct stat status;
  if (calls_.Fstat(fd, &status) != 0) FailCall(path, "cannot tell its size");
  return static_cast<uint64_t>(status.st_size);
}

void KvStoreFile::Truncate(int fd, const fs::path& path, uint64_t bytes) const {
  if (Uninterrupted([&] { return calls_.Ftruncate(fd, static_cast<off_t>(bytes)); }) != 0) {
    FailCall(path, "cannot change its size");
  }
}

void KvStoreFile::ReadAt(int fd, const fs::path& path, uint64_t offset,
                         std::span<std::byte> to) const {
  for (size_t done = 0; done < to.size();) {
    const ssize_t n = Uninterrupted([&] {
      return calls_.Pread(fd, to.data() + done, to.size() - done,
                          static_cast<off_t>(offset + done));
    });
    if (n < 0) FailCall(path, "cannot read");
    if (n == 0) Fail(ErrorKind::kIo, "{}: ends before byte {}", path.string(), offset + to.size());
    done += static_cast<size_t>(n);
  }
}

void KvStoreFile::WriteAt(int fd, const fs::path& path, uint64_t offset,
                          std::span<const std::byte> from) const {
  if (calls_.Lseek(fd, static_cast<off_t>(offset), SEEK_SET) < 0) FailCall(path, "cannot seek");
  for (size_t done = 0; done < from.size();) {
    const ssize_t n =
        Uninterrupted([&] { return calls_.Write(fd, from.data() + done, from.size() - done); });
    if (n == 0) errno = ENOSPC;  // a disk that takes nothing
    if (n <= 0) FailCall(path, "cannot write");
    done += static_cast<size_t>(n);
  }
}

}  // namespace moesaic
