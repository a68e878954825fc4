#include "tests/gpu/interpreter/fat_binary.h"

#include <zstd.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "core/base/error.h"

namespace moesaic::ptx {
namespace {

constexpr uint32_t kMagic = 0xBA55ED50;
constexpr uint16_t kPtx = 1;                 // the kind of an entry; 2 is machine code
constexpr uint64_t kLz4 = 0x2000;            // of Entry::flags
constexpr uint32_t kZstdMagic = 0xFD2FB528;  // begins what is compressed
constexpr uint64_t kMostPtxBytes = 256ull << 20;

struct Header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t bytes;  // of the entries, which follow
};

struct Entry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t padded_bytes;  // of what follows the header
  uint32_t bytes;         // less the padding; 0: not compressed, and padded with zeros
  uint32_t unknown;
  uint16_t minor, major;
  uint32_t architecture;  // 90
  uint64_t more_unknown;
  uint64_t flags;
};

template <typename T>
T Read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

std::string Text(const Entry& entry, const std::byte* data) {
  if ((entry.flags & kLz4) != 0) {
    Fail(ErrorKind::kUnsupported,
         "the PTX of a fat binary is compressed with LZ4, which is not "
         "known here: compile with nvcc 13");
  }
  const auto* const chars = reinterpret_cast<const char*>(data);
  if (entry.bytes == 0 || Read<uint32_t>(data) != kZstdMagic) {
    return std::string(chars, strnlen(chars, entry.padded_bytes));
  }
  const unsigned long long bytes = ZSTD_getFrameContentSize(data, entry.bytes);
  if (bytes > kMostPtxBytes) {
    Fail(ErrorKind::kUnsupported, "the PTX of a fat binary does not say how long it is");
  }
  std::string text(bytes, '\0');
  const size_t written = ZSTD_decompress(text.data(), text.size(), data, entry.bytes);
  if (ZSTD_isError(written) != 0) {
    Fail(ErrorKind::kCorrupt, "the PTX of a fat binary cannot be decompressed: {}",
         ZSTD_getErrorName(written));
  }
  text.resize(strnlen(text.data(), written));
  return text;
}

}  // namespace

std::string PtxOf(const std::byte* binary) {
  const auto header = Read<Header>(binary);
  if (header.magic != kMagic) Fail(ErrorKind::kCorrupt, "this is no fat binary");
  const std::byte* at = binary + header.header_bytes;
  const std::byte* const end = at + header.bytes;
  const std::byte* found = nullptr;
  Entry newest = {};
  while (at + sizeof(Entry) <= end) {
    const auto entry = Read<Entry>(at);
    if (entry.kind == kPtx && entry.architecture >= newest.architecture) {
      newest = entry;
      found = at + entry.header_bytes;
    }
    at += entry.header_bytes + entry.padded_bytes;
  }
  if (found == nullptr) {
    Fail(ErrorKind::kUnsupported,
         "a fat binary has no PTX: compile for an architecture that keeps "
         "it, such as CMAKE_CUDA_ARCHITECTURES=90");
  }
  return Text(newest, found);
}

}  // namespace moesaic::ptx
