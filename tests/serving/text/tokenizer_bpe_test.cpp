// Encoding beyond single words: long runs and segments.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "serving/text/tokenizer.h"
#include "serving/text/tokenizer_json.h"
#include "serving/text/word_cache.h"
#include "tests/serving/text/tokenizer_test_data.h"

namespace moesaic {
namespace {

void EncodeRun(const std::string& name, const std::string& unit, size_t bytes) {
  SCOPED_TRACE(name + " \"" + unit + '"');
  const Tokenizer& tokenizer = TestTokenizer(name);
  std::string text;
  while (text.size() < bytes) text += unit;
  const std::vector<int32_t> ids = tokenizer.Encode(text, {.add_special_tokens = false});
  EXPECT_EQ(tokenizer.Decode(ids), text);
}

// A megabyte of one character is one word for most pre-tokenizers. A quadratic merge takes hours,
// and the test its limit.
TEST(BpeRunTest, AMegabyteOfOneCharacter) {
  for (const char* name : {"gpt2", "mixtral_style", "llama_spm"}) EncodeRun(name, "a", 1u << 20);
  EncodeRun("qwen2", " ", 1u << 20);
}

TEST(BpeRunTest, RunsOfAllKinds) {
  for (const char* name : {"gpt2", "qwen2", "olmoe", "deepseek_llm", "mixtral_style"}) {
    for (const char* unit : {"a", " ", "\n", "=", "\xE4\xB8\xAD", "ab", "a ", " \n", "\t ", "'"}) {
      EncodeRun(name, unit, 1u << 16);
    }
  }
}

// The reference for the merge order: always the pair of the lowest rank, of equal ones the
// leftmost.
std::vector<std::string> NaiveMerges(
    const std::string& word, const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  while (true) {
    size_t best_rank = merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].first == symbols[i] && merges[rank].second == symbols[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
}

TEST(BpeRunTest, ShortAndLongWordsMergeInTheSameOrder) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::vector<std::pair<std::string, std::string>> merges;
    nlohmann::json json = {{"model", {{"type", "BPE"}, {"merges", nlohmann::json::array()}}}};
    for (int i = 0; i < 25; ++i) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (left.size() + right.size() > 12) continue;
      if (std::find(merges.begin(), merges.end(), std::pair(left, right)) != merges.end()) continue;
      merges.emplace_back(left, right);
      json["model"]["merges"].push_back({left, right});
      if (std::find(tokens.begin(), tokens.end(), left + right) == tokens.end()) {
        tokens.push_back(left + right);
      }
    }
    for (size_t i = 0; i < tokens.size(); ++i) json["model"]["vocab"][tokens[i]] = i;
    const auto tokenizer = LoadTokenizerJson(json.dump(), "test");
    for (int text = 0; text < 40; ++text) {
      std::string word;
      for (size_t n = 1 + random() % (text % 4 == 0 ? 200 : 40); n > 0; --n) {
        word.push_back("abc"[random() % 3]);
      }
      std::vector<std::string> expected = NaiveMerges(word, merges);
      std::vector<std::string> found;
      for (const int32_t id : tokenizer->Encode(word)) found.emplace_back(tokenizer->IdToToken(id));
      ASSERT_EQ(found, expected) << word << " with " << json.dump();
    }
  }
}

TEST(BpeRunTest, ARunOfSpacesIsOneToken) {
  const auto tokenizer = LoadTokenizerJson(
      R"({"model":{"type":"BPE","vocab":{"\u2581":0,"\u2581\u2581":1,"a":2},
          "merges":[["\u2581","\u2581"]]}})",
      "test");
  EXPECT_EQ(tokenizer->Encode("\xE2\x96\x81\xE2\x96\x81"
                              "a\xE2\x96\x81"),
            (std::vector<int32_t>{1, 2, 0}));
}

TEST(BpeRunTest, APairThatOccursTwiceHasTheLaterRank) {
  const auto tokenizer = LoadTokenizerJson(
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"bc":4},
          "merges":["a b","b c","a b"]}})",
      "test");
  EXPECT_EQ(tokenizer->Encode("abc"), (std::vector<int32_t>{0, 4}));
}

TEST(WordCacheTest, FindsWhatWasInsertedOrNothing) {
  WordCache cache;
  std::vector<int32_t> ids;
  // More than it holds: it starts afresh in between, and never gives another word's ids.
  for (int round = 0; round < 2; ++round) {
    for (int32_t i = 0; i < 200000; ++i) {
      const std::string word = "word" + std::to_string(i);
      const uint64_t hash = WordCache::Hash(word);
      const std::span<const int32_t> found = cache.Find(word, hash);
      if (found.data() != nullptr) {
        ASSERT_EQ(found.size(), 2u);
        ASSERT_EQ(found[0], i);
        ASSERT_EQ(found[1], -i);
        continue;
      }
      ids = {i, -i};
      cache.Insert(word, hash, ids);
      ASSERT_EQ(cache.Find(word, hash).size(), 2u);
    }
  }
}

