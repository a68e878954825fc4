// Every component of tokenizer.json, with all its settings, in small tokenizers: the same ids and
// the same text as Hugging Face's tokenizers (scripts/make_tokenizer_vectors.py, components).
#include <gtest/gtest.h>

#include "serving/text/detokenizer.h"
#include "serving/text/tokenizer_json.h"
#include "tests/serving/text/tokenizer_test_data.h"

namespace moesaic {
namespace {

// What streaming gives, a token at a time.
std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  Detokenizer detokenizer(tokenizer, {.skip_special = skip_special});
  std::string text;
  for (const int32_t id : ids) detokenizer.Add(id, &text);
  detokenizer.Finish(&text);
  return text;
}

TEST(TokenizerComponentsTest, SameAsTheReference) {
  const nlohmann::json cases = TokenizerJsonData("components.json");
  ASSERT_GT(cases.size(), 100u);
  for (const auto& one : cases) {
    const std::string name = one["name"];
    SCOPED_TRACE(name);
    const auto tokenizer = LoadTokenizerJson(one["tokenizer"].dump(), name);
    for (size_t i = 0; i < one["texts"].size(); ++i) {
      const std::string text = one["texts"][i];
      const std::vector<int32_t> ids = one["ids"][i];
      SCOPED_TRACE(one["texts"][i].dump());
      EXPECT_EQ(tokenizer->Encode(text), ids);
      const std::vector<int32_t> plain_ids = one["plain_ids"][i];
      EXPECT_EQ(tokenizer->Encode(text, {.add_special_tokens = false, .parse_special = false}),
                plain_ids);
      if (!one["decoded"][i].is_null()) {
        EXPECT_EQ(tokenizer->Decode(ids, false), one["decoded"][i]);
      }
      if (!one["visible"][i].is_null()) {
        EXPECT_EQ(tokenizer->Decode(ids, true), one["visible"][i]);
        EXPECT_EQ(Stream(*tokenizer, ids, true), one["visible"][i]);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
