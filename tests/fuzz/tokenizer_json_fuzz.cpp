// tokenizer.json, and tiktoken.model, which never begins as one: any bytes give a tokenizer or an
// Error, and what loads encodes and decodes any text.
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "serving/text/detokenizer.h"
#include "serving/text/tiktoken_tokenizer.h"
#include "serving/text/tokenizer_json.h"
#include "serving/text/unicode.h"

namespace {

void EncodeAndDecode(const moesaic::Tokenizer& tokenizer, std::string_view text) {
  const moesaic::TextSegment segments[] = {{text, true}, {text, false}};
  const std::vector<int32_t> ids = tokenizer.EncodeSegments(segments, true);
  for (const int32_t id : ids) {
    CHECK_GE(id, 0);
    CHECK_LT(id, tokenizer.vocab_size());
  }
  CHECK(moesaic::IsValidUtf8(tokenizer.Decode(ids, false)));
  CHECK(moesaic::IsValidUtf8(tokenizer.Decode(ids, true)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    moesaic::TokenizerSettings settings;
    settings.tokenizer_class = "TikTokenTokenizer";
    const auto tokenizer = input.starts_with('{') ? moesaic::LoadTokenizerJson(input, "fuzz")
                                                  : moesaic::LoadTiktoken(input, "fuzz", settings);
    EncodeAndDecode(*tokenizer, "Hello  w\xC3\xB6rld, 123 <s>ab\n\xE2\x96\x81\xFF");
    EncodeAndDecode(*tokenizer, "");
    EncodeAndDecode(*tokenizer, input.substr(0, 200));
  } catch (const moesaic::Error&) {
  }
  return 0;
}
