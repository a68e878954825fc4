#include "serving/text/regex.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "serving/text/regex_syntax.h"

namespace moesaic {
namespace {

// The matches of `pattern` in `text`.
std::vector<std::string> Matches(const std::string& pattern, const std::string& text) {
  const Regex regex(pattern, "test");
  RegexScratch scratch;
  std::vector<std::string> matches;
  std::string joined;
  regex.ForEachPart(text, scratch, [&](size_t begin, size_t end, bool is_match) {
    joined += text.substr(begin, end - begin);
    if (is_match) matches.push_back(text.substr(begin, end - begin));
  });
  EXPECT_EQ(joined, text);
  return matches;
}
using Strings = std::vector<std::string>;

TEST(RegexTest, UnicodeClasses) {
  EXPECT_EQ(Matches(R"(\p{L}+)", "aé中 1ß"), (Strings{"aé中", "ß"}));
  EXPECT_EQ(Matches(R"(\p{N}{1,3})", "12345٢½"), (Strings{"123", "45٢", "½"}));
  EXPECT_EQ(Matches(R"(\s+)", "a\u3000\u0085b\u180E"), (Strings{"\u3000\u0085"}));
  EXPECT_EQ(Matches(R"([^\s]+)", "a\u180Eb c"), (Strings{"a\u180Eb", "c"}));
  EXPECT_EQ(Matches(R"([\S]+)", "a\u180Eb c"), (Strings{"a\u180Eb", "c"}));
  EXPECT_EQ(Matches(R"(\w+)", "x\u0308y_z‿a b-c"), (Strings{"x\u0308y_z‿a", "b", "c"}));
  EXPECT_EQ(Matches(R"([\W]+)", "a, b"), (Strings{", "}));
  EXPECT_EQ(Matches(R"([^\W]+)", "a, b"), (Strings{"a", "b"}));
  EXPECT_EQ(Matches(R"(\bx\b)", "x x\u0308 x"), (Strings{"x", "x"}));
  EXPECT_EQ(Matches(R"(\p{Letter}\P{Uppercase_Letter}|\p{^Han})", "ab中"), (Strings{"ab"}));
  EXPECT_EQ(Matches(R"([\p{Han}\p{Hiragana}]+)", "aあ中ーb"), (Strings{"あ中"}));
}

TEST(RegexTest, RubySyntax) {
  EXPECT_EQ(Matches("^a$", "a\nb\na"), (Strings{"a", "a"}));
  EXPECT_EQ(Matches("(?m:a.b)", "a\nb"), (Strings{"a\nb"}));
  EXPECT_EQ(Matches("(?-m:a.b)|(?im)A.C", "a\nb a\nc"), (Strings{"a\nc"}));
  EXPECT_EQ(Matches("(?i:'s|'ll)", "'S'Ll'x"), (Strings{"'S", "'Ll"}));
  EXPECT_EQ(Matches(R"(\h+)", "xBEEFx12"), (Strings{"BEEF", "12"}));
  EXPECT_EQ(Matches(R"([\h]+\H)", "12gz"), (Strings{"12g"}));
  EXPECT_EQ(Matches(R"(\v)", "a\n\x0B"), (Strings{"\x0B"}));
  EXPECT_EQ(Matches(R"([\v]\u0041)",
                    "\x0B"
                    "A\nA"),
            (Strings{"\x0B"
                     "A"}));
  EXPECT_EQ(Matches("a{,2}b", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(Matches("a++b|a", "aac"), (Strings{"a", "a"}));
  EXPECT_EQ(Matches("[a-z&&[^aeiou]]+", "hello"), (Strings{"h", "ll"}));
  EXPECT_EQ(Matches("[^a-z&&[^aeiou]]+", "heLlo"), (Strings{"eL", "o"}));
  EXPECT_EQ(Matches("[a[bc]d]+", "xabcdx"), (Strings{"abcd"}));
  EXPECT_EQ(Matches("[[:alpha:][:digit:]]+", "aé1-b"), (Strings{"aé1", "b"}));
  EXPECT_EQ(Matches("[]a]+", "x]a"), (Strings{"]a"}));
  EXPECT_EQ(Matches(R"([\[\]\\-]+)", "a[]\\-b"), (Strings{"[]\\-"}));
}

// The words of o200k (gpt-oss, GPT-4o), as Hugging Face's tokenizers 0.23.3 splits them.
TEST(RegexTest, WordsOfO200k) {
  const std::string pattern =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
      R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
      R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const std::pair<std::string, Strings> cases[] = {
      {"HTMLParser isn't HTTPServer'S", {"HTMLParser", " isn't", " HTTPServer'S"}},
      {"I'LL we've DON'T Ünïcode'd", {"I'LL", " we've", " DON'T", " Ünïcode'd"}},
      {"12345 678", {"123", "45", " ", "678"}},
      {"a/b//c\n\n/d", {"a", "/b", "//", "c", "\n\n", "/d"}},
      {"  two  spaces   \n\t x ", {" ", " two", " ", " spaces", "   \n", "\t", " x", " "}},
      {"日本語のテキスト ABCdefGHI", {"日本語のテキスト", " ABCdef", "GHI"}},
      {"ǅungla ǅ a\u0301b", {"ǅungla", " ǅ", " a\u0301b"}},
      {"(foo)::bar->baz!!\r\n\r\n  end",
       {"(foo", ")::", "bar", "->", "baz", "!!\r\n\r\n", " ", " end"}},
      {"x\u00a0 \u3000y", {"x", "\u00a0 ", "\u3000y"}},
      {"e.g. 3.14%/yr", {"e", ".g", ".", " ", "3", ".", "14", "%/", "yr"}},
      {"ʰa ªB 'tis", {"ʰa", " ª", "B", " '", "tis"}}};
  for (const auto& [text, words] : cases) EXPECT_EQ(Matches(pattern, text), words) << text;
}

TEST(RegexTest, EmptyMatches) {
  EXPECT_EQ(Matches("b*", "abbc"), (Strings{"", "bb", ""}));
  EXPECT_EQ(Matches("x*", "中é"), (Strings{"", "", ""}));
}

TEST(RegexTest, WhatCannotBeExpressedIsRefusedWithItsPlace) {
  for (const char* pattern : {"a{1,3}+", "(*COMMIT)", R"(\Kx)", R"(\Qx\E)", R"(\p{NoSuchScript})",
                              R"(\p{L)", "[a", "(a", R"(\)", R"(\u12)", "[a&&]", R"(\C)"}) {
    SCOPED_TRACE(pattern);
    try {
      Regex regex(pattern, "file.json: pre_tokenizer");
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with("file.json: pre_tokenizer"));
    }
  }
  EXPECT_THROW(Regex(std::string(50, '[') + "a" + std::string(50, ']'), "test"), Error);
  EXPECT_THROW(Regex(std::string(100000, 'a'), "test"), Error);
}

TEST(RegexTest, BacktrackingWithoutEndIsAnErrorNotAHang) {
  const Regex regex("(a+)+$", "test.json: pattern");
  RegexScratch scratch;
  Regex::Match match;
  const std::string text = std::string(64, 'a') + "b";
  try {
    regex.Search(text, 0, scratch, &match);
    FAIL() << "found a match that is not there, or none in time";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("test.json: pattern"), std::string::npos);
  }
  // The scratch is still good.
  EXPECT_TRUE(regex.Search("aa", 0, scratch, &match));
  EXPECT_EQ(match.end, 2u);
}

TEST(RegexTest, DeepRecursionIsAnErrorNotACrash) {
  const Regex regex("(?:(?:a|b)*c|(?:a|b)+)+d", "test");
  RegexScratch scratch;
  Regex::Match match;
  const std::string text(4 << 20, 'a');
  try {
    EXPECT_FALSE(regex.Search(text, 0, scratch, &match));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  }
}

}  // namespace
}  // namespace moesaic
