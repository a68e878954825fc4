#include "serving/text/detokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "serving/text/tokenizer_json.h"
#include "serving/text/unicode.h"
#include "tests/serving/text/tokenizer_test_data.h"

namespace moesaic {
namespace {

std::string Assemble(const std::vector<std::string>& pieces) {
  Utf8Assembler assembler;
  std::string text;
  for (const std::string& piece : pieces) {
    assembler.Add(piece, &text);
    EXPECT_TRUE(IsValidUtf8(text));
    EXPECT_LE(assembler.pending_bytes(), 3u);
  }
  assembler.Finish(&text);
  return text;
}

TEST(Utf8AssemblerTest, HoldsHalfCharactersBack) {
  Utf8Assembler assembler;
  std::string text;
  assembler.Add("a\xF0\x9F", &text);
  EXPECT_EQ(text, "a");
  EXPECT_EQ(assembler.pending_bytes(), 2u);
  assembler.Add("\xA6", &text);
  EXPECT_EQ(text, "a");
  assembler.Add("\x99z", &text);
  EXPECT_EQ(text, "a\xF0\x9F\xA6\x99z");
  EXPECT_EQ(assembler.pending_bytes(), 0u);
}

// The expectations are what Python 3.11 prints for bytes.decode(errors="replace").
TEST(Utf8AssemblerTest, ReplacesInvalidBytesAsPythonDoes) {
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(Assemble({"\xE4\xB8"}), bad);
  EXPECT_EQ(Assemble({"\xE4\xB8", "A"}), bad + "A");
  EXPECT_EQ(Assemble({"\xFF\xFE"}), bad + bad);
  EXPECT_EQ(Assemble({"\xC0\xAF"}), bad + bad);
  EXPECT_EQ(Assemble({"\xE0\x80\x80"}), bad + bad + bad);
  EXPECT_EQ(Assemble({"\xED\xA0\x80"}), bad + bad + bad);
  EXPECT_EQ(Assemble({"\xF0\x9F\x98", "\xF0\x9F\x98\x80"}), bad + "\xF0\x9F\x98\x80");
  EXPECT_EQ(Assemble({"\xF4\x90\x80\x80"}), bad + bad + bad + bad);
  EXPECT_EQ(Assemble({"\x80", "\xC3", "\xA9"}), bad + "\xC3\xA9");
  EXPECT_EQ(Assemble({"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"}), bad + bad + bad + bad + "A");
}

TEST(Utf8AssemblerTest, TheCutDoesNotMatter) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const unsigned char kBytes[] = {0x41, 0x80, 0xBF, 0xC3, 0xA9, 0xE0, 0xA0, 0xE4, 0xB8, 0xAD,
                                  0xED, 0x9F, 0xF0, 0x90, 0x9F, 0xF4, 0x8F, 0xF5, 0xC0, 0xFF};
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (size_t n = 1 + random() % 12; n > 0; --n) {
      bytes.push_back(static_cast<char>(kBytes[random() % std::size(kBytes)]));
    }
    std::string whole;
    AppendReplacingInvalid(bytes, whole);
    std::vector<std::string> pieces;
    for (size_t i = 0; i < bytes.size();) {
      const size_t n = random() % 3;  // empty pieces too
      pieces.push_back(bytes.substr(i, n));
      i += n;
    }
    ASSERT_EQ(Assemble(pieces), whole);
  }
}

TEST(DetokenizerTest, NeverGivesOutHalfACharacter) {
  const Tokenizer& tokenizer = TestTokenizer("sample");
  const std::string text = "na\xC3\xAFve \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\xA6\x99!";
  Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const int32_t id : tokenizer.Encode(text)) {
    detokenizer.Add(id, &streamed);
    EXPECT_TRUE(IsValidUtf8(streamed));
    EXPECT_TRUE(text.starts_with(streamed)) << streamed;
  }
  detokenizer.Finish(&streamed);
  EXPECT_EQ(streamed, text);
}

