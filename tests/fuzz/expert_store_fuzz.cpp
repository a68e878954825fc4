// store.json of an expert store: what is accepted is consistent, and can be written and read again.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/io/expert_store_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto store = moesaic::ParseExpertStoreJson(text, "fuzz.json");
    CHECK_EQ(store.checksums.size(), moesaic::ExpertStoreCount(store.header));
    for (const auto& section : store.header.layout.sections) {
      CHECK_LE(section.offset + section.bytes, store.header.layout.slot_bytes);
    }
    const auto again =
        moesaic::ParseExpertStoreJson(moesaic::FormatExpertStoreJson(store), "again");
    CHECK_EQ(again.header.source_fingerprint, store.header.source_fingerprint);
    CHECK(again.checksums == store.checksums);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kCorrupt);
  }
  return 0;
}
