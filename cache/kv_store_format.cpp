#include "cache/kv_store_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/hash.h"

namespace moesaic {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "moesaic-kv-store";
constexpr uint64_t kFormatVersion = 1;
constexpr int64_t kMostBlockTokens = 4096;
constexpr PrefixId kHighestId = uint64_t{1} << 62;

// Behind the magic text: version, block_tokens, block_bytes, bytes of the key; then the key.
constexpr size_t kNumbersAt = 16;
constexpr size_t kKeyAt = kNumbersAt + 4 * sizeof(uint64_t);
constexpr size_t kHeaderHashAt = kKvStoreHeaderBytes - sizeof(uint64_t);

// id, parent, used, checksum, hash of the entry with 0 in its place; then the tokens.
constexpr size_t kEntryHashAt = 4 * sizeof(uint64_t);
constexpr size_t kTokensAt = 5 * sizeof(uint64_t);

uint64_t NumberAt(std::span<const std::byte> bytes, size_t at) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

void PutNumber(std::span<std::byte> bytes, size_t at, uint64_t number) {
  std::memcpy(bytes.data() + at, &number, sizeof(number));
}

uint64_t EntryHash(std::span<const std::byte> bytes) {
  return Hash64(bytes.subspan(kTokensAt), Hash64(bytes.first(kEntryHashAt)));
}

}  // namespace

void PackKvStoreHeader(const KvStoreShape& shape, std::span<std::byte> header) {
  CHECK_EQ(header.size(), kKvStoreHeaderBytes);
  CHECK_LE(shape.key.size(), kKvStoreMostKeyBytes);
  CHECK(shape.block_tokens > 0 && shape.block_tokens <= kMostBlockTokens);
  CHECK_GT(shape.block_bytes, 0u);
  std::fill(header.begin(), header.end(), std::byte{0});
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  const std::array<uint64_t, 4> numbers = {kFormatVersion,
                                           static_cast<uint64_t>(shape.block_tokens),
                                           shape.block_bytes, shape.key.size()};
  for (size_t i = 0; i < numbers.size(); ++i) {
    PutNumber(header, kNumbersAt + i * sizeof(uint64_t), numbers[i]);
  }
  std::memcpy(header.data() + kKeyAt, shape.key.data(), shape.key.size());
  PutNumber(header, kHeaderHashAt, Hash64(header.first(kHeaderHashAt)));
}

KvStoreShape ParseKvStoreHeader(std::span<const std::byte> bytes, const std::string& name) {
  if (bytes.size() < kKvStoreHeaderBytes ||
      std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) {
    Fail(ErrorKind::kCorrupt, "{}: does not begin like the index of a store of keys and values",
         name);
  }
  const std::span<const std::byte> header = bytes.first(kKvStoreHeaderBytes);
  const uint64_t version = NumberAt(header, kNumbersAt);
  if (version != kFormatVersion) {
    Fail(ErrorKind::kUnsupported, "{}: format {} is not known (this program writes {})", name,
         version, kFormatVersion);
  }
  if (NumberAt(header, kHeaderHashAt) != Hash64(header.first(kHeaderHashAt))) {
    Fail(ErrorKind::kCorrupt, "{}: the header does not have its checksum", name);
  }
  const uint64_t tokens = NumberAt(header, kNumbersAt + 8);
  const uint64_t block_bytes = NumberAt(header, kNumbersAt + 16);
  const uint64_t key_bytes = NumberAt(header, kNumbersAt + 24);
  if (tokens == 0 || tokens > static_cast<uint64_t>(kMostBlockTokens) || block_bytes == 0 ||
      key_bytes > kKvStoreMostKeyBytes) {
    Fail(ErrorKind::kCorrupt, "{}: the header has sizes that cannot be", name);
  }
  KvStoreShape shape;
  shape.key.assign(reinterpret_cast<const char*>(header.data()) + kKeyAt, key_bytes);
  shape.block_tokens = static_cast<int64_t>(tokens);
  shape.block_bytes = block_bytes;
  return shape;
}

size_t KvStoreEntryBytes(int64_t block_tokens) {
  const size_t bytes = kTokensAt + static_cast<size_t>(block_tokens) * sizeof(int32_t);
  return (bytes + 63) / 64 * 64;
}

void PackKvStoreEntry(const KvStoreEntry& entry, std::span<const int32_t> tokens,
                      std::span<std::byte> bytes) {
  CHECK_EQ(bytes.size(), KvStoreEntryBytes(std::ssize(tokens)));
  CHECK(entry.id != kEmptyPrefix && entry.parent < entry.id && entry.id <= kHighestId);
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  PutNumber(bytes, 0, entry.id);
  PutNumber(bytes, 8, entry.parent);
  PutNumber(bytes, 16, entry.used);
  PutNumber(bytes, 24, entry.checksum);
  std::memcpy(bytes.data() + kTokensAt, tokens.data(), tokens.size_bytes());
  PutNumber(bytes, kEntryHashAt, EntryHash(bytes));
}

KvEntryState ParseKvStoreEntry(std::span<const std::byte> bytes, KvStoreEntry& entry,
                               std::span<int32_t> tokens) {
  CHECK_EQ(bytes.size(), KvStoreEntryBytes(std::ssize(tokens)));
  if (std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) {
    return KvEntryState::kEmpty;
  }
  if (NumberAt(bytes, kEntryHashAt) != EntryHash(bytes)) return KvEntryState::kDamaged;
  entry = {NumberAt(bytes, 0), NumberAt(bytes, 8), NumberAt(bytes, 16), NumberAt(bytes, 24)};
  std::memcpy(tokens.data(), bytes.data() + kTokensAt, tokens.size_bytes());
  const bool possible =
      entry.id != kEmptyPrefix && entry.parent < entry.id && entry.id <= kHighestId;
  return possible ? KvEntryState::kGood : KvEntryState::kDamaged;
}

uint64_t KvBlockChecksum(PrefixId id, std::span<const std::byte> block) {
  return Hash64(block, id);
}

uint64_t KvBlockChecksum(PrefixId id, std::span<const iovec> pieces) {
  Hash64Stream hash(id);
  for (const iovec& piece : pieces) {
    hash.Add({static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
  }
  return hash.Value();
}

}  // namespace moesaic
