// The format of a store of prefix blocks on disk (kv_store_file.h): what its index says.
//
// The index begins with a header of 4 KiB and has an entry of a fixed size for each slot of the
// file of blocks. Numbers are little-endian; header and entries end with (or hold) an XXH64 of
// themselves, so that what a crash has left half written is seen.
//
// Functions of their arguments; bytes are untrusted.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "cache/kv_block_pool.h"

namespace moesaic {

// What a store holds blocks of.
struct KvStoreShape {
  std::string key;           // all that a bit of the blocks depends on, as text
  int64_t block_tokens = 0;  // 1 to 4096
  uint64_t block_bytes = 0;

  bool operator==(const KvStoreShape&) const = default;
};

constexpr size_t kKvStoreHeaderBytes = 4096;
constexpr size_t kKvStoreMostKeyBytes = 3072;

// CHECKs that the shape is within the bounds.
void PackKvStoreHeader(const KvStoreShape& shape, std::span<std::byte> header);
// Throws Error(kCorrupt, kUnsupported); `name` is for its message. `bytes` may be too few.
KvStoreShape ParseKvStoreHeader(std::span<const std::byte> bytes, const std::string& name);

struct KvStoreEntry {
  PrefixId id = kEmptyPrefix;
  PrefixId parent = kEmptyPrefix;  // less than id
  uint64_t used = 0;               // higher: more recently
  uint64_t checksum = 0;           // KvBlockChecksum of the slot
};

enum class KvEntryState { kEmpty, kGood, kDamaged };

// A multiple of 64.
size_t KvStoreEntryBytes(int64_t block_tokens);
// bytes: [KvStoreEntryBytes], tokens: [block_tokens].
void PackKvStoreEntry(const KvStoreEntry& entry, std::span<const int32_t> tokens,
                      std::span<std::byte> bytes);
KvEntryState ParseKvStoreEntry(std::span<const std::byte> bytes, KvStoreEntry& entry,
                               std::span<int32_t> tokens);

// Of the bytes of the block of this id: an older block in the same slot has another one.
uint64_t KvBlockChecksum(PrefixId id, std::span<const std::byte> block);
// The same of a block whose bytes lie in these pieces, one behind the other.
uint64_t KvBlockChecksum(PrefixId id, std::span<const iovec> pieces);

}  // namespace moesaic