TEST(DetokenizerTest, AnUnfinishedCharacterIsReplacedAtTheEnd) {
  const Tokenizer& tokenizer = TestTokenizer("mixtral_style");
  const int32_t first = *tokenizer.TokenToId("<0xE4>");
  const int32_t second = *tokenizer.TokenToId("<0xB8>");
  const int32_t third = *tokenizer.TokenToId("<0xAD>");
  Detokenizer detokenizer(tokenizer);
  std::string text;
  detokenizer.Add(first, &text);
  detokenizer.Add(second, &text);
  EXPECT_EQ(text, "");
  detokenizer.Finish(&text);
  EXPECT_EQ(text, "\xEF\xBF\xBD");
  text.clear();
  for (const int32_t id : {first, second, third}) detokenizer.Add(id, &text);
  EXPECT_EQ(text, "\xE4\xB8\xAD");
}

TEST(DetokenizerTest, SpecialTokensAreSkippedOrShown) {
  const Tokenizer& tokenizer = TestTokenizer("sample");
  const std::vector<int32_t> ids = tokenizer.Encode("<|im_start|>user\nhi<|im_end|>");
  EXPECT_EQ(tokenizer.Decode(ids), "user\nhi");
  EXPECT_EQ(tokenizer.Decode(ids, false), "<|im_start|>user\nhi<|im_end|>");
}

TEST(DetokenizerTest, IdsWithoutATokenAddNothing) {
  const Tokenizer& tokenizer = TestTokenizer("sample");
  const std::vector<int32_t> ids = {-1, 4096, 1 << 30, INT32_MIN};
  EXPECT_EQ(tokenizer.Decode(ids), "");
  EXPECT_EQ(tokenizer.TokenBytes(4096), "");
  EXPECT_EQ(tokenizer.IdToToken(-1), "");
  EXPECT_FALSE(tokenizer.IsSpecial(4096));
}

// A space mark at the beginning of a text is no space; one behind a prompt is.
TEST(DetokenizerTest, LeadingSpaceOfSpaceMarks) {
  for (const char* name : {"mixtral_style", "llama_spm"}) {
    SCOPED_TRACE(name);
    const Tokenizer& tokenizer = TestTokenizer(name);
    const std::vector<int32_t> ids = {*tokenizer.TokenToId("\xE2\x96\x81Hello"),
                                      *tokenizer.TokenToId("\xE2\x96\x81world")};
    EXPECT_EQ(tokenizer.Decode(ids), "Hello world");
    Detokenizer continued(tokenizer, {.continues_text = true});
    std::string text;
    for (const int32_t id : ids) continued.Add(id, &text);
    continued.Finish(&text);
    EXPECT_EQ(text, " Hello world");
    // A skipped BOS does not count as the text's beginning; a shown one does.
    std::vector<int32_t> with_bos = {*tokenizer.TokenToId("<s>")};
    with_bos.insert(with_bos.end(), ids.begin(), ids.end());
    EXPECT_EQ(tokenizer.Decode(with_bos), "Hello world");
    EXPECT_EQ(tokenizer.Decode(with_bos, false), "<s> Hello world");
  }
}

TEST(DetokenizerTest, FinishReturnsToTheBeginning) {
  const Tokenizer& tokenizer = TestTokenizer("mixtral_style");
  const int32_t hello = *tokenizer.TokenToId("\xE2\x96\x81Hello");
  Detokenizer detokenizer(tokenizer);
  for (int round = 0; round < 2; ++round) {
    std::string text;
    detokenizer.Add(hello, &text);
    detokenizer.Finish(&text);
    EXPECT_EQ(text, "Hello");
  }
}

TEST(DetokenizerTest, CharactersToStripAtTheEndAreHeldBack) {
  const auto tokenizer = LoadTokenizerJson(
      R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]},
          "decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},
                     {"type":"Strip","content":"a","start":1,"stop":2}]}})",
      "test");
  Detokenizer detokenizer(*tokenizer);
  std::string text;
  const auto add = [&](int32_t id) {
    detokenizer.Add(id, &text);
    return text;
  };
  EXPECT_EQ(add(0), "");  // taken off the front
  EXPECT_EQ(add(1), "b");
  EXPECT_EQ(add(0), "b");
  EXPECT_EQ(add(0), "b");
  EXPECT_EQ(add(0), "ba");
  EXPECT_EQ(add(1), "baaab");
  EXPECT_EQ(add(0), "baaab");
  detokenizer.Finish(&text);
  EXPECT_EQ(text, "baaab");
  text.clear();  // another text: nothing is left of what was taken off
  EXPECT_EQ(add(0), "");
  EXPECT_EQ(add(1), "b");
}

}  // namespace
}  // namespace moesaic
