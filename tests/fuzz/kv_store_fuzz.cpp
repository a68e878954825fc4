// The index of a store of keys and values: its header, and entries behind it. What is taken for
// good can be written again to the same bytes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/kv_store_format.h"
#include "core/base/check.h"
#include "core/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moesaic;
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    const KvStoreShape shape = ParseKvStoreHeader(bytes, "fuzz");
    std::vector<std::byte> header(kKvStoreHeaderBytes);
    PackKvStoreHeader(shape, header);
    CHECK_EQ(ParseKvStoreHeader(header, "fuzz").key, shape.key);
  } catch (const Error&) {
  }
  for (const int64_t tokens : {1, 4, 16}) {
    const size_t entry_bytes = KvStoreEntryBytes(tokens);
    std::vector<int32_t> held(static_cast<size_t>(tokens));
    for (size_t at = 0; at + entry_bytes <= std::min<size_t>(size, 8192); at += entry_bytes) {
      KvStoreEntry entry;
      if (ParseKvStoreEntry(bytes.subspan(at, entry_bytes), entry, held) != KvEntryState::kGood) {
        continue;
      }
      CHECK(entry.id != kEmptyPrefix && entry.parent < entry.id);
      std::vector<std::byte> again(entry_bytes);
      PackKvStoreEntry(entry, held, again);
    }
  }
  return 0;
}