TEST(BpeSegmentsTest, SpecialTokensInContentAreText) {
  const Tokenizer& tokenizer = TestTokenizer("sample");
  const int32_t start = *tokenizer.TokenToId("<|im_start|>");
  const int32_t end = *tokenizer.TokenToId("<|im_end|>");
  const std::vector<TextSegment> segments = {
      {"<|im_start|>user\n", true}, {"say <|im_end|> now", false}, {"<|im_end|>\n", true}};
  const std::vector<int32_t> ids = tokenizer.EncodeSegments(segments, true);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), start), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);
  EXPECT_EQ(ids[ids.size() - 2], end);
  EXPECT_EQ(tokenizer.Decode(ids, false), "<|im_start|>user\nsay <|im_end|> now<|im_end|>\n");
}

TEST(BpeSegmentsTest, ATokenThatAFewSegmentsSpellIsNone) {
  const Tokenizer& tokenizer = TestTokenizer("sample");
  const int32_t end = *tokenizer.TokenToId("<|im_end|>");
  const auto count = [&](const std::vector<TextSegment>& segments) {
    const std::vector<int32_t> ids = tokenizer.EncodeSegments(segments, false);
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(count({{"<|im_", true}, {"end|>", false}}), 0);
  EXPECT_EQ(count({{"<|im_", false}, {"end|>", true}}), 0);
  EXPECT_EQ(count({{"<|im_", true}, {"", false}, {"end|>", true}}), 1);
  EXPECT_EQ(count({{"<|im_end|", false}, {"<|im_end|>", true}}), 1);
  EXPECT_EQ(count({{"<|im_end|>", true}, {">", false}}), 1);
}

TEST(BpeSegmentsTest, BordersDoNotSplitWords) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const nlohmann::json texts = TokenizerJsonData("oracle_texts.json");
  for (const char* name : {"gpt2", "sample", "olmoe", "qwen2", "mixtral_style", "llama_spm"}) {
    const Tokenizer& tokenizer = TestTokenizer(name);
    for (int round = 0; round < 100; ++round) {
      const std::string text = texts[random() % texts.size()];
      // Cuts between characters; user and template text in turn have nothing special in them here.
      std::vector<TextSegment> segments;
      size_t begin = 0;
      while (begin < text.size()) {
        size_t end = std::min(text.size(), begin + 1 + random() % 20);
        while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
        segments.push_back({std::string_view(text).substr(begin, end - begin), true});
        begin = end;
      }
      EXPECT_EQ(tokenizer.EncodeSegments(segments, true), tokenizer.Encode(text)) << text;
      for (TextSegment& segment : segments) segment.parse_special = false;
      EXPECT_EQ(tokenizer.EncodeSegments(segments, true),
                tokenizer.Encode(text, {.parse_special = false}))
          << text;
    }
  }
}

// GPT-2 looks for its special token in normalised text; there is no normaliser to lose the ranges.
TEST(BpeSegmentsTest, NormalizedSpecialTokens) {
  const Tokenizer& gpt2 = TestTokenizer("gpt2");
  const std::vector<TextSegment> segments = {
      {"<|endoftext|>", true}, {"a<|endoftext|>b", false}, {"<|endoftext|>", true}};
  const std::vector<int32_t> ids = gpt2.EncodeSegments(segments, false);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 50256), 2);
  EXPECT_EQ(ids.front(), 50256);
  EXPECT_EQ(ids.back(), 50256);

  const auto lower = LoadTokenizerJson(
      R"({"normalizer":{"type":"Lowercase"},
          "added_tokens":[{"id":9,"content":"<S>","special":true,"normalized":true}],
          "model":{"type":"BPE","vocab":{"<":0,"s":1,">":2},"merges":[]}})",
      "test");
  EXPECT_EQ(lower->Encode("<s><S>"), (std::vector<int32_t>{9, 9}));
  const std::vector<TextSegment> mixed = {{"<S>", true}, {"<S>", false}};
  EXPECT_EQ(lower->EncodeSegments(mixed, false), (std::vector<int32_t>{9, 0, 1, 2}));
}

TEST(BpeSegmentsTest, SentencePieceKeepsContentPlain) {
  const Tokenizer& tokenizer = TestTokenizer("llama_spm");
  const std::vector<TextSegment> segments = {{"<s>", true}, {"</s> hi", false}, {"</s>", true}};
  const std::vector<int32_t> ids = tokenizer.EncodeSegments(segments, false);
  EXPECT_EQ(ids.front(), 1);
  EXPECT_EQ(ids.back(), 2);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 2), 1);
  EXPECT_EQ(tokenizer.Encode("hi"), (std::vector<int32_t>{1, 7251}));
}

TEST(BpeSegmentsTest, InvalidBytesCountAsReplacementCharacters) {
  const Tokenizer& tokenizer = TestTokenizer("gpt2");
  EXPECT_EQ(tokenizer.Encode("a\xFF"
                             "b"),
            tokenizer.Encode("a\xEF\xBF\xBD"
                             "b"));
  const std::vector<TextSegment> segments = {{"a\xE4\xB8", true},
                                             {"\xAD"
                                              "b",
                                              false}};
  EXPECT_EQ(tokenizer.EncodeSegments(segments, false), tokenizer.Encode("a\xEF\xBF\xBD\xEF\xBF\xBD"
                                                                        "b"));
  EXPECT_TRUE(tokenizer.Encode("").empty());
  EXPECT_TRUE(tokenizer.EncodeSegments({}, true).empty());
}

}  // namespace
}  // namespace moesaic
