// KvBlockCopies: brings blocks of a store (kv_store.h) into the pools' memory, several at a time on
// a few threads: out of host memory, or straight out of the file of blocks as far as the system's
// cache of files has them, without a copy between and without waiting for the disk.
//
// Thread contract: one thread (the store's) calls. Its helpers touch what a call is given and
// nothing else, and nothing after it has returned.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/kv_block_pool.h"
#include "cache/kv_memory.h"
#include "core/base/function_ref.h"
#include "core/base/thread_pool.h"

namespace moesaic {

// Reads what a file has from `offset` on, if the system's cache of files has all that `to` has room
// for; waits for no disk. False: not all, or it cannot tell; `to` has anything then. Any thread.
bool ReadIfCached(int file, uint64_t offset, std::span<const iovec> to);

class KvBlockCopies {
 public:
  using ReadCached = std::function<bool(int file, uint64_t offset, std::span<const iovec> to)>;

  // Where a block of a caller's is.
  struct Place {
    std::vector<int32_t> blocks;  // [groups]
    int32_t state_slot = -1;      // a part of a state's instead
    int64_t part = 0;
  };
  struct FromMemory {
    std::span<const std::byte> bytes;
    Place to;
  };
  struct FromFile {
    uint64_t offset = 0;
    PrefixId id = kEmptyPrefix;
    uint64_t checksum = 0;
    std::vector<int32_t> to;  // [groups]
  };

  explicit KvBlockCopies(const KvMemory& memory);

  // Blocks that one call should have: all threads have work, and no call takes long.
  size_t batch() const { return batch_; }

  void Copy(std::span<const FromMemory> blocks);
  // How many of the first blocks are there now, with their checksums. The memory of the others has
  // anything; why is for a read to find out that waits for the disk.
  size_t CopyCached(int file, std::span<const FromFile> blocks, const ReadCached& read);
  // Each number below `count` once, on all threads.
  void ForEach(size_t count, FunctionRef<void(size_t)> body);

 private:
  static constexpr int kMostThreads = 4;  // more gain little where memory is what is waited for

  bool CopyOneCached(int file, const FromFile& block, const ReadCached& read) const;

  const KvMemory& memory_;
  const size_t batch_;
  std::array<bool, kMostThreads> named_{};  // of its thread
  ThreadPool threads_;
};

}  // namespace moesaic
