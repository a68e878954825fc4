// xgrammar's library behind GrammarBackend: what a grammar accepts, of a vocabulary of single bytes
// and a few longer tokens.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "serving/grammar/grammar_backend.h"

namespace moesaic {
namespace {

using Kind = GrammarPart::Kind;

constexpr int32_t kEnd = 128;
constexpr int32_t kControl = 129;  // of no text
constexpr int32_t kWord = 130;     // "ab"
constexpr int64_t kRows = 140;     // more than tokens

class XgrammarTest : public testing::Test {
 protected:
  XgrammarTest() {
    GrammarVocabulary vocabulary;
    for (int c = 0; c < 128; ++c) vocabulary.tokens.emplace_back(1, static_cast<char>(c));
    vocabulary.tokens[0].clear();
    vocabulary.tokens.insert(vocabulary.tokens.end(), {"", "", "ab"});
    vocabulary.rows = kRows;
    vocabulary.end_tokens = {kEnd};
    backend_ = MakeGrammarBackend(std::move(vocabulary));
  }

  std::vector<int32_t> Allowed(GrammarMatch& match) {
    std::vector<int32_t> words((kRows + 31) / 32);
    match.Fill(words);
    std::vector<int32_t> tokens;
    for (int32_t token = 0; token < kRows; ++token) {
      if ((static_cast<uint32_t>(words[static_cast<size_t>(token) / 32]) >> (token % 32) & 1) != 0)
        tokens.push_back(token);
    }
    return tokens;
  }

  // Whether the text, byte by byte, is one of the grammar's, whole.
  bool Accepts(const Grammar& grammar, std::string_view text) {
    const auto match = grammar.Start();
    for (const char c : text) {
      const auto token = static_cast<int32_t>(c);
      const std::vector<int32_t> allowed = Allowed(*match);
      const bool may = std::find(allowed.begin(), allowed.end(), token) != allowed.end();
      EXPECT_EQ(match->Accept(token), may) << text;
      if (!may) return false;
    }
    return match->Accept(kEnd) && match->ended();
  }

  bool Accepts(GrammarPart part, std::string_view text) {
    return Accepts(*backend_->Compile(SpecOf(std::move(part))), text);
  }

