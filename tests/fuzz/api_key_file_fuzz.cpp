// A file of keys: whatever comes in is either refused, or gives keys that are found, each with its
// own rights.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/http/api_keys.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::vector<moesaic::ApiKey> parsed = moesaic::ParseApiKeyFile(text, "fuzz");
    const moesaic::ApiKeys keys(parsed);
    CHECK_EQ(keys.empty(), parsed.empty());
    for (const moesaic::ApiKey& key : parsed) {
      CHECK(key.key.find('\n') == std::string::npos);
      const moesaic::ApiKey* found = keys.Find(key.key);
      CHECK(found != nullptr && *found == key);
      CHECK(keys.Find(key.key + "x") == nullptr || parsed.size() > 1);
    }
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
  return 0;
}
