// Every component of tokenizer.json, with all its settings, in small tokenizers: the same ids and
// the same text as Hugging Face's tokenizers (scripts/make_tokenizer_vectors.py, components).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serving/text/byte_level.h"
#include "serving/text/detokenizer.h"
#include "serving/text/segments.h"
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
        EXPECT_EQ(tokenizer->Decode(ids, false), one["decoded"][i].get<std::string>());
      }
      if (!one["visible"][i].is_null()) {
        EXPECT_EQ(tokenizer->Decode(ids, true), one["visible"][i].get<std::string>());
        EXPECT_EQ(Stream(*tokenizer, ids, true), one["visible"][i].get<std::string>());
      }
    }
  }
}

// A conversation of n messages has n plain ranges and n parts between special tokens: they are gone
// through once together, not once for each part.
TEST(PlainRangeCursorTest, LooksAtEachRangeOnce) {
  constexpr size_t kMessages = 10'000;
  std::vector<PlainRange> ranges;
  for (size_t i = 0; i < kMessages; ++i) ranges.push_back({10 * i + 2, 10 * i + 7});
  PlainRangeCursor cursor(ranges);
  std::vector<PlainRange> inside;
  for (size_t i = 0; i < kMessages; ++i) {
    inside.clear();
    cursor.Take(10 * i + 1, 10 * i + 9, inside);
    ASSERT_EQ(inside.size(), 1u);
    EXPECT_EQ(inside[0].begin, 1u);
    EXPECT_EQ(inside[0].end, 6u);
  }
  EXPECT_LE(cursor.looks(), 2 * kMessages);
}

TEST(PlainRangeCursorTest, CutsRangesToTheParts) {
  const std::vector<PlainRange> ranges = {{0, 2}, {4, 20}, {30, 31}, {40, 50}};
  PlainRangeCursor cursor(ranges);
  const auto take = [&](size_t begin, size_t end) {
    std::vector<PlainRange> inside;
    cursor.Take(begin, end, inside);
    std::string out;
    for (const PlainRange& range : inside) out += fmt::format("[{},{})", range.begin, range.end);
    return out;
  };
  EXPECT_EQ(take(0, 2), "[0,2)");
  EXPECT_EQ(take(2, 4), "");
  EXPECT_EQ(take(4, 6), "[0,2)");  // one range over several parts
  EXPECT_EQ(take(10, 35), "[0,10)[20,21)");
  EXPECT_EQ(take(35, 60), "[5,15)");
  EXPECT_EQ(take(60, 70), "");
}

TEST(ByteLevelTest, WhatIsNoUtf8IsNoByteLevelToken) {
  EXPECT_EQ(DecodeByteLevel("\xC4\xA0"
                            "a"),
            " a");
  EXPECT_EQ(DecodeByteLevel("\xF0"), std::nullopt);
  EXPECT_EQ(DecodeByteLevel("a\xC4"), std::nullopt);
}

}  // namespace
}  // namespace moesaic
