// KvStoreFile: blocks of keys and values of prefixes on disk, of one model in one numerics class.
//
// A store is a directory that any number of models share. It has a file that says what it is
// (kv-store.txt), and for each model, under the hash of its key, NAME.blocks, slots of one size,
// and NAME.index, an entry for each slot that says what it holds (kv_store_format.h). A slot's
// entry is emptied before the slot is written and filled in behind that, and has the checksum of
// what was written. So a process that is killed leaves the blocks that it has written whole, and
// what a power cut mixes up is found out when it is read; nothing waits for the disk to be flushed.
//
// The process that holds the lock of the index writes; others read. What a reader finds in a slot
// that the writer has replaced meanwhile does not have the checksum.
//
// Thread contract: none of its own; one thread at a time calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "cache/kv_store_format.h"
#include "core/base/file_calls.h"

namespace moesaic {

// Whether a store can be kept there: nothing, an empty directory or a store. Throws
// Error(kInvalidArgument) that says what is there instead, or Error(kIo).
void CheckKvStorePlace(const std::filesystem::path& directory);

class KvStoreFile {
 public:
  // At most `limit_bytes` for this model, and for all in the directory: files of other models that
  // no process has open leave, the oldest first, as this one grows. Makes the directory. What
  // cannot be used of the model's files is replaced, with a warning. Throws Error: kInvalidArgument
  // (CheckKvStorePlace; no block fits the limit), kIo, kUnavailable.
  KvStoreFile(std::filesystem::path directory, KvStoreShape shape, uint64_t limit_bytes,
              FileCalls& calls = FileCalls::System());
  ~KvStoreFile();
  KvStoreFile(const KvStoreFile&) = delete;
  KvStoreFile& operator=(const KvStoreFile&) = delete;

  // Slots that the limit has room for.
  static int64_t SlotsFor(const KvStoreShape& shape, uint64_t limit_bytes);
  // Of a slot: a multiple of 4 KiB. Slot i of the file of blocks begins at i times as many.
  static uint64_t SlotBytes(const KvStoreShape& shape);

  bool writable() const { return writable_; }  // false: another process writes
  int64_t slots() const { return slots_; }
  const KvStoreShape& shape() const { return shape_; }
  const std::filesystem::path& index_path() const { return index_path_; }
  const std::filesystem::path& blocks_path() const { return blocks_path_; }
  int blocks() const { return blocks_; }  // the open file; reading it needs no more of this

  struct Index {
    std::vector<int32_t> slots;         // [entries] where they are
    std::vector<KvStoreEntry> entries;  // [entries]
    std::vector<int32_t> tokens;        // [entries, block_tokens]
    int64_t damaged = 0;                // entries that were left out
  };
  // What the index says now. Throws Error(kIo, kCorrupt).
  Index ReadIndex() const;

  // Throw Error(kIo).
  void WriteBlock(int32_t slot, std::span<const std::byte> block);
  void WriteEntry(int32_t slot, const KvStoreEntry& entry, std::span<const int32_t> tokens);
  void ClearEntry(int32_t slot);

 private:
  struct OtherModel {
    std::filesystem::path stem;
    uint64_t bytes = 0;
    int64_t modified_ns = 0;
  };

  void OpenFiles();
  bool IndexIsMine() const;
  void StartAnew();
  void FindOthers();
  void MakeRoom(uint64_t own_bytes);
  int OpenFile(const std::filesystem::path& path, int flags) const;
  uint64_t SizeOf(int fd, const std::filesystem::path& path) const;
  void ReadAt(int fd, const std::filesystem::path& path, uint64_t offset,
              std::span<std::byte> to) const;
  void WriteAt(int fd, const std::filesystem::path& path, uint64_t offset,
               std::span<const std::byte> from) const;
  void Truncate(int fd, const std::filesystem::path& path, uint64_t bytes) const;
  uint64_t EntryOffset(int32_t slot) const;

  FileCalls& calls_;
  const std::filesystem::path directory_;
  const KvStoreShape shape_;
  const uint64_t limit_bytes_;
  const uint64_t stride_;  // of slots
  const size_t entry_bytes_;
  const int64_t slots_;
  std::filesystem::path index_path_;
  std::filesystem::path blocks_path_;
  int index_ = -1;
  int blocks_ = -1;
  bool writable_ = false;
  uint64_t blocks_bytes_ = 0;       // of the file, where this process writes
  std::vector<OtherModel> others_;  // the oldest last
};

}  // namespace moesaic
