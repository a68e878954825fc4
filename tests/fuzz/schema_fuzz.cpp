// Clients' JSON schemas and grammars before they are compiled: whatever comes in is either refused
// with a reason, or comes out as a schema that is its own checked form, within the limits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "serving/grammar/json_pattern.h"
#include "serving/grammar/schema_check.h"
#include "serving/grammar/text_limits.h"
#include "serving/grammar/xgrammar_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    moesaic::CheckGrammarText(text);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
  try {
    const std::string spelt = moesaic::JsonStringPattern(text);
    CHECK(moesaic::JsonStringPattern(spelt) == spelt);
    // Nothing of it is written that a string has only escaped.
    CHECK(std::all_of(spelt.begin(), spelt.end(),
                      [](char c) { return c > 0x1f && c < 0x7f && c != '"'; }));
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
  // Requests are nested 64 levels deep at most.
  if (std::count_if(text.begin(), text.end(), [](char c) { return c == '[' || c == '{'; }) > 200) {
    return 0;
  }
  try {
    const moesaic::Json schema = moesaic::Json::parse(text, nullptr, false);
    if (schema.is_discarded()) return 0;
    const moesaic::Json checked = moesaic::CheckSchema(schema);
    CHECK(checked.is_object());
    CHECK(moesaic::CheckSchema(checked) == checked);
    const moesaic::Json spelt = moesaic::SchemaForXgrammar(checked);
    CHECK(moesaic::SchemaForXgrammar(spelt) == spelt);
  } catch (const moesaic::Error& error) {
    CHECK(error.kind() == moesaic::ErrorKind::kInvalidArgument);
  }
  return 0;
}