  std::unique_ptr<GrammarBackend> backend_;
};

TEST_F(XgrammarTest, TextsWithQuotesAndEscapes) {
  const std::string text = "a \"b\"\\n\n\t{}[]\x01";
  EXPECT_TRUE(Accepts({.kind = Kind::kText, .text = text}, text));
  EXPECT_FALSE(Accepts({.kind = Kind::kText, .text = text}, "a \"b\""));
}

TEST_F(XgrammarTest, Schemas) {
  const GrammarPart part = {
      .kind = Kind::kJsonSchema,
      .text = R"({"type":"object","properties":{"a":{"type":"integer","minimum":5}},)"
              R"("required":["a"],"additionalProperties":false})"};
  EXPECT_TRUE(Accepts(part, R"({"a": 12})"));
  EXPECT_TRUE(Accepts(part, "{\n  \"a\":7}"));
  EXPECT_FALSE(Accepts(part, R"({"a": 4})"));
  EXPECT_FALSE(Accepts(part, R"({"b": 12})"));
  EXPECT_FALSE(Accepts(part, "{" + std::string(200, ' ') + R"("a": 12})"));
}

TEST_F(XgrammarTest, ExpressionsAndGrammars) {
  EXPECT_TRUE(Accepts({.kind = Kind::kRegex, .text = "[a-c]{2}(x|yz)?"}, "cayz"));
  EXPECT_FALSE(Accepts({.kind = Kind::kRegex, .text = "[a-c]{2}"}, "ad"));
  // A rule that begins with itself.
  EXPECT_TRUE(Accepts({.kind = Kind::kEbnf, .text = "root ::= root \"a\" | \"b\""}, "baaa"));
}

TEST_F(XgrammarTest, PartsFollowEachOtherAndAlternativesExclude) {
  GrammarSpec spec;
  spec.alternatives = {
      {{.kind = Kind::kText, .text = "n="}, {.kind = Kind::kRegex, .text = "[0-9]"}},
      {{.kind = Kind::kText, .text = "none"}}};
  const auto grammar = backend_->Compile(spec);
  EXPECT_TRUE(Accepts(*grammar, "n=4"));
  EXPECT_TRUE(Accepts(*grammar, "none"));
  EXPECT_FALSE(Accepts(*grammar, "n=none"));
}

TEST_F(XgrammarTest, TokensOfControlComeWhereTheyAreNamedOnly) {
  GrammarSpec spec;
  spec.alternatives = {
      {{.kind = Kind::kText, .text = "a"}, {.kind = Kind::kToken, .token = kControl}}};
  const auto match = backend_->Compile(spec)->Start();
  EXPECT_EQ(Allowed(*match), std::vector<int32_t>{'a'});
  EXPECT_TRUE(match->Accept('a'));
  EXPECT_EQ(Allowed(*match), std::vector<int32_t>{kControl});
  EXPECT_TRUE(match->Accept(kControl));
  EXPECT_EQ(Allowed(*match), std::vector<int32_t>{kEnd});

  const auto any = backend_->Compile(SpecOf({.kind = Kind::kRegex, .text = "[^x]+"}))->Start();
  for (const int32_t token : Allowed(*any)) {
    EXPECT_TRUE(token < kEnd || token == kWord) << token;
  }
}

// In the text between tags neither.
TEST_F(XgrammarTest, TokensOfControlAreNoTextOfStructuralTags) {
  const char* const tag =
      R"({"type":"structural_tag","format":{"type":"tag","begin":"<","content":{"type":"any_text"},"end":">"}})";
  const auto match =
      backend_->Compile(SpecOf({.kind = Kind::kStructuralTag, .text = tag}))->Start();
  EXPECT_TRUE(match->Accept('<'));
  for (const int32_t token : Allowed(*match)) {
    EXPECT_TRUE((token > 0 && token < kEnd) || token == kWord) << token;
  }
  const char* const named = R"({"type":"structural_tag","format":{"type":"token","token":129}})";
  const auto token =
      backend_->Compile(SpecOf({.kind = Kind::kStructuralTag, .text = named}))->Start();
  EXPECT_EQ(Allowed(*token), std::vector<int32_t>{kControl});
}

TEST_F(XgrammarTest, WhatIsWrongOrDroppedIsAnError) {
  const std::vector<GrammarPart> parts = {
      {.kind = Kind::kEbnf, .text = "root := 1"},
      {.kind = Kind::kEbnf, .text = "root ::= nobody"},
      {.kind = Kind::kRegex, .text = "(?=a)b"},
      {.kind = Kind::kStructuralTag, .text = "{}"},
      // It would warn and go on without multipleOf.
      {.kind = Kind::kJsonSchema, .text = R"({"type":"number","multipleOf":3})"},
      {.kind = Kind::kEbnf, .text = "root ::= " + std::string(5000, '(')},
  };
  for (const GrammarPart& part : parts) {
    EXPECT_THROW(backend_->Compile(SpecOf(part)), Error) << part.text.substr(0, 40);
  }
  EXPECT_TRUE(Accepts({.kind = Kind::kText, .text = "x"}, "x"));  // nothing is left of them
}

// An output that may be read in ever more ways takes ever more memory, and ends before it takes
// all.
TEST_F(XgrammarTest, AMatchTellsThatItGrows) {
  const auto plain = backend_->Compile(SpecOf({.kind = Kind::kRegex, .text = "a*"}))->Start();
  const char* const rules = "root ::= part root part | part\npart ::= \"a\" | \"aa\"\n";
  const auto many = backend_->Compile(SpecOf({.kind = Kind::kEbnf, .text = rules}))->Start();
  const size_t begin = plain->bytes();
  EXPECT_GT(begin, 0u);
  for (int i = 0; i < 60; ++i) {
    ASSERT_TRUE(plain->Accept('a'));
    ASSERT_TRUE(many->Accept('a'));
  }
  EXPECT_GT(plain->bytes(), begin);
  EXPECT_GT(many->bytes() - begin, 5 * (plain->bytes() - begin));
  EXPECT_GT(backend_->bytes(), 100u * 32);
  try {
    for (int i = 0; i < 900; ++i) many->Accept('a');
    FAIL() << "has " << many->bytes() << " bytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_LT(many->bytes(), 8u << 20);
  }
}

struct PatternCase {
  const char* schema;
  std::vector<const char*> fits;
  std::vector<const char*> does_not;
};

// Strings between quotes, as they stand in JSON.
TEST_F(XgrammarTest, PatternsAndLengthsOfStrings) {
  const PatternCase cases[] = {
      // Repetitions at either end of what may be missing.
      {R"({"type":"string","pattern":"^[0-9]{2}(-[0-9]+)?$"})", {"12", "12-3"}, {"123", "12-"}},
      {R"({"type":"string","pattern":"^(a*b)?$"})", {"", "aab"}, {"a", "aa"}},
      {R"({"type":"string","pattern":"^((x+y)?|z)*$"})", {"", "xxyz", "zz"}, {"x", "zx"}},
      {R"({"type":"string","pattern":"^(ab*)?c$"})", {"c", "abbc"}, {"bc", "bbc"}},
      {R"({"type":"string","pattern":"^a??b*?$"})", {"", "abb"}, {"aa"}},
      // What a string has only escaped, in repetitions of many times, too.
      {R"({"type":"string","pattern":"^.{1,200}$"})", {"abc"}, {"", "a\"", "a\x01", "a\n"}},
      {R"({"type":"string","pattern":"^[^x]*$"})", {"abc"}, {"a\"b", "a\tb", "x", "\\"}},
      {R"({"type":"string","pattern":"^\\S+$"})", {"a'b"}, {"a b", "a\""}},
      {R"({"type":"string","maxLength":3})", {"", "a c"}, {"abcd", "\t", "\x1f", "\""}},
      {R"({"type":"string","minLength":2})", {"ab", "abcdef"}, {"a", "a\tb"}},
      {R"({"type":"string","minLength":150,"maxLength":160})", {}, {"ab", "a\x02"}},
      {R"({"type":"string","maxLength":0})", {""}, {"a"}},
      // Each option by itself, and letters of any size.
      {R"({"type":"string","pattern":"^ab$|^c$"})", {"ab", "c"}, {"abc", "b"}},
      {R"({"type":"string","pattern":"(?i)^k[x-z]$"})", {"ky", "KY", "kX"}, {"k"}},
      {R"({"type":"string","pattern":"^(?:a|(?<n>b))\\.$"})", {"a.", "b."}, {"ax"}},
  };
  for (const PatternCase& item : cases) {
    const auto grammar =
        backend_->Compile(SpecOf({.kind = Kind::kJsonSchema, .text = item.schema}));
    for (const char* text : item.fits) {
      EXPECT_TRUE(Accepts(*grammar, "\"" + std::string(text) + "\""))
          << item.schema << ": " << text;
    }
    for (const char* text : item.does_not) {
      EXPECT_FALSE(Accepts(*grammar, "\"" + std::string(text) + "\""))
          << item.schema << ": " << text;
    }
  }
}

// All short texts, against a matcher of another make.
TEST_F(XgrammarTest, PatternsMeanWhatTheyMean) {
  std::mt19937 random(20261126);
  const std::function<std::string(int)> make = [&](int depth) -> std::string {
    switch (random() % (depth > 3 ? 3 : 8)) {
      case 0:
        return "a";
      case 1:
        return "b";
      case 2:
        return "[bc]";
      case 3:
        return "(" + make(depth + 1) + ")?";
      case 4:
        return "(" + make(depth + 1) + ")*";
      case 5:
        return "(" + make(depth + 1) + "|" + make(depth + 1) + ")";
      case 6:
        return "(" + make(depth + 1) + "){0,2}";
      default:
        return make(depth + 1) + make(depth + 1);
    }
  };
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts[i].size() < 4; ++i) {
    for (const char c : {'a', 'b', 'c'}) texts.push_back(texts[i] + c);
  }
  for (int round = 0; round < 60; ++round) {
    const std::string pattern = make(0);
    const Json schema = {{"type", "string"}, {"pattern", "^" + pattern + "$"}};
    const auto grammar =
        backend_->Compile(SpecOf({.kind = Kind::kJsonSchema, .text = schema.dump()}));
    const std::regex expected(pattern);
    for (const std::string& text : texts) {
      const auto match = grammar->Start();
      const bool fits = match->AcceptText("\"" + text + "\"") && match->complete();
      EXPECT_EQ(fits, std::regex_match(text, expected)) << pattern << " of " << text;
    }
  }
}

TEST_F(XgrammarTest, APatternThatNoStringHasUnescapedIsRefusedWithItsPlace) {
  for (const char* pattern :
       {R"(^\"a$)", R"(^a\\\\b$)", R"(a\\tb)", R"(a(?=b))", R"(a\\b)", R"(a{,3})"}) {
    const std::string schema =
        R"({"type":"object","properties":{"p":{"type":"string","pattern":")" +
        std::string(pattern) + R"("}},"required":["p"],"additionalProperties":false})";
    try {
      backend_->Compile(SpecOf({.kind = Kind::kJsonSchema, .text = schema}));
      FAIL() << pattern;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_EQ(std::string(error.what()).rfind("/properties/p/pattern: ", 0), 0u) << error.what();
    }
  }
}

TEST_F(XgrammarTest, MatchesOfOneGrammarAreApart) {
  const auto grammar = backend_->Compile(SpecOf({.kind = Kind::kText, .text = "xy"}));
  const auto first = grammar->Start();
  const auto second = grammar->Start();
  EXPECT_TRUE(first->Accept('x'));
  EXPECT_FALSE(first->Accept('x'));
  EXPECT_TRUE(second->AcceptText("xy"));
  EXPECT_TRUE(first->Accept('y'));
  EXPECT_GT(grammar->bytes(), 0u);
  EXPECT_EQ(grammar->vocab_size(), kRows);
}

}  // namespace
}  // namespace moesaic
