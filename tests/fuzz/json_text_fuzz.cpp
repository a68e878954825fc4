// JSON of requests: what is accepted is accepted by nlohmann's parser with an equal value, and what
// is refused as no JSON is refused there, too. Members built one by one are those of the whole.
// Checking takes steps in proportion to the text.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/base/check.h"
#include "serving/api/api_error.h"
#include "serving/api/json_document.h"

namespace {

using moesaic::Json;

void CheckAccepted(const moesaic::JsonDocument& document, std::string_view text) {
  const Json value = document.Build();
  const Json expected = Json::parse(text, nullptr, false);
  CHECK(!expected.is_discarded());
  CHECK(value == expected);
  // Equality does not tell 1 from 1.0; their text does.
  CHECK(value.dump() == expected.dump());
  CHECK(document.is_object() == expected.is_object());
  if (!document.is_object()) return;
  CHECK_EQ(document.num_members(), value.size());
  for (size_t i = 0; i < document.num_members(); ++i) {
    CHECK_EQ(document.FindMember(document.Key(i)), i);
    CHECK(document.BuildMember(i) == value.at(document.Key(i)));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::optional<moesaic::JsonDocument> document;
  try {
    document.emplace(text);
  } catch (const moesaic::ApiError& error) {
    CHECK_EQ(error.status(), 400);
    CHECK_EQ(error.code(), "invalid_json");
    // Valid UTF-8, and not the client's megabytes back.
    CHECK(moesaic::DumpJson(error.what()).size() < 600);
    const std::string_view why = error.what();
    // nlohmann takes a NUL outside strings for the end of the text.
    const bool syntax = why.starts_with("The request body is not valid JSON") ||
                        why.starts_with("The request body is empty");
    if (syntax && text.find('\0') == text.npos) CHECK(!Json::accept(text));
    return 0;
  }
  CHECK(document->check_steps() <= 4 * size + 64);
  CheckAccepted(*document, text);
  return 0;
}
